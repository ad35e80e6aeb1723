"""Turns of a dialogue: each reads its new tokens only, and is bit for bit what it would be if it read everything."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from engines import CONFIG, by_name, engine, request, same
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.core.generation import Completion, Request, generate
from hone.engine.engine import EmbeddedEngine
from hone.engine.native.library import unavailable_reason
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model

HEARD = np.array([5, 6, 7], np.int32)
FIRST = [replace(request(k, samples=2, max_tokens=9), keep_s=60.0) for k in range(4)]


@dataclass
class ManualClock:
    seconds: float = 0.0

    def now_s(self) -> float:
        return self.seconds

    def monotonic_s(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def model() -> Decoder:
    return new_model(CONFIG, seed=1)


@pytest.fixture(scope="module", params=["torch", "native"])
def kind(request) -> str:
    if request.param == "native" and (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    return request.param


def turn_after(before: Request, done: Completion, number: int, heard: np.ndarray = HEARD) -> Request:
    text = np.concatenate([before.prompt, done.tokens, heard])
    sample = done.sample_index
    return replace(before, prompt=text, samples=1, first_sample=sample, turn=number, after=before.id)


def talk(runner: EmbeddedEngine, turns: int = 3) -> dict[tuple[str, int, int], Completion]:
    """All dialogues of `FIRST`, each going on as soon as it was answered."""
    runner.submit(FIRST)
    asked = {(one.id, sample): one for one in FIRST for sample in range(one.samples)}
    found: dict[tuple[str, int, int], Completion] = {}
    while (done := runner.next_completion()) is not None:
        name = done.request_id, done.sample_index
        found[*name, done.turn] = done
        if done.turn + 1 < turns:
            asked[name] = turn_after(asked[name], done, done.turn + 1)
            runner.submit([asked[name]])
    return found


def free_pages(runner: EmbeddedEngine) -> int:
    runner._scheduler.texts.cache.reset(runner.version)
    return runner._scheduler.pool.free


@pytest.fixture(scope="module")
def read_anew(model, kind):
    """Every turn by itself, in an engine that knows nothing."""
    found = talk(engine(model, slots=1, kind=kind))
    asked = {(one.id, sample): one for one in FIRST for sample in range(one.samples)}
    for number in range(3):
        for name, one in asked.items():
            (alone,) = by_name(generate(engine(model, slots=1, kind=kind), [one])).values() if number else (None,)
            assert alone is None or same(alone, found[*name, number])
            asked[name] = turn_after(one, found[*name, number], number + 1)
    return found


def test_a_turn_costs_its_new_tokens_only(model, kind):
    runner = engine(model, slots=2, eos=(), kind=kind)
    asked = replace(request(0, length=40, max_tokens=30), keep_s=60.0)
    (done,) = generate(runner, [asked])
    for number in (1, 2, 3):
        asked = turn_after(asked, done, number)
        (done,) = generate(runner, [asked])
        assert runner.stats.prefill_tokens == 1 + len(HEARD), "the answer's last token was not read before"
        assert runner.stats.cached_tokens == len(asked.prompt) - 1 - len(HEARD)
        (cold,) = generate(engine(model, slots=2, eos=(), kind=kind), [asked])
        assert same(done, cold)
    runner.cancel([asked.id])
    assert free_pages(runner) == runner.stats.pages, "the last turn is not kept beyond its request"


def test_an_answer_of_one_token_is_kept_too(model, kind):
    runner = engine(model, slots=2, eos=(), kind=kind)
    alone, group = (replace(request(k, length=37, samples=k, max_tokens=1), keep_s=60.0) for k in (1, 2))
    for asked, cost in ((alone, 1 + len(HEARD)), (group, 37 % 16 + 1 + len(HEARD))):
        done = by_name(generate(runner, [asked]))
        for one in done.values():
            after = turn_after(asked, one, 1)
            (warm,) = generate(runner, [after])
            assert runner.stats.prefill_tokens == cost, "an unfinished page of several answers belongs to none"
            (cold,) = generate(engine(model, slots=2, eos=(), kind=kind), [after])
            assert same(warm, cold)
        runner.cancel([asked.id])
    assert free_pages(runner) == runner.stats.pages


@examples(10)
@given(slots=st.integers(1, 9), spare=st.integers(0, 12), pass_tokens=st.sampled_from([1, 7, 512]))
def test_pressure_changes_no_bit(model, kind, read_anew, slots, spare, pass_tokens):
    runner = engine(model, slots=slots, context=106, pages=8 + spare, pass_tokens=pass_tokens, kind=kind)
    found = talk(runner)
    assert found.keys() == read_anew.keys()
    assert all(same(one, read_anew[name]) for name, one in found.items())
    runner.cancel()
    assert free_pages(runner) == 8 + spare


def test_a_turn_goes_on_with_several_samples_and_several_turns_go_on_from_one(model, kind):
    runner = engine(model, slots=4, eos=(), kind=kind)
    asked = replace(request(0, length=40, max_tokens=30), keep_s=60.0)
    (done,) = generate(runner, [asked])
    one, other = (
        replace(turn_after(asked, done, 1), id=id_, samples=3, after=asked.id) for id_ in ("branch", "other branch")
    )
    for branch, read in ((one, 4), (other, 9)):  # the second finds whole pages only
        warm = by_name(generate(runner, [branch]))
        assert runner.stats.prefill_tokens == read
        cold = by_name(generate(engine(model, slots=4, eos=(), kind=kind), [branch]))
        assert all(same(found, cold[name]) for name, found in warm.items())


def test_a_turn_is_kept_until_its_time_and_not_longer(model):
    for waited, read in ((9.0, 4), (11.0, 24)):
        clock = ManualClock()
        runner = engine(model, slots=2, eos=(), clock=clock, page_tokens=64)
        asked = replace(request(0, length=10, max_tokens=11), keep_s=10.0)
        (done,) = generate(runner, [asked])
        clock.seconds += waited
        list(generate(runner, [turn_after(asked, done, 1)]))
        assert runner.stats.prefill_tokens == read


def test_another_history_is_read_anew(model, kind):
    runner = engine(model, slots=2, eos=(), kind=kind)
    asked = replace(request(0, length=10, max_tokens=11), keep_s=60.0)
    (done,) = generate(runner, [asked])
    rewritten = turn_after(asked, done, 1)
    rewritten.prompt[3] += 1
    (warm,) = generate(runner, [rewritten])
    assert runner.stats.prefill_tokens == len(rewritten.prompt)
    (cold,) = generate(engine(model, slots=2, eos=(), kind=kind), [rewritten])
    assert same(warm, cold)
    assert free_pages(runner) == runner.stats.pages - 3, "the old turn is gone; the new one has 24 + 10 tokens"


@pytest.mark.parametrize("on_publish", ["recompute", "keep"])
def test_new_weights_read_the_dialogue_anew(model, on_publish):
    runner = engine(model, slots=2, eos=(), on_publish=on_publish)
    asked = replace(request(0, length=40, max_tokens=30), keep_s=60.0)
    (done,) = generate(runner, [asked])
    runner.publish(1)
    after = turn_after(asked, done, 1)
    list(generate(runner, [after]))
    assert runner.stats.prefill_tokens == len(after.prompt)
    assert runner.stats.stale_tokens == 0, "whoever begins later reads no older keys"


def test_a_turn_with_keys_of_older_weights_is_not_kept(model):
    runner = engine(model, slots=2, eos=(), on_publish="keep")
    asked = replace(request(0, length=40, max_tokens=30), keep_s=60.0)
    runner.submit([asked])
    for _ in range(5):
        runner._step()
    runner.publish(1)
    done = runner.next_completion()
    after = turn_after(asked, done, 1)
    list(generate(runner, [after]))
    assert runner.stats.prefill_tokens == len(after.prompt)


def test_the_same_dialogue_again_keeps_one_turn(model):
    runner = engine(model, slots=2)
    for number in range(3):
        list(generate(runner, FIRST, round=number))
        assert len(runner._scheduler.texts.kept) == 8
    runner.cancel([FIRST[0].id])
    assert len(runner._scheduler.texts.kept) == 6
    runner.cancel()
    assert free_pages(runner) == runner.stats.pages


def test_impossible_times_are_refused(model):
    asked = [replace(FIRST[0], keep_s=-1.0), replace(FIRST[1], keep_s=float("nan"))]
    with pytest.raises(DataError, match=r"'p0': keep_s must be a finite number of seconds.*got -1") as error:
        engine(model).submit(asked)
    assert "'p1'" in str(error.value)
