"""The bookkeeping without a model: pages are conserved, every sample ends once, and every pass reads its own text."""

import numpy as np
import pytest
from bookkeeping import LONGEST, PROMPTS, VOCAB, Bookkeeping
from counted_calls import count_calls
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.core.generation import Request, SamplingParams
from hone.core.random import uniforms
from hone.engine.engine import _SampleStreams
from hone.engine.samples import (
    TRANSITIONS,
    CachedUniforms,
    PrefillGroup,
    SampleEvent,
    SampleState,
    _SamplePhase,
)
from hone.engine.scheduler import Scheduler, SchedulerLimits
from hone.engine.session import StopRules, TokenizerRules
from hone.engine.text_pages import PagePool, PrefixCache
from hone.engine.work import SamplerOutput

TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(examples(120), stateful_step_count=30)


@examples(60)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 5),
    spare=st.sampled_from([0, 3, 40]),
    pass_tokens=st.sampled_from([1, 6, 64]),
    samples=st.integers(1, 4),
)
def test_turns_of_dialogues_read_their_own_text_and_leave_no_page(
    seed: int, slots: int, spare: int, pass_tokens: int, samples: int
) -> None:
    """Dialogues of short turns that go on, branch, wait, rewrite their history or end, whatever is published."""
    rng, machine = np.random.default_rng(seed), Bookkeeping()
    machine.begin(slots, spare, pass_tokens, 64, longest=False)
    for number in range(3):
        machine.ask(PROMPTS[number], samples, int(rng.integers(1, 4)), 3.0)
    for _ in range(60):
        event = rng.random()
        if machine.scheduler.busy and event < 0.6:
            machine.step()
        elif event < 0.65:
            machine.publish(bool(rng.integers(2)))
        elif event < 0.7:
            machine.wait()
        elif event < 0.72 and machine.said:
            name = list(machine.said)[rng.integers(len(machine.said))][0]
            machine.scheduler.cancel(lambda sample, name=name: sample.request.id == name)
            machine.waiting = {one: tokens for one, tokens in machine.waiting.items() if one[0] != name}
        elif machine.said:
            id_, number = list(machine.said)[rng.integers(len(machine.said))]
            text = np.append(machine.said.pop((id_, number)), rng.integers(1, VOCAB, rng.integers(1, 4)))
            if rng.random() < 0.2:
                text[rng.integers(len(text))] = 9
            if len(text) + 3 <= LONGEST:
                most, branches = int(rng.integers(1, 4)), int(rng.integers(1, 3))
                machine.ask(text.astype(np.int32), branches, most, 3.0, after=id_, first_sample=number)
        machine.pages_are_conserved()
    machine.teardown()


def test_every_transition_leads_somewhere_and_nothing_leaves_the_end():
    assert {phase for phase, _ in TRANSITIONS} == set(_SamplePhase) - {_SamplePhase.ENDED}
    assert {event for _, event in TRANSITIONS} == set(SampleEvent)
    sample = SampleState(
        0, Request(id="a", prompt=PROMPTS[0], samples=1, sampling=SamplingParams(max_tokens=1)), 0, np.zeros
    )
    with pytest.raises(KeyError):
        sample.apply_event(SampleEvent.SEAT)
    assert sample.phase is _SamplePhase.WAITING


def test_pages_are_counted():
    pool = PagePool(2)
    page = pool.take()
    pool.share([page])
    pool.release([page])
    assert pool.free == 1
    pool.release([page])
    assert pool.free == 2
    for wrong in (pool.release, pool.share):
        with pytest.raises(ValueError, match="is free"):
            wrong([page])
    pool.take()
    pool.take()
    with pytest.raises(IndexError):
        pool.take()


