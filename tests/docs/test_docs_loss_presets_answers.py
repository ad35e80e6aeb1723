"""Presets: each is what its function can take, and says something."""

import inspect

import torch
from loss_presets_answers import PRESETS

from hone.objectives.preference import dpo, robust_dpo


def test_each_fits_its_function_and_is_named_once() -> None:
    for preset in PRESETS:
        keywords = {
            name
            for name, parameter in inspect.signature(preset.function).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        assert set(preset.values) <= keywords, preset.algorithm
        assert len(preset.difference) > 20
    assert len({(preset.library, preset.algorithm) for preset in PRESETS}) == len(PRESETS)


def test_robust_dpo_as_trl_has_it_is_dpo() -> None:
    (preset,) = [preset for preset in PRESETS if preset.function is robust_dpo]
    chosen, rejected = torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close(robust_dpo(chosen, rejected, **preset.values).loss, dpo(chosen, rejected).loss)
