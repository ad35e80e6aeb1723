"""Answers in columns: the same completions in any order of arrival, and one digest for them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.core.fleet import GenerationAsk, RunnerArithmetic, pack_answers
from hone.core.generation import Completion, GenerationStats, LikeliestTokens, Request, SamplingParams
from hone.core.ragged import RaggedArray, offsets_of


def completion(request: Request, sample: int, length: int, draws: np.random.Generator) -> Completion:
    tokens = draws.integers(0, 9, length).astype(np.int32)
    masked = request.sampling.truncates
    widths = draws.integers(1, 4, length)
    mask = RaggedArray(values=np.arange(widths.sum(), dtype=np.int32), offsets=offsets_of(widths)) if masked else None
    top = request.sampling.top_logprobs
    likeliest = LikeliestTokens(tokens=np.ones((length, top), np.int32), logp=np.ones((length, top), np.float32))
    return Completion(
        request_id=request.id,
        sample_index=sample,
        tokens=tokens,
        logp=draws.random(length).astype(np.float32),
        sampled_logp=draws.random(length).astype(np.float32),
        version=np.full(length, 3, np.int32),
        finish_reason=("eos", "stop", "length")[length % 3],
        sampling_mask=mask,
        trailing_characters=length % 2,
        turn=request.turn,
        likeliest=likeliest if top else None,
        routing=np.full((length + 1, 2, 1), 7, np.uint8) if length % 2 else None,
    )


def same(left: Completion, right: Completion) -> bool:
    arrays = ("tokens", "logp", "sampled_logp", "version")
    equal = all(np.array_equal(vars_of(left)[name], vars_of(right)[name]) for name in arrays)
    mine, theirs = left.sampling_mask, right.sampling_mask
    masks = mine is theirs or (
        mine is not None
        and theirs is not None
        and np.array_equal(mine.values, theirs.values)
        and np.array_equal(mine.offsets, theirs.offsets)
    )
    routes = left.routing is right.routing or np.array_equal(left.routing, right.routing)
    plain = (left.request_id, left.sample_index, left.finish_reason, left.trailing_characters, left.turn)
    return (
        equal
        and masks
        and routes
        and plain == (right.request_id, right.sample_index, right.finish_reason, right.trailing_characters, right.turn)
    )


def vars_of(one: Completion) -> dict[str, np.ndarray]:
    return {"tokens": one.tokens, "logp": one.logp, "sampled_logp": one.sampled_logp, "version": one.version}


@given(seed=st.integers(0, 999), requests=st.integers(0, 4), order=st.randoms(use_true_random=False))
def test_answers_come_back_whole_whatever_the_order(seed, requests, order) -> None:
    draws = np.random.default_rng(seed)
    made = tuple(
        Request(
            id=f"p{place}",
            prompt=np.ones(2, np.int32),
            samples=int(draws.integers(1, 4)),
            sampling=SamplingParams(max_tokens=6, top_k=2 * (place % 2), top_logprobs=place % 3),
            first_sample=place,
            turn=place,
        )
        for place in range(requests)
    )
    ask = GenerationAsk(number=1, requests=made, round=0, version=3)
    done = [
        completion(one, one.first_sample + place, int(draws.integers(1, 7)), draws)
        for one in made
        for place in range(one.samples)
    ]
    assert ask.answers == len(done)
    shuffled = order.sample(done, len(done))
    stats = GenerationStats()
    first, second = pack_answers(ask, done, stats=stats), pack_answers(ask, shuffled, stats=stats)
    assert first.digest == second.digest
    back = second.completions(ask)
    assert len(back) == len(done)
    assert all(same(mine, theirs) for mine, theirs in zip(back, done, strict=True))
    if done:
        changed = shuffled[0].logp.copy()
        changed[0] = np.nextafter(changed[0], np.float32(2))
        assert pack_answers(ask, done, stats=stats).digest == first.digest
        shuffled[0].logp[:] = changed
        assert pack_answers(ask, done, stats=stats).digest != first.digest


def test_differences_of_arithmetic_name_both_sides() -> None:
    one = RunnerArithmetic(runner="native float32 (avx2)", device="cpu", build="a")
    other = RunnerArithmetic(runner="native float32 (avx512)", device="cpu", build="b")
    assert one.differences(one) == []
    assert one.differences(other) == [
        "runner: native float32 (avx2) and native float32 (avx512)",
        "build of the kernels: a and b",
    ]
