"""The presets of configs and the documented losses of the same libraries tell the same values."""

from typing import Any

import pytest
from loss_presets import PRESETS as LOSSES
from loss_presets import LossPreset

from hone.text.presets import PRESETS

KEYS = {"low": "clip_low", "high": "clip_high"}
"""Argument of a loss -> key of `algorithm`, where they differ."""
RECIPES = {("verl", "gspo"): "gspo_token"}
"""Recipe of a library's algorithm, where it has another name."""


def recipe_of(entry: LossPreset) -> str:
    return RECIPES.get((entry.library, entry.algorithm), entry.algorithm)


@pytest.mark.parametrize(
    "entry",
    [entry for entry in LOSSES if recipe_of(entry) in PRESETS[entry.library]],
    ids=lambda entry: f"{entry.library}-{entry.algorithm}",
)
def test_a_preset_is_the_documented_loss(entry: LossPreset) -> None:
    values: Any = PRESETS[entry.library][recipe_of(entry)]["algorithm"]
    told = {KEYS.get(name, name): value for name, value in entry.values.items()}
    assert {name: values[name] for name in told} == told
    assert entry.scheme is not None
    assert values["aggregation"] == entry.scheme.__name__
