"""Writes `hone/planner/recipes.json`: each text recipe with a gradient as far as memory depends on it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from hone.config.resolve import all_keys
from hone.planner.run_settings import PLANNED_KEYS, PlannedRecipe
from hone.recipes.preference.online_dpo import OnlineDpoConfig
from hone.recipes.registry import load_recipe, recipe_families
from hone.recipes.text.curious_grpo import CuriousGrpoConfig
from hone.recipes.text.ppo_text import PpoTextConfig
from hone.recipes.text.self_correction import SelfCorrectionConfig
from hone.recipes.text.sft import SftConfig
from hone.text.collecting.round_job import RoundRunConfig
from hone.text.evaluate.open_policy import NewExpertsConfig, NewModelConfig
from hone.text.preference.preference_job import PreferenceRunConfig
from hone.text.presets import PRESETS
from hone.text.rl import TextGradientRunConfig
from hone.text.scorers.scorer_job import ScorerRunConfig

ROLLOUT = ("rollout.prompts_per_step", "rollout.samples_per_prompt")


def shape_of_batches(config: type[BaseModel]) -> dict[str, Any] | None:
    """Rows of an iteration, and whether the policy writes them; None for a recipe without a gradient on tokens."""
    if issubclass(config, TextGradientRunConfig):
        return {"rows": ROLLOUT, "writes": True}
    if issubclass(config, OnlineDpoConfig):
        return {"rows": ROLLOUT[:1], "factor": 2, "writes": True}
    if issubclass(config, RoundRunConfig):
        return {"rows": ("algorithm.batch",), "writes": True}
    if issubclass(config, PreferenceRunConfig):
        return {"rows": ("batch",), "factor": 2 if config.answers == "preference" else 1}
    if issubclass(config, ScorerRunConfig):
        return {"rows": ("batch",), "factor": 2 if config.data_kind == "preference" else 1}
    return {"rows": ("batch",)} if issubclass(config, SftConfig) else None


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
    """What a plan needs to know of a recipe."""
    batches = shape_of_batches(config)
    if batches is None:
        return None
    networks = {"critic": 4} if issubclass(config, PpoTextConfig) else {}
    networks = {"world model": 4} if issubclass(config, CuriousGrpoConfig) else networks
    presets = {
        library: {".".join(path): value for path, value in _leaves(recipes[name]) if ".".join(path) in PLANNED_KEYS}
        for library, recipes in PRESETS.items()
        if name in recipes
    }
    return PlannedRecipe(
        **batches,
        answers=2 if issubclass(config, SelfCorrectionConfig) else 1,
        entropy=issubclass(config, TextGradientRunConfig) and config.needs_entropy,
        moments=config.optimizer_moments,  # type: ignore[attr-defined]
        networks=networks,
        predicts_tokens=not issubclass(config, ScorerRunConfig),
        defaults=defaults(config),
        presets={library: values for library, values in presets.items() if values},
    )


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    return [
        leaf
        for key, value in values.items()
        for leaf in (_leaves(value, (*path, key)) if isinstance(value, Mapping) else [((*path, key), value)])
    ]


def planned_recipes() -> str:
    """The file: keys of all recipes of text, and what is planned with of each."""
    found, keys = {}, set[str]()
    for name in recipe_families():
        config = load_recipe(name).config
        recipe = planned(name, config)
        if recipe is not None:
            plain = asdict(PlannedRecipe(rows=()))
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
