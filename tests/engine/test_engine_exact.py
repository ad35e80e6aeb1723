"""What a completion is does not depend on pages, chunks, preemption or the cache; a score is what was recorded."""

import numpy as np
import pytest
import torch
from engines import CONFIG, by_name, engine, request, same
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shared_prompts import pack_shared_prompts

from hone.core.errors import DataError
from hone.core.generation import SamplingParams, ScoreRequest, generate
from hone.engine.native.library import unavailable_reason
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows, row_targets

ASKED = [
    request(0, samples=5, max_tokens=40),
    request(1, samples=2, temperature=0.6, max_tokens=30),
    request(2, samples=1, length=70),
    request(3, samples=4, top_k=3, min_p=0.05),
    request(4, samples=2, top_p=0.7, temperature=1.5),
    request(5, samples=40, max_tokens=2),
    request(6, samples=2, length=16, max_tokens=90),
]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return new_model(CONFIG, seed=1)


@pytest.fixture(scope="module", params=["torch", "native", "native_int8"])
def kind(request) -> str:
    if request.param.startswith("native") and (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def alone(model, kind):
    """Each request by itself, in an engine of one slot with all the pages it could want."""
    return by_name(done for asked in ASKED for done in generate(engine(model, slots=1, kind=kind), [asked]))


@examples(12)
@given(
    slots=st.integers(1, 12),
    order=st.permutations(ASKED),
    spare=st.integers(0, 8),
    pass_tokens=st.sampled_from([1, 7, 64, 512]),
    pass_draws=st.sampled_from([1, 5, 4096]),
    longest_first=st.booleans(),
)
def test_pages_chunks_and_preemption_change_no_bit(
    model, kind, alone, slots, order, spare, pass_tokens, pass_draws, longest_first
):
    runner = engine(
        model,
        slots=slots,
        context=106,  # the longest sequence needs 7 pages
        pages=8 + spare,
        pass_tokens=pass_tokens,
        pass_draws=pass_draws,
        longest_first=longest_first,
        kind=kind,
    )
    found = by_name(generate(runner, order))
    assert found.keys() == alone.keys()
    for name, done in found.items():
        assert same(done, alone[name]), name
        assert (done.sampling_mask is None) == (alone[name].sampling_mask is None)
        if done.sampling_mask is not None:
            assert np.array_equal(done.sampling_mask.values, alone[name].sampling_mask.values)


def test_preemption_happens_and_is_counted(model, kind, alone):
    runner = engine(model, slots=8, context=106, pages=9, kind=kind)
    assert all(same(done, alone[name]) for name, done in by_name(generate(runner, ASKED)).items())
    assert runner.stats.preempted > 0


def test_a_score_is_bit_for_bit_what_was_recorded(model, kind, alone):
    asked = {one.id: one for one in ASKED}
    names = list(alone)
    texts = [
        ScoreRequest(prompt=asked[name].prompt, tokens=alone[name, number].tokens, sampling=asked[name].sampling)
        for name, number in names
    ]
    for limits in ({}, {"pass_tokens": 5}, {"pass_draws": 3}):
        for name, scored in zip(names, engine(model, kind=kind, **limits).score(texts), strict=True):
            assert np.array_equal(scored.logp, alone[name].logp), name
            assert np.array_equal(scored.sampled_logp, alone[name].sampled_logp), name


def test_scores_beside_answers_change_neither(model, kind, alone):
    runner = engine(model, slots=3, kind=kind)
    text = ScoreRequest(prompt=ASKED[0].prompt, tokens=alone["p0", 0].tokens, sampling=ASKED[0].sampling)
    stream = generate(runner, ASKED)
    done = [next(stream) for _ in range(5)]
    (scored,) = runner.score([text])
    done += list(stream)
    assert np.array_equal(scored.logp, alone["p0", 0].logp)
    assert all(same(found, alone[name]) for name, found in by_name(done).items())
    assert len(done) == len(alone)


def test_a_token_that_was_cut_off_scores_minus_infinity(model, kind):
    sampling = SamplingParams(max_tokens=1, top_k=1)
    texts = [ScoreRequest(prompt=ASKED[0].prompt, tokens=np.array([k], np.int32), sampling=sampling) for k in range(24)]
    best = engine(model, kind=kind).score(texts)
    assert sorted(one.sampled_logp[0] for one in best) == [-np.inf] * 23 + [0.0]
    assert np.isclose(sum(np.exp(one.logp[0].astype(float)) for one in best), 1.0, atol=1e-5)


def test_a_second_turn_reads_only_what_is_new(model, kind):
    """The first turn's text is in the cache, but for its last, unfinished page; the answer is as without a cache."""
    first = request(0, length=40, max_tokens=30)
    runner = engine(model, slots=2, eos=(), kind=kind)
    (done,) = generate(runner, [first])
    text = np.concatenate([first.prompt, done.tokens, np.array([5, 6, 7], np.int32)])
    second = type(first)(id="turn 2", prompt=text, samples=3, sampling=SamplingParams(max_tokens=20))
    warm = by_name(generate(runner, [second]))
    assert runner.stats.cached_tokens == 64  # of 73 tokens, whole pages of 16
    assert runner.stats.prefill_tokens == 9
    assert runner.stats.prefix_hit_rate == 64 / 73
    cold = by_name(generate(engine(model, slots=2, eos=(), kind=kind), [second]))
    assert all(same(one, cold[name]) for name, one in warm.items())


def test_every_text_that_cannot_be_scored_is_named(model):
    sampling = SamplingParams(max_tokens=1)
    ok, none = np.array([1], np.int32), np.zeros(0, np.int32)
    texts = [
        ScoreRequest(prompt=ok, tokens=none, sampling=sampling),
        ScoreRequest(prompt=np.ones(190, np.int32), tokens=np.ones(11, np.int32), sampling=sampling),
        ScoreRequest(prompt=ok, tokens=np.array([99], np.int32), sampling=sampling),
    ]
    with pytest.raises(DataError) as error:
        engine(model).score(texts)
    assert len(error.value.messages) == 3
    assert "text 1: 190 + 11 tokens do not fit in 200 positions" in str(error.value)


def test_what_was_kept_is_what_could_have_been_drawn(model, alone):
    for name, done in alone.items():
        if done.sampling_mask is None:
            continue
        assert len(done.sampling_mask.offsets) == len(done.tokens) + 1
        for place, token in enumerate(done.tokens):
            ids = done.sampling_mask.values[done.sampling_mask.offsets[place] : done.sampling_mask.offsets[place + 1]]
            cut = ids[:1].tolist() == [-1]  # where more than half could be drawn, the others are named
            assert (token in ids) is not cut, name
            assert (np.diff(ids) > 0).all()
    top3 = [done for name, done in alone.items() if name[0] == "p3"]
    assert all(np.diff(done.sampling_mask.offsets).max() <= 3 for done in top3)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_recorded_log_probabilities_are_the_trainers_on_a_trained_model(trained, kind, temperature):
    gaps = []
    for number in range(4):
        asked = request(number, samples=8, max_tokens=60, temperature=temperature)
        done = sorted(generate(engine(trained, slots=8, kind=kind), [asked]), key=lambda one: one.sample_index)
        packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])])
        with torch.no_grad():
            logp = trained.token_logprobs(trained.hidden(packed)[targets.at], targets.chosen, temperature).logp.numpy()
        gaps.append(np.abs(np.concatenate([one.logp for one in done]) - logp))
    gap = np.concatenate(gaps)
    assert len(gap) > 300
    worst, mean = (0.5, 0.02) if kind == "native_int8" else (1e-4, 2e-6)
    assert gap.max() <= worst
    assert gap.mean() <= mean


