"""Recipes by name: the only place where a name in a config file becomes code."""

import importlib
import pkgutil

from hone.core.errors import ConfigError, did_you_mean
from hone.train import recipes
from hone.train.job import Entry


def recipe_names() -> list[str]:
    """Without importing any of them."""
    return sorted(module.name for module in pkgutil.iter_modules(recipes.__path__))


def load_recipe(name: str) -> Entry:
    """Raises ConfigError for a name that is not a recipe."""
    if name not in recipe_names():
        raise ConfigError(f"unknown recipe {name!r}{did_you_mean(name, recipe_names())}")
    entry = importlib.import_module(f"{recipes.__name__}.{name}").ENTRY
    assert isinstance(entry, Entry)
    return entry