def test_the_cache_finds_beginnings_and_gives_up_the_oldest_ends_first():
    pool = PagePool(5)
    cache = PrefixCache(pool, 2)
    first, second = np.array([1, 2, 3, 4, 9], np.int32), np.array([1, 2, 5, 6], np.int32)
    pages = [pool.take(), pool.take()]
    cache.insert(0, first, pages)
    other = [pages[0], pool.take()]
    pool.share(pages[:1])
    cache.insert(0, second, other)
    assert len(cache) == 3
    for text in (pages, other):
        pool.release(text)
    assert cache.match(1, first, most_pages=2) == [], "another version's pages are never found"
    assert cache.match(0, first, most_pages=1) == pages[:1]
    pool.release(pages[:1])
    found = cache.match(0, np.array([1, 2, 3, 4, 5, 6], np.int32), most_pages=3)
    assert found == pages
    assert cache.evict(), "the end of the second text: the first is in use and newer"
    assert not cache.evict()
    assert cache.cached_pages() and set(cache.cached_pages()) == set(pages)
    pool.release(found)
    assert cache.evict()
    assert cache.cached_pages() == pages[:1], "an end goes before what it continues"
    cache.reset(1)
    assert pool.free == 5


def test_too_few_pages_are_refused():
    with pytest.raises(ValueError, match="7 pages, and one sequence may need 8"):
        Scheduler(SchedulerLimits(slots=1, pages=7, page_tokens=4, sequence_tokens=28))


def test_a_steady_step_costs_little():
    """Bookkeeping of 64 rows that all go on: well under the 2 ms of a compiled pass over a small model."""
    limits = SchedulerLimits(slots=64, pages=64 * 20, page_tokens=16, sequence_tokens=300)
    scheduler, ends = Scheduler(limits), StopRules(TokenizerRules(eos=(0,), vocab=64))
    for number in range(64):
        request = Request(id=str(number), prompt=PROMPTS[1], samples=1, sampling=SamplingParams(max_tokens=280))
        stream = CachedUniforms(lambda count: np.full(count, 0.5))
        scheduler.add(PrefillGroup(2 * number, request.prompt, [SampleState(2 * number + 1, request, 0, stream)]))
    answer = SamplerOutput(
        token=np.full(64, 5, np.int32),
        logp=np.full(64, -1, np.float32),
        sampled_logp=np.full(64, -1, np.float32),
        sampling_mask_bits=None,
    )

    def step() -> None:
        plan = scheduler.plan()
        assert plan is not None
        scheduler.apply_results(plan, answer, ends)

    counts = [count_calls(step)[1] for _ in range(200)]
    assert len(scheduler.table) == 64
    assert np.median(counts) < 128, "two calls a row"  # measured: 60


def test_streams_are_the_projects_random_streams():
    streams = _SampleStreams(7)
    for ids in ((0, "p#1", 3), (1, "p#1", 3), (0, "p", 0)):
        for count in (1, 5, 64, 1000):
            assert np.array_equal(streams.uniforms(*ids, count=count), uniforms(7, "sample", *ids, count=count))
    first = CachedUniforms(streams.stream_of(0, "a", 0))
    assert np.array_equal(first(200)[:3], first(3))


def test_numbers_drawn_ahead_are_the_streams_own():
    streams, asked = _SampleStreams(7), [("a", 3), ("b", 1)]
    owners = [(id_, number) for id_, samples in asked for number in range(samples)]
    for count, drawn in ((5, 5), (500, 64)):
        rows = streams.prefetch([((2, id_), range(samples)) for id_, samples in asked], count=count)
        assert [len(row) for row in rows] == [drawn] * 4
        for row, (id_, number) in zip(rows, owners, strict=True):
            assert np.array_equal(row, uniforms(7, "sample", 2, id_, number, count=drawn))
            assert np.array_equal(CachedUniforms(streams.stream_of(2, id_, number), row)(200)[:drawn], row), (
                "and go on as before"
            )
    (later,) = streams.prefetch([((2, "a", "turn", 1), range(2, 3))], count=5)
    assert np.array_equal(later, uniforms(7, "sample", 2, "a", "turn", 1, 2, count=5))
    assert streams.prefetch([], count=5) == []
    assert len(streams.prefetch([((0, "a"), range(1 << 18))], count=5)[0]) == 1, "too many to be drawn ahead"