@pytest.fixture(scope="module")
def trained() -> Decoder:
    """Taught for a moment to count upwards: its distributions are sharp, as those of a trained model are."""
    policy = new_model(CONFIG, seed=3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    rows = [((np.arange(40) + start) % 23 + 1).astype(np.int32) for start in range(12)]
    packed = pack_rows(rows)
    targets = row_targets(packed)
    for _ in range(30):
        loss = -policy.token_logprobs(policy.hidden(packed)[targets.at], targets.chosen).logp.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.5
    return policy


def test_passes_of_one_fixed_size_give_the_same_bits(model):
    """What CUDA's `deterministic = "batch"` does, here where it is not needed."""
    free = by_name(generate(engine(model, slots=6), ASKED))
    held = by_name(generate(engine(model, slots=6, pass_tokens=64, fixed_tokens=96), ASKED))
    assert all(same(done, held[name]) for name, done in free.items())


def test_a_score_does_not_wait_for_answers_that_have_not_been_begun(model):
    runner = engine(model, slots=2, eos=())
    runner.submit([request(number, samples=8, max_tokens=30) for number in range(10)])
    runner.score([ScoreRequest(prompt=ASKED[0].prompt, tokens=ASKED[1].prompt, sampling=ASKED[0].sampling)])
    assert runner.stats.tokens < 10
    runner.cancel()
    assert list(generate(runner, [])) == []
