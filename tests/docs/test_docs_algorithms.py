"""Every recipe says what the algorithm pages need: its parts, source, limitation and defaults."""

import pytest
from algorithm_page import parts_of, presets_of
from loss_presets import PRESETS

from hone.recipes.registry import load_recipe, recipe_names
from hone.run.job import RecipeParts, RecipeSpec, algorithm_defaults
from hone.text.rl import TextRunConfig

RECIPES = recipe_names()
WITHOUT_LOSS = {"collect"}
"""Recipes that learn nothing."""


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_its_parts_its_source_and_its_limitation(name: str) -> None:
    entry = load_recipe(name)
    assert entry.parts.source and entry.parts.credit
    assert entry.parts.loss or name in WITHOUT_LOSS
    assert entry.limitation.endswith(".")
    assert all(part.__doc__ for part in parts_of(entry))


def test_every_preset_of_a_policy_loss_is_told_by_a_recipe() -> None:
    entries = [load_recipe(name) for name in RECIPES]
    told = {preset.algorithm for entry in entries for preset in presets_of(entry)}
    # what corrects for mismatch is a setting of every recipe (learner.ratio), not a recipe
    assert {preset.algorithm for preset in PRESETS} - told == {"mismatch", "rejection"}
    assert [name for entry in entries for name in entry.presets if name not in told] == []


def test_parts_in_a_line() -> None:
    parts = RecipeParts(source="Live", credit=(dict, list), loss=(str, int), weights=(set,))
    assert parts.describe() == "Live -> dict(list) -> str + int, set"
    assert RecipeParts().describe() == ""


def test_defaults_are_those_of_the_config() -> None:
    grpo: RecipeSpec = load_recipe("grpo")
    assert algorithm_defaults(grpo.config)["clip_high"] == "0.2"
    assert algorithm_defaults(load_recipe("dro").config)["beta"] == "required"
    assert algorithm_defaults(load_recipe("rloo").config)["kl_in_reward"].startswith('{ kind = "fixed", weight = 0.05')
    assert algorithm_defaults(TextRunConfig) == {}
