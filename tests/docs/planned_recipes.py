"""Writes `hone/planner/recipes.json`: each text recipe with a gradient as far as memory depends on it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import BaseModel

from hone.config.resolve import all_keys
from hone.planner.run_settings import PLANNED_KEYS, PlannedRecipe, setting_leaves
from hone.recipes.registry import load_recipe, recipe_families
from hone.text.evaluate.open_policy import NewExpertsConfig, NewModelConfig
from hone.text.open_text import LanguageRunConfig
from hone.text.presets import PRESETS
from hone.text.rl import TextRunConfig


def defaults(config: type[BaseModel]) -> dict[str, object]:
    """Defaults of the planned keys, by dotted name."""
    found: dict[str, object] = {}

    def walk(model: type[BaseModel], values: Mapping[str, Any], prefix: str) -> None:
        for name, field in model.model_fields.items():
            missing = field.is_required() and name not in values
            value = (
                values.get(name)
                if name in values
                else None
                if missing
                else field.get_default(call_default_factory=True)
            )
            if isinstance(value, BaseModel):
                walk(type(value), dict(value), f"{prefix}{name}.")
            elif missing and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                walk(field.annotation, {}, f"{prefix}{name}.")
            elif f"{prefix}{name}" in PLANNED_KEYS and value is not None:
                found[f"{prefix}{name}"] = value

    walk(config, {}, "")
    return found


def planned(name: str, config: type[BaseModel]) -> PlannedRecipe | None:
    """What a plan needs to know of a recipe; None for one without a step by gradient on tokens."""
    if not issubclass(config, LanguageRunConfig | TextRunConfig) or not config.planned().rows:
        return None
    presets = {
        library: {key: value for key, value in setting_leaves(recipes[name]).items() if key in PLANNED_KEYS}
        for library, recipes in PRESETS.items()
        if name in recipes
    }
    return replace(
        config.planned(),
        defaults=defaults(config),
        presets={library: values for library, values in presets.items() if values},
    )


def planned_recipes() -> str:
    """The file: keys of all recipes of text, and what is planned with of each."""
    found, keys = {}, set[str]()
    for name in recipe_families():
        config = load_recipe(name).config
        recipe = planned(name, config)
        if recipe is not None:
            plain = asdict(PlannedRecipe())
            found[name] = {key: value for key, value in asdict(recipe).items() if value != plain[key]}
            keys |= {".".join(map(str, path)) for path in all_keys(config)}
    shared = {
        key: value
        for key, value in found["grpo"]["defaults"].items()
        if all(one.get("defaults", {}).get(key) == value for one in found.values())
    }
    for one in found.values():
        one["defaults"] = {key: value for key, value in one["defaults"].items() if key not in shared}
    new = {"new": NewModelConfig().model_dump(), "experts": NewExpertsConfig().model_dump()}
    document = {"keys": sorted(keys), "defaults": shared, **new, "recipes": found}
    return json.dumps(document, indent=1) + "\n"
