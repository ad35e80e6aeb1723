"""CUDA: where each token goes, checked without a GPU; the rest is checked with `-m gpu` (tests/gpu)."""

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, request
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shared_prompts import pack_shared_prompts

from hone.core.generation import generate
from hone.engine import torch_runner
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import (
    BLOCK,
    TorchRunner,
    _casting_linear,
    _draw_rows,
    _flash_inputs,
    _HalfWeights,
    _recorded_rows,
    _RecordedSteps,
    sample_tokens,
)
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput
from hone.models.language import decoder
from hone.models.language.fused_ops import mixed_linear
from hone.models.language.init import new_model
from hone.models.native import library as products

ASKED = [request(number, samples=4, length=9 * number + 3, max_tokens=30 + 5 * number) for number in range(9)]


def test_places_by_hand():
    none = np.zeros(0)
    draws = SamplerInput(
        token_index=none,
        forced_token=none,
        uniform=none,
        temperature=none,
        top_k=none,
        top_p=none,
        min_p=none,
        greedy=none,
    )
    work = ForwardBatch(
        tokens=np.array([7, 8, 9, 5], np.int32),
        positions=np.array([3, 4, 5, 0], np.int32),
        sequence=np.array([0, 0, 0, 1], np.int32),
        pages=np.array([[6, 2], [1, 0]], np.int32),
        draws=draws,
    )
    places = _flash_inputs(work, rows=6, scratch=9, page_tokens=4, device=torch.device("cpu"))
    assert places.tokens.tolist() == [7, 8, 9, 5, 0, 0]
    assert places.page.tolist() == [6, 2, 2, 1, 9, 9]
    assert places.slot.tolist() == [3, 0, 1, 0, 0, 0]
    assert places.starts.tolist() == [0, 3, 4, 5, 6]
    assert places.used.tolist() == [6, 1, 1, 1]
    assert places.pages.tolist() == [[6, 2], [1, 0], [9, 9], [9, 9]]
    assert places.longest == 3


def attend_slowly(query, keys, values, starts, _, most_query, most_key, *, seqused_k, block_table, scale, **options):
    """What torch's kernel promises, one token at a time."""
    assert options["window_size"] == (-1, 0)
    out = torch.empty_like(query)
    group = query.shape[1] // keys.shape[2]
    for row in range(len(block_table)):
        first, end, used = int(starts[row]), int(starts[row + 1]), int(seqused_k[row])
        assert end - first <= most_query
        assert used <= most_key
        k, v = (
            store[block_table[row].long()].flatten(0, 1).float().repeat_interleave(group, dim=1)
            for store in (keys, values)
        )
        for token in range(first, end):
            seen = used - (end - 1 - token)
            scores = torch.einsum("hd,khd->hk", query[token].float(), k[:seen]) * scale
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), v[:seen])
    return out


@pytest.mark.parametrize("fixed", [None, 48])
def test_the_cuda_path_with_a_slow_kernel_says_what_the_cpu_says(monkeypatch, fixed):
    """Pages, tables and padding as a GPU would get them; only the kernel and the recording are replaced."""
    model = new_model(CONFIG, seed=1)
    made = engine_of(model, slots=5, fixed=fixed)
    made.runner._flash = True

    def not_recorded(self, inputs):
        return lambda: self._step(inputs)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_slowly)
    monkeypatch.setattr(_RecordedSteps, "_record", not_recorded)
    asked = [request(number, samples=2, length=40 * number + 3, max_tokens=8) for number in range(4)]
    found, plain = by_name(generate(made, asked)), by_name(generate(engine_of(model, slots=5), asked))
    for name, done in found.items():
        assert np.array_equal(done.tokens, plain[name].tokens)
        np.testing.assert_allclose(done.logp, plain[name].logp, atol=1e-5)


def engine_of(model, *, slots: int, fixed: int | None = None) -> EmbeddedEngine:
    runner = TorchRunner(model, vocab_used=VOCAB, fixed_tokens=fixed)
    limits = default_limits(slots=slots, page_tokens=runner.page_tokens, sequence_tokens=200, vocab=VOCAB)
    chosen = RunnerChoice(runner=runner, own_weights=False)
    return EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=VOCAB), limits=limits, seed=0)


