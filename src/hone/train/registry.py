"""Recipes by name: the only place where a name in a config file becomes code."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hone.core.errors import ConfigError, did_you_mean
from hone.train import recipes
from hone.train.config import RunConfig
from hone.train.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a recipe file offers."""

    summary: str
    """One line for `hone list recipes`."""
    source: str
    """Paper and year."""
    config: type[RunConfig]
    build: Callable[[Any], Job[Any]]
    """Data first, then models: data faults come before anything is allocated."""
    derive: Callable[[Any], Mapping[str, str]]
    """What the config comes to, for `--dry-run`: no model, no work."""


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
