"""Presets of other libraries name functions, arguments and weights that exist, and say how they differ."""

import inspect
from functools import partial

import pytest
import torch
from loss_presets import PRESETS, LossPreset, find_preset

from hone.core.errors import ConfigError
from hone.objectives import policy


@pytest.mark.parametrize("entry", PRESETS, ids=lambda entry: f"{entry.library}-{entry.algorithm}")
def test_a_preset_can_be_called(entry: LossPreset) -> None:
    parameters = inspect.signature(entry.function).parameters
    assert set(entry.values) <= set(parameters)
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in entry.values)
    partial(entry.function, **entry.values)
    assert len(entry.difference) > 20
    assert "\n" not in entry.difference
    assert find_preset(entry.library, entry.algorithm) is entry, "the name stands twice"


def test_verl_s_grpo_stops_blame_at_three() -> None:
    now, then = torch.tensor([0.0]), torch.tensor([-1.5])
    entry = find_preset("verl", "grpo")
    loss = entry.function(now, then, torch.tensor([-1.0]), **entry.values).loss
    assert loss.item() == pytest.approx(3.0)
    assert policy.clipped_surrogate(now, then, torch.tensor([-1.0])).loss.item() == pytest.approx(4.4817, rel=1e-4)


def test_trl_s_cispo_caps_every_ratio_at_a_fifth() -> None:
    logp = torch.tensor([-0.7])
    entry = find_preset("trl", "cispo")
    assert entry.function(logp, logp, torch.tensor([1.0]), **entry.values).loss.item() == pytest.approx(0.14)


def test_unknown_names_are_refused_with_what_is_near() -> None:
    with pytest.raises(ConfigError, match="no presets of library 'tlr'; did you mean trl"):
        find_preset("tlr", "grpo")
    with pytest.raises(ConfigError, match="no preset 'gsop' of verl; did you mean gspo"):
        find_preset("verl", "gsop")