def test_generation_computes_what_a_mixed_precision_trainer_does(monkeypatch):
    """bfloat16 copies of the weights, read anew at every publication; the residual stream stays in float32."""
    monkeypatch.setattr(torch_runner, "_computes_in_half", lambda _model: True)
    monkeypatch.setattr(decoder, "uses_half_products", lambda _device, _compute: True)
    model = new_model(CONFIG, seed=1)
    model.set_compute_dtype("bfloat16")
    made = engine_of(model, slots=5)
    for version in (2, 3):
        made.publish(version)
        for asked in (request(number, samples=2, length=30 * number + 3, max_tokens=8) for number in range(3)):
            done = sorted(generate(made, [asked]), key=lambda one: one.sample_index)
            packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])])
            with torch.no_grad():
                logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp.numpy()
            # The trainer on a CPU rounds its scores of attention, too.
            np.testing.assert_allclose(np.concatenate([one.logp for one in done]), logp, atol=0.06)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version)))


def test_products_of_copies_are_the_trainer_s(monkeypatch):
    monkeypatch.setattr(products, "widens_half_products", lambda: False)  # on a GPU torch has products of its own
    model = new_model(CONFIG, seed=1)
    half = _HalfWeights(model)
    for _ in range(2):
        half.refresh()
        for layer in model.layers:
            x = torch.randn(5, CONFIG.hidden_size)
            expected = mixed_linear(x, layer.qkv.weight, layer.qkv.bias)
            assert torch.equal(half.linear(x, layer.qkv.weight, layer.qkv.bias), expected)
            assert torch.equal(_casting_linear(x, layer.qkv.weight, layer.qkv.bias), expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)


def drawn_both(logits: torch.Tensor, **changes) -> tuple[SamplerOutput, SamplerOutput]:
    """By blocks, and by the plain sampler; three rows of padding behind the logits."""
    count = len(logits)
    settings = {
        "token_index": np.arange(count, dtype=np.int32),
        "forced_token": np.full(count, DRAW, np.int32),
        "uniform": np.linspace(0.01, 0.99, count),
        "temperature": np.linspace(0.3, 2, count).astype(np.float32),
        "top_k": np.zeros(count, np.int32),
        "top_p": np.ones(count, np.float32),
        "min_p": np.zeros(count, np.float32),
        "greedy": np.zeros(count, np.bool_),
    }
    draws = SamplerInput(**settings | changes)
    return _draw_rows(torch.cat([logits, torch.randn(3, logits.shape[1])]), draws), sample_tokens(logits, draws)


@given(
    vocab=st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 1000]),
    spread=st.sampled_from([0.0, 1.0, 30.0, 400.0]),
    seed=st.integers(0, 1000),
)
@examples(60)
def test_draws_by_blocks_are_the_sampler_s(vocab, spread, seed):
    """Extreme spreads leave most tokens without a probability, in whole blocks."""
    logits = spread * torch.randn(24, vocab, generator=torch.Generator().manual_seed(seed))
    ours, plain = drawn_both(logits)
    same = ours.token == plain.token
    assert same.sum() >= 23, "a draw may lie within rounding of a border"
    np.testing.assert_allclose(ours.logp[same], plain.logp[same], atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(ours.sampled_logp[same], plain.sampled_logp[same], atol=2e-5, rtol=1e-5)
    ends = drawn_both(logits, uniform=np.resize([0.0, np.nextafter(1, 0)], 24))[0]
    assert np.isfinite(ends.logp).all(), "the first and last draws have a probability, too"


def test_given_and_greedy_rows_and_rows_without_a_number():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    logits[2, 7] = torch.nan
    changes = {"forced_token": np.array([DRAW, 299, DRAW, 5], np.int32), "greedy": np.array([True, True, False, False])}
    ours, plain = drawn_both(logits, **changes)
    assert ours.token[[0, 1, 3]].tolist() == plain.token[[0, 1, 3]].tolist()
    np.testing.assert_allclose(ours.logp[[0, 1, 3]], plain.logp[[0, 1, 3]], atol=1e-5)
    np.testing.assert_allclose(ours.sampled_logp[[0, 1, 3]], plain.sampled_logp[[0, 1, 3]], atol=1e-5)
    assert np.isnan(ours.logp[2])
    assert 0 <= ours.token[2] < 300


def test_sizes_of_recorded_steps():
    assert [_recorded_rows(count) for count in (1, 2, 3, 4, 5, 7, 13, 25, 97, 130, 200)] == [
        1, 2, 3, 4, 6, 8, 16, 32, 128, 192, 256,
    ]  # fmt: skip
    assert all(count <= _recorded_rows(count) <= 1.5 * count for count in range(1, 300))
