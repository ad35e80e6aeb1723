"""Recipes by name: the only place where a name in a config file becomes code.

A folder of `hone.recipes` is a family and a module in it a recipe; the names of recipes are unique over all families.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from hone import recipes
from hone.core.errors import ConfigError, did_you_mean
from hone.train.job import RecipeSpec

TITLES: Mapping[str, str] = {
    "text": "language models",
    "on_policy": "control, on-policy",
    "off_policy": "control, off-policy",
    "tabular": "tabular",
    "offline": "offline",
    "imitation": "imitation",
    "meta": "multi-task and meta-RL",
    "bandits": "bandits",
}
"""Families that have a title of their own, in the order in which they are listed."""


def recipe_families() -> Mapping[str, str]:
    """The family of each recipe by the recipe's name, sorted by name; imports no recipe."""
    folders = [module.name for module in pkgutil.iter_modules(recipes.__path__) if module.ispkg]
    families = {folder: importlib.import_module(f"{recipes.__name__}.{folder}") for folder in folders}
    pairs = [(module.name, folder) for folder in folders for module in pkgutil.iter_modules(families[folder].__path__)]
    return dict(sorted(pairs))


def recipe_names() -> list[str]:
    """Names of all recipes, sorted; imports none of them."""
    return list(recipe_families())


def load_recipe(name: str) -> RecipeSpec:
    """The recipe called `name`. Raises ConfigError for a name that is not a recipe."""
    family = recipe_families().get(name)
    if family is None:
        raise ConfigError(f"unknown recipe {name!r}{did_you_mean(name, recipe_names())}")
    entry = importlib.import_module(f"{recipes.__name__}.{family}.{name}").ENTRY
    assert isinstance(entry, RecipeSpec)
    return entry


def recipes_by_family() -> Mapping[str, Mapping[str, RecipeSpec]]:
    """Every recipe by its name, by the title of its family."""
    family = recipe_families()
    order = [*(one for one in TITLES if one in family.values()), *sorted({*family.values()} - {*TITLES})]
    return {
        TITLES.get(one, one.replace("_", " ")): {name: load_recipe(name) for name in family if family[name] == one}
        for one in order
    }
