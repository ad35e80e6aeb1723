"""CUDA: where each token goes, checked anywhere; attention, recorded steps and invariance, checked with `-m gpu`."""

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, request, same
from shared_prompts import pack_shared_prompts

from hone.core.generation import generate
from hone.engine import flash
from hone.engine.choose import RunnerChoice
from hone.engine.engine import EmbeddedEngine
from hone.engine.flash import flash_inputs
from hone.engine.limits import default_limits
from hone.engine.stops import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.engine.work import ForwardBatch, SamplerInput
from hone.models.language.init import new_model

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
    places = flash_inputs(work, rows=6, scratch=9, page_tokens=4, device=torch.device("cpu"))
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
            store[block_table[row].long()].flatten(0, 1).repeat_interleave(group, dim=1) for store in (keys, values)
        )
        for token in range(first, end):
            seen = used - (end - 1 - token)
            scores = torch.einsum("hd,khd->hk", query[token], k[:seen]) * scale
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), v[:seen])
    return out


@pytest.mark.parametrize("fixed", [None, 48])
def test_the_cuda_path_with_a_slow_kernel_says_what_the_cpu_says(monkeypatch, fixed):
    """Pages, tables and padding as a GPU would get them; only the kernel and the recording are replaced."""
    model = new_model(CONFIG, seed=1)
    made = engine_of(model, slots=5, fixed=fixed)
    made.runner._flash = True

    def eager(self, places):
        attend = flash.FlashPagedAttention(self._shape, self._store, places, splits=self._splits)
        return self._run(places.tokens, places.positions, attend, self._linear)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_slowly)
    monkeypatch.setattr(flash.CudaGraphSteps, "run", eager)
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


@pytest.mark.gpu
def test_answers_on_cuda_are_what_the_trainer_says():
    model = new_model(CONFIG, seed=1).to("cuda", torch.bfloat16)
    gaps = []
    for asked in ASKED:
        done = sorted(generate(engine_of(model, slots=5), [asked]), key=lambda one: one.sample_index)
        packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])], device="cuda")
        with torch.no_grad():
            logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp.float().cpu().numpy()
        gaps.append(np.abs(np.concatenate([one.logp for one in done]) - logp))
    assert np.concatenate(gaps).mean() < 0.02
    assert np.concatenate(gaps).max() < 0.5


@pytest.mark.gpu
def test_a_fixed_size_of_passes_makes_answers_independent_of_their_company():
    model = new_model(CONFIG, seed=1).to("cuda", torch.bfloat16)
    many = by_name(generate(engine_of(model, slots=36, fixed=512), ASKED))
    few = by_name(generate(engine_of(model, slots=3, fixed=512), ASKED[::-1]))
    assert all(same(done, few[name]) for name, done in many.items())
