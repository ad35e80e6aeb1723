"""The compiled runner beside the trainer's own forward: every family, odd sizes, long texts, publishing."""

import engine_native_cases as cases
import numpy as np
import pytest
import torch

from hone.core.errors import ConfigError
from hone.engine.native.runner import NativeRunner

VARIANTS = [
    ("llama", {"rope": cases.LLAMA3, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"hidden_size": 64, "heads": 8, "kv_heads": 8, "head_dim": 8, "tie_embeddings": False}),
    ("llama", {"rope": cases.YARN, "hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}),
    ("mistral", {"heads": 7, "kv_heads": 1, "head_dim": 24, "vocab_size": 17}),
    ("qwen2", {"rope": cases.LINEAR, "hidden_size": 33, "heads": 3, "kv_heads": 3, "head_dim": 18}),
    ("qwen2", {"heads": 6, "kv_heads": 1, "head_dim": 128, "intermediate_size": 200}),
    ("qwen3", {"rope": cases.YARN, "head_dim": 32, "attention_bias": True, "vocab_size": 130, "tie_embeddings": False}),
    ("qwen3", {"hidden_size": 72, "heads": 12, "kv_heads": 2, "head_dim": 80}),
]


@pytest.mark.parametrize(("family", "numbers"), VARIANTS)
def test_log_probabilities_are_the_trainers(family, numbers):
    model = cases.model_of(family, **numbers)
    sequences = cases.texts(model.config.vocab_size, [3, 40, 17, 70])
    expected = cases.by_the_trainer(model, sequences, temperature=0.7)
    for isa in cases.sets():
        found = cases.scored(cases.runner_of(model, isa=isa), sequences, temperature=0.7).logp
        difference = np.abs(found - expected)
        assert difference.max() <= 1e-4, isa
        assert difference.mean() <= 2e-6, isa


@pytest.mark.parametrize(("family", "numbers"), VARIANTS[:5])
def test_bfloat16_is_as_near_as_bfloat16_is(family, numbers):
    """Measured against the same weights in float32, not further away than the trainer's own bfloat16 forward."""
    model = cases.model_of(family, dtype="bfloat16", **numbers)
    sequences = cases.texts(model.config.vocab_size, [3, 40, 17, 70])
    expected = cases.by_the_trainer(cases.model_of(family, **numbers).bfloat16().float(), sequences)
    trainers = np.abs(cases.by_the_trainer(model, sequences) - expected).mean()
    for isa in cases.sets("bfloat16"):
        runner = cases.runner_of(model, isa=isa)
        assert runner.name == f"native bfloat16 ({isa})"
        assert np.abs(cases.scored(runner, sequences).logp - expected).mean() <= trainers, isa


def test_a_float32_model_may_be_run_in_bfloat16():
    model = cases.model_of()
    sequences = cases.texts(33, [40])
    cases.sets("bfloat16")
    runner = NativeRunner(model, vocab_used=33, threads=1, dtype="bfloat16")
    runner.publish()
    difference = np.abs(cases.scored(runner, sequences).logp - cases.by_the_trainer(model, sequences))
    assert 1e-5 < difference.max() < 0.1


def test_a_long_text():
    model = cases.model_of(hidden_size=32, max_positions=2048)
    sequences = cases.texts(33, [2048, 5])
    difference = np.abs(cases.scored(cases.runner_of(model), sequences).logp - cases.by_the_trainer(model, sequences))
    assert difference.max() <= 1e-4
    assert difference.mean() <= 2e-6


def test_ids_beyond_the_used_vocabulary_have_no_probability():
    model = cases.model_of()
    sequences = cases.texts(20, [30])
    found = cases.scored(cases.runner_of(model, vocab=20), sequences).logp
    np.testing.assert_allclose(found, cases.by_the_trainer(model, sequences, vocab=20), atol=1e-4)
    assert np.abs(found - cases.by_the_trainer(model, sequences)).max() > 1e-2


def test_weights_are_taken_up_by_publish_and_not_before():
    model = cases.model_of()
    sequences = cases.texts(33, [20, 30])
    runner = cases.runner_of(model)
    before = cases.scored(runner, sequences).logp
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert np.array_equal(cases.scored(runner, sequences).logp, before)
    runner.publish()
    after = cases.scored(runner, sequences).logp
    np.testing.assert_allclose(after, cases.by_the_trainer(model, sequences), atol=1e-4)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_numbers_are_told(dtype):
    model = cases.model_of(dtype=dtype)
    with torch.no_grad():
        model.layers[1].down.weight[3, 7] = torch.nan
    for isa in cases.sets(dtype):
        found = cases.scored(cases.runner_of(model, isa=isa), cases.texts(33, [9, 40]))
        assert np.isnan(found.logp).all(), isa


def test_weights_that_cannot_be_read_in_place_are_refused():
    model = cases.model_of(dtype="float64")
    cases.sets()
    with pytest.raises(ConfigError, match="float64"):
        NativeRunner(model, vocab_used=33, threads=1).publish()
    with pytest.raises(ConfigError, match="mmx"):
        cases.runner_of(cases.model_of(), isa="mmx")
