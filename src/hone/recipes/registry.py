"""Recipes by name: the only place where a name in a config file becomes code.

A folder of `hone.recipes` is a family and a module in it a recipe; the names of recipes are unique over all families.
Recipes from outside are entry points of the group `hone.recipes` of an installed package, by their name, or a file:
`recipe = "my_recipe.py"`.
"""

import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from hone import recipes
from hone.core.errors import ConfigError, UserCodeError, did_you_mean
from hone.process import user_files
from hone.run.job import RecipeDescription, RecipeSpec, installed_recipes

TITLES: Mapping[str, str] = {
    "text": "language models",
    "reward_models": "reward models",
    "preference": "preferences",
    "search": "training on selected answers",
    "on_policy": "control, on-policy",
    "off_policy": "control, off-policy",
    "tabular": "tabular",
    "offline": "offline",
    "imitation": "imitation",
    "meta": "multi-task and meta-RL",
    "multi_agent": "several agents",
    "bandits": "bandits",
}
"""Families that have a title of their own, in the order in which they are listed."""
DESCRIPTIONS = Path(__file__).with_name("descriptions.json")
OTHER_NAMES: Mapping[str, str] = {
    **{
        kind: f'recipe = "dpo" with algorithm.loss.kind = "{kind}"'
        for kind in ("ipo", "exo", "sppo", "nca", "discopop", "aot", "aot_unpaired", "apo_zero", "apo_down", "bco_pair")
    },
    "cdpo": 'recipe = "dpo" with algorithm.loss.kind = "conservative"',
    "robust_dpo": 'recipe = "dpo" with algorithm.loss.kind = "robust"',
    "slic": 'recipe = "dpo" with algorithm.loss.kind = "hinge"',
    "ld_dpo": 'recipe = "dpo" with algorithm.ld_alpha',
    "f_dpo": 'recipe = "dpo" with algorithm.divergence',
    "wpo": 'recipe = "dpo" with algorithm.wpo_cap',
    "bco": 'recipe = "kto" with algorithm.loss.kind = "bco"',
    "cpo_simpo": 'recipe = "simpo" with algorithm.likelihood',
}
"""Names that algorithms have elsewhere -> how hone writes them."""
_ENTRY = "ENTRY"
_KIND = "recipe"


@cache
def recipe_families() -> Mapping[str, str]:
    """The family of each of hone's recipes by the recipe's name, sorted by name; imports no recipe."""
    folders = [module.name for module in pkgutil.iter_modules(recipes.__path__) if module.ispkg]
    families = {folder: importlib.import_module(f"{recipes.__name__}.{folder}") for folder in folders}
    pairs = [(module.name, folder) for folder in folders for module in pkgutil.iter_modules(families[folder].__path__)]
    return dict(sorted(pairs))


def recipe_names() -> list[str]:
    """Names of all recipes, hone's and those of installed packages, sorted; imports none of them."""
    return sorted({*recipe_families(), *installed_recipes()})


def is_recipe(name: str) -> bool:
    """True for the name of a recipe, and for a file that may hold one; imports none."""
    return is_file(name) or name in recipe_families() or name in installed_recipes()


def is_file(name: str) -> bool:
    """True if a config names its recipe by a file: `my_recipe.py`, or `my_recipe.py:NAME`."""
    return name.endswith(".py") or ".py:" in name


def short_name(name: str) -> str:
    """Name of a recipe as part of a run's name: a file's without folder and ending."""
    return Path(name.rpartition(":")[0] or name).stem if is_file(name) else name


def load_recipe(name: str) -> RecipeSpec:
    """The recipe called `name`, or in the file `name`.

    Raises ConfigError for a name that is not a recipe, and UserCodeError for a file or package without a usable one.
    """
    if is_file(name):
        reference = name if ".py:" in name else f"{name}:{_ENTRY}"
        user_files.check_reference(reference, kind=_KIND, modules=False)
        path = Path(reference.rpartition(":")[0]).resolve()
        return _recipe_in_file(reference, path, path.stat().st_mtime_ns)
    family, declared = recipe_families().get(name), installed_recipes().get(name, ())
    own = family is not None
    if own + len(declared) > 1:  # none of them is meant more than the others
        places = ["hone itself"] * own + [f"{_package(point)} ({point.value})" for point in declared]
        raise ConfigError(
            f"recipe {name!r} exists more than once: in {', in '.join(places)}; rename or uninstall all but one"
        )
    if family is not None:
        entry = importlib.import_module(f"{recipes.__name__}.{family}.{name}").ENTRY
        assert isinstance(entry, RecipeSpec)
        return entry
    if not declared and name in OTHER_NAMES:
        raise ConfigError(f"unknown recipe {name!r}: it is {OTHER_NAMES[name]}")
    if not declared:
        raise ConfigError(f"unknown recipe {name!r}{did_you_mean(name, recipe_names())}")
    reference = declared[0].value if ":" in declared[0].value else f"{declared[0].value}:{_ENTRY}"
    kind = f"recipe {name!r} of {_package(declared[0])}:"
    return _checked(user_files.load_reference(reference, kind=kind), f"{kind} {reference}")


@cache
def _recipe_in_file(reference: str, path: Path, changed_ns: int) -> RecipeSpec:  # noqa: ARG001 - keys of the cache
    """Run the file once for each of its versions: a config's class must stay the same class through a run."""
    # The prefix keeps a file named like a library from replacing it.
    entry = user_files.load_reference(reference, kind=_KIND, prefix="hone_recipe_")
    return _checked(entry, f"recipe {reference!r}")


def _checked(entry: object, place: str) -> RecipeSpec:
    if not isinstance(entry, RecipeSpec):
        raise UserCodeError(f"{place} is a {type(entry).__name__}, not a hone.run.job.RecipeSpec")
    return entry


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def describe_recipe(name: str) -> RecipeDescription:
    """The texts about a recipe. Those of hone's own are read from a file, as importing a recipe imports torch.

    Raises as `load_recipe`.
    """
    known = _descriptions().get(name)
    return RecipeDescription.of(load_recipe(name)) if known is None else known


@cache
def _descriptions() -> Mapping[str, RecipeDescription]:
    """Texts about hone's recipes; `python tests/docs/write_pages.py` writes the file."""
    texts = json.loads(DESCRIPTIONS.read_text(encoding="utf-8"))
    return {name: RecipeDescription(**fields) for name, fields in texts.items()}


def titles_by_family() -> Mapping[str, Sequence[str]]:
    """Names of hone's recipes, by the title of their family; imports none."""
    family = recipe_families()
    order = [*(one for one in TITLES if one in family.values()), *sorted({*family.values()} - {*TITLES})]
    return {TITLES.get(one, one.replace("_", " ")): [name for name in family if family[name] == one] for one in order}


def recipes_by_family() -> Mapping[str, Mapping[str, RecipeSpec]]:
    """Each of hone's recipes by its name, by the title of its family."""
    return {title: {name: load_recipe(name) for name in names} for title, names in titles_by_family().items()}
