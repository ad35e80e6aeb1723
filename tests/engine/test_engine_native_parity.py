"""The compiled runner beside the trainer's own forward: every family, odd sizes, long texts, publishing."""

from pathlib import Path

import engine_native_cases as cases
import numpy as np
import pytest
import torch
from real_chat_model import smollm2

from hone.core.errors import ConfigError
from hone.engine.native.runner import NativeRunner
from hone.models.language import decoder
from hone.models.language.hf_checkpoint import load_model
from hone.models.language.rope import RopeConfig
from hone.models.language.tokenizers import load_tokenizer

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


FAMILIES = [
    ("mistral", {"extra": {"sliding_window": 21}}),  # a page and some
    ("ministral3", {"rope": cases.MINISTRAL}),
    ("gemma2", {"extra": {"sliding_window": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}}),
    ("gemma3_text", {"head_dim": 16, "extra": {"sliding_window": 17, "sliding_window_pattern": 2}}),
    ("phi3", {"rope": RopeConfig(fraction=0.75, kind="longrope", factor=4.0, original_max_positions=16,
                                 short_factor=(1.0,) * 6, long_factor=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0)),
              "head_dim": 16}),
    ("smollm3", {"extra": {"no_rope_layers": [1, 0]}}),
    ("olmo2", {}),
    ("olmo3", {"layers": 4, "extra": {"sliding_window": 1}}),
    ("granite", {"extra": {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                           "attention_multiplier": 0.2}}),
    ("glm4", {"rope": RopeConfig(fraction=0.5), "head_dim": 12, "attention_bias": True}),
    ("cohere", {"extra": {"logit_scale": 0.5}}),
    ("cohere2", {"layers": 4, "extra": {"sliding_window": 33}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "numbers"), FAMILIES)
def test_every_family_is_the_trainers(family, numbers):
    """In float32 to rounding, and over keys and values in INT8 nearly."""
    model = cases.model_of(family, **numbers)
    model.fix_rope_length(70)
    sequences = cases.texts(model.config.vocab_size, [3, 40, 17, 70])
    expected = cases.by_the_trainer(model, sequences, temperature=0.7)
    for isa in cases.sets()[-1:]:
        difference = cases.scored(cases.runner_of(model, isa=isa), sequences, temperature=0.7).logp - expected
        assert np.abs(difference).max() <= 1e-4, isa
        coded = cases.runner_of(model, isa=isa, dtype="bfloat16", cache="int8")
        assert np.abs(cases.scored(coded, sequences, temperature=0.7).logp - expected).mean() <= 0.03, isa


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


def test_the_trainers_head_in_bfloat16_is_the_engines(monkeypatch):
    """float32 sums of rounded numbers on both sides: with the same rounding of the head, the trainer in bfloat16 is no
    further from the engine than a head in float32 is, and log-probabilities move less than the layers' rounding."""
    model = cases.model_of(hidden_size=128, vocab_size=700)
    sequences = cases.texts(700, [40, 90])
    exact = cases.by_the_trainer(model, sequences)
    cases.sets("bfloat16")
    runner = NativeRunner(model, vocab_used=700, threads=1, dtype="bfloat16")
    runner.publish()
    engine = cases.scored(runner, sequences).logp
    model.set_compute_dtype("bfloat16")
    trainer = dict[bool, np.ndarray]()
    for half in (True, False):
        monkeypatch.setattr(decoder, "uses_half_products", lambda _device, _compute, half=half: half)
        trainer[half] = cases.by_the_trainer(model, sequences)
    gaps = {half: np.abs(engine - logp).mean() for half, logp in trainer.items()}
    assert 0 < gaps[True] <= 1.05 * gaps[False] < 0.02
    assert 0 < np.abs(trainer[True] - trainer[False]).mean() < 2 * np.abs(trainer[False] - exact).mean()


@pytest.mark.slow
def test_the_mismatch_on_a_published_model_is_bounded():
    """SmolLM2 on 256 tokens of a page, both sides in bfloat16: 0.02 nats were measured."""
    model = load_model(smollm2())
    tokens = load_tokenizer(smollm2()).backend.encode(Path(__file__).read_text(encoding="utf-8")).ids[:256]
    runner = NativeRunner(model, vocab_used=model.config.vocab_size, threads=1, dtype="bfloat16")
    runner.publish()
    model.set_compute_dtype("bfloat16")
    sequences = [np.array(tokens, np.int32)]
    difference = np.abs(cases.scored(runner, sequences).logp - cases.by_the_trainer(model, sequences))
    assert difference.mean() < 0.03


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
