"""The bookkeeping of a fleet: nothing is lost or answered twice, whoever dies, hangs, flutters or answers late."""

import numpy as np
import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hone.core.errors import DataError, DivergedError, LostResourceError
from hone.core.fleet import PublishedWeights
from hone.core.generation import Request, SamplingParams, ScoreRequest
from hone.engine.fleet.fleet_book import FleetBook, FleetLimits, ReplicaPhase

PATIENCE_S = 10.0
MANY = 10**6


def request(name: str, *, samples: int = 4, expected: int = 0, **more) -> Request:
    sampling = SamplingParams(max_tokens=8)
    return Request(
        id=name, prompt=np.ones(2, np.int32), samples=samples, sampling=sampling, expected_tokens=expected, **more
    )


def book(replicas: int = 2, *, spares: int = 0, ready: int | None = None, **limits) -> FleetBook:
    """A book whose first `ready` replicas a, b, c ... have version 0."""
    given = {"slots": 16, "patience_s": PATIENCE_S, "losses_allowed": MANY} | limits
    made = FleetBook(FleetLimits(replicas=replicas, spares=spares, **given))
    made.published(0, 0.0)
    for name in "abcdefgh"[: replicas + spares if ready is None else ready]:
        made.start(name, 0.0)
        made.join(name, 0.0)
        made.ready(name, 0, 0.0)
    return made


class FleetOfReplicas(RuleBasedStateMachine):
    """Random events in any order. A replica's answer to an ask is `digest of the ask's number`, whoever gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.names, self.version = 0.0, 0, 0
        self.book = book(2, spares=1, ready=0, losses_of_work=MANY)
        self.out: list[tuple[str, int, tuple[str, ...]]] = []
        self.queued: set[str] = set()
        self.taken: list[str] = []

    def replicas(self, *phases: ReplicaPhase) -> list[str]:
        return [one.name for one in self.book.replicas.values() if not phases or one.phase in phases]

    @rule(count=st.integers(1, 12), expected=st.integers(0, 3))
    def queue(self, count: int, expected: int) -> None:
        names = [f"p{len(self.queued) + place}" for place in range(count)]
        self.queued.update(names)
        self.book.queue([request(name, expected=expected) for name in names], 0)

    @precondition(lambda self: self.book.vacancies)
    @rule()
    def start(self) -> None:
        self.names += 1
        self.book.start(f"r{self.names}", self.now_s)

    @precondition(lambda self: self.replicas(ReplicaPhase.STARTING))
    @rule(data=st.data())
    def join(self, data) -> None:
        self.book.join(data.draw(st.sampled_from(self.replicas(ReplicaPhase.STARTING))), self.now_s)

    @precondition(lambda self: self.replicas(ReplicaPhase.LOADING))
    @rule(data=st.data(), stale=st.booleans())
    def ready(self, data, stale: bool) -> None:
        name = data.draw(st.sampled_from(self.replicas(ReplicaPhase.LOADING)))
        self.book.ready(name, self.version - stale, self.now_s)

    @rule()
    def give(self) -> None:
        for name, ask in self.book.give(self.now_s):
            told = self.book.replicas[name]
            assert told.phase is ReplicaPhase.READY
            assert ask.version == self.version
            self.out.append((name, ask.number, tuple(one.id for one in ask.requests)))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), twice=st.booleans())
    def answer(self, data, twice: bool) -> None:
        name, number, ids = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        for _ in range(1 + twice):
            if (
                self.book.answered(name, number, f"digest of {number}", self.now_s, work_s=0.01 * (number % 5))
                == "take"
            ):
                self.taken.extend(ids)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def refuse(self, data) -> None:
        name, number, _ = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.book.give_back(name, number)

    @precondition(lambda self: self.replicas())
    @rule(data=st.data(), heard=st.booleans())
    def lose(self, data, heard: bool) -> None:
        name = data.draw(st.sampled_from(self.replicas()))
        self.book.gone(name, "killed")
        if not heard:
            self.out = [one for one in self.out if one[0] != name]

    @precondition(lambda self: self.replicas())
    @rule(data=st.data())
    def flutter(self, data) -> None:
        name = data.draw(st.sampled_from(self.replicas()))
        self.book.away(name)
        self.out = [one for one in self.out if one[0] != name]

    @precondition(lambda self: self.replicas())
    @rule(data=st.data(), passes=st.integers(0, 3))
    def alive(self, data, passes: int) -> None:
        self.book.progress(data.draw(st.sampled_from(self.replicas())), passes, self.now_s)

    @rule(seconds=st.floats(0, 15))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name in self.book.late(self.now_s):
            self.book.gone(name, "silent")

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.book.published(self.version, self.now_s)

    @invariant()
    def asked_is_answered_or_being_asked(self) -> None:
        assert len(self.taken) == len(set(self.taken))
        assert len(self.queued) == len(self.taken) + self.book.pending

    @invariant()
    def holders_know_their_asks(self) -> None:
        for name, told in self.book.replicas.items():
            for number in told.asks:
                assert name in self.book.asks[number].holders
        for number, record in self.book.asks.items():
            assert record.holders
            assert all(number in self.book.replicas[name].asks for name in record.holders)

    @invariant()
    def no_more_replicas_than_wanted(self) -> None:
        assert len(self.book.replicas) <= 3

    def teardown(self) -> None:
        """With a replica that works and enough time, everything is answered, once."""
        for name in list(self.book.replicas):
            self.book.gone(name, "the end")
        self.out.clear()
        self.book.start("last", self.now_s)
        self.book.join("last", self.now_s)
        self.book.ready("last", self.version, self.now_s)
        while given := self.book.give(self.now_s):
            for name, ask in given:
                assert self.book.answered(name, ask.number, "last", self.now_s) == "take"
                self.taken.extend(one.id for one in ask.requests)
        assert sorted(self.taken) == sorted(self.queued)
        assert self.book.pending == 0


FleetOfReplicas.TestCase.settings = settings(examples(60), stateful_step_count=40)
TestFleetOfReplicas = FleetOfReplicas.TestCase


def test_two_answers_that_differ_end_the_run_and_name_the_work() -> None:
    fleet = book(2)
    fleet.queue([request("p1")], 0)
    ((first, ask),) = fleet.give(0.0)
    fleet.late(PATIENCE_S)
    ((second, again),) = fleet.give(PATIENCE_S)
    assert first != second
    assert again == ask
    assert fleet.answered(second, ask.number, "x", 11.0) == "take"
    with pytest.raises(DivergedError, match=r"request 'p1' differently with the weights of version 0"):
        fleet.answered(first, ask.number, "y", 12.0)


def test_answers_across_a_publication_may_differ() -> None:
    fleet = book(2)
    fleet.queue([request("p1")], 0)
    ((first, ask),) = fleet.give(0.0)
    fleet.late(PATIENCE_S)
    ((second, _),) = fleet.give(PATIENCE_S)
    fleet.published(1, 11.0)
    assert fleet.answered(second, ask.number, "x", 12.0) == "take"
    assert fleet.answered(first, ask.number, "y", 13.0) == "drop"


def test_a_late_answer_still_counts_and_its_copy_is_dropped() -> None:
    fleet = book(2)
    fleet.queue([request("p1")], 0)
    ((first, ask),) = fleet.give(0.0)
    assert fleet.late(PATIENCE_S) == []
    ((second, _),) = fleet.give(PATIENCE_S)
    assert fleet.answered(first, ask.number, "x", 11.0) == "take"
    assert fleet.answered(second, ask.number, "x", 12.0) == "drop"
    assert fleet.pending == 0
    assert not fleet.replicas[first].silent


def test_a_silent_replica_is_ended_after_twice_the_patience_unless_it_makes_progress() -> None:
    fleet = book(1)
    fleet.queue([request("p1")], 0)
    fleet.give(0.0)
    fleet.progress("a", 5, 9.0)
    assert fleet.late(18.0) == []
    fleet.progress("a", 5, 18.0)  # it answers, and runs nothing
    assert fleet.late(28.0) == []
    assert fleet.late(29.0) == ["a"]


def test_the_longest_expected_answers_go_first() -> None:
    fleet = book(1, slots=7)
    fleet.queue([request(f"p{length}", expected=length) for length in (1, 5, 3)], 0)
    assert [one.id for _, ask in fleet.give(0.0) for one in ask.requests] == ["p5", "p3"]


def test_an_ask_holds_at_most_eight_prompts_and_an_eighth_of_a_share() -> None:
    for count, sizes in ((16, 1), (64, 4), (1000, 8)):
        fleet = book(2, slots=10**6)
        fleet.queue([request(f"p{place}") for place in range(count)], 0)
        given = fleet.give(0.0)
        assert max(len(ask.requests) for _, ask in given) == sizes
        shares = [sum(len(ask.requests) for name, ask in given if name == one) for one in ("a", "b")]
        assert max(shares) - min(shares) <= sizes


@pytest.mark.parametrize(("request_s", "asks"), [(1.0, [2] * 8), (0.01, [8, 8]), (0.001, [16])])
def test_a_share_is_cut_into_asks_that_are_worth_a_call(request_s: float, asks: list[int]) -> None:
    """Of 50 ms: 16 prompts of 10 ms are two asks of 8, of 1 ms one ask, and of 1 s no more than eight."""
    fleet = book(1, slots=10**6)
    fleet.queue([request(f"p{place}") for place in range(4)], 0)
    for name, ask in fleet.give(0.0):
        fleet.answered(name, ask.number, "", 1.0, work_s=request_s * len(ask.requests))
    fleet.queue([request(f"q{place}") for place in range(16)], 1)
    assert [len(ask.requests) for _, ask in fleet.give(2.0)] == asks


def test_a_replica_holds_two_asks_or_as_many_as_fill_its_slots_and_one_more() -> None:
    fleet = book(1, slots=12)
    fleet.queue([request(f"p{place}", samples=4) for place in range(8)], 0)
    assert len(fleet.give(0.0)) == 4
    wide = book(1, slots=1)
    wide.queue([request(f"p{place}", samples=4) for place in range(8)], 0)
    assert len(wide.give(0.0)) == 2


def test_a_prompt_that_ends_three_replicas_is_named_and_its_neighbours_are_not() -> None:
    fleet = book(1, slots=100)
    fleet.queue([request(f"p{place}") for place in range(4)], 0)
    asked: list[tuple[str, ...]] = []

    def live(name: str) -> None:
        """A replica that answers until it is asked `p2`, and dies of it."""
        fleet.start(name, 0.0)
        fleet.join(name, 0.0)
        fleet.ready(name, 0, 0.0)
        while given := fleet.give(0.0):
            asked.extend(tuple(one.id for one in ask.requests) for _, ask in given)
            if any("p2" in {one.id for one in ask.requests} for _, ask in given):
                break
            for _, ask in given:
                fleet.answered(name, ask.number, "x", 0.0)
        fleet.gone(name, "signal 11")

    fleet.gone("a", "unrelated")
    with pytest.raises(DataError, match=r"request 'p2': 3 replicas were lost.*signal 11") as fault:
        for life in range(20):
            live(f"life {life}")
    assert len(fault.value.messages) == 1
    assert asked[-1] == ("p2",)


def test_a_loss_elsewhere_acquits_a_prompt() -> None:
    fleet = book(2, slots=4, ready=2)
    fleet.queue([request("p1")], 0)
    for life in range(6):
        ((holder, _),) = fleet.give(0.0)
        other = next(name for name in fleet.replicas if name != holder)
        for place, lost in enumerate((holder, other)):
            fleet.gone(lost, "preempted")
            name = f"life {life} {place}"
            fleet.start(name, 0.0)
            fleet.join(name, 0.0)
            fleet.ready(name, 0, 0.0)
    assert fleet.pending == 1


def test_losses_beyond_the_allowed_end_the_run_and_old_ones_are_forgotten() -> None:
    fleet = book(2, losses_allowed=1)
    fleet.gone("a", "out of memory on node 7")
    fleet.published(100, 0.0)
    fleet.start("c", 0.0)
    fleet.gone("b", "signal 9")
    with pytest.raises(LostResourceError, match=r"losses_allowed = 1.*\n.*signal 9\n.*node 3"):
        fleet.gone("c", "preempted on node 3")


def test_a_turn_goes_to_the_replica_that_keeps_the_one_before() -> None:
    fleet = book(3)
    fleet.queue([request(f"p{place}", samples=1, keep_s=60.0) for place in range(3)], 0)
    homes = {ask.requests[0].id: name for name, ask in fleet.give(0.0)}
    for number in list(fleet.asks):
        (holder,) = fleet.asks[number].holders
        fleet.answered(holder, number, "x", 0.0)
    fleet.queue([request(f"next {name}", samples=1, after=name) for name in ("p2", "p0", "p1")], 0)
    for name, ask in fleet.give(0.0):
        assert name == homes[ask.requests[0].after or ""]


def test_spares_are_given_work_in_the_place_of_another_only() -> None:
    fleet = book(1, spares=1)
    fleet.queue([request("p1"), request("p2")], 0)
    assert {name for name, _ in fleet.give(0.0)} == {"a"}
    fleet.away("a")
    assert {name for name, _ in fleet.give(0.0)} == {"b"}
    fleet.progress("a", 1, 1.0)
    fleet.ready("a", 0, 1.0)
    assert fleet.vacancies == 0


def test_a_replica_that_does_not_start_is_given_up() -> None:
    fleet = book(1, ready=0, start_s=60.0)
    fleet.start("a", 0.0)
    assert fleet.late(59.0) == []
    assert fleet.late(60.0) == ["a"]


def test_cancelling_tells_whom_to_stop_and_keeps_what_others_wait_for() -> None:
    fleet = book(1, slots=100)
    fleet.queue([request(f"p{place}") for place in range(20)], 0)
    given = {ask.number: {one.id for one in ask.requests} for _, ask in fleet.give(0.0)}
    number, ids = next((number, ids) for number, ids in given.items() if len(ids) == 2)
    keep, drop = sorted(ids)
    assert fleet.cancel([drop]) == []
    assert fleet.pending == 19
    assert fleet.cancel([keep]) == [("a", number)]
    assert fleet.answered("a", number, "x", 0.0) == "drop"
    fleet.cancel()
    assert fleet.pending == 0


def test_adapters_count_as_versions_where_losses_are_forgotten() -> None:
    fleet = book(2, losses_allowed=1)
    fleet.gone("a", "signal 9")
    for number in range(100):
        fleet.offer(f"a{number}", PublishedWeights(version=-number - 1, digest="", parts=()))
    fleet.gone("b", "signal 9")
    fleet.start("c", 0.0)
    with pytest.raises(LostResourceError, match="losses_allowed = 1"):
        fleet.gone("c", "signal 9")


def test_work_is_shared_by_answers_and_by_the_time_that_each_ask_was_held() -> None:
    fleet = book(1)
    fleet.queue([request("long", samples=1)], 0)
    ((name, first),) = fleet.give(0.0)
    fleet.queue([request("late", samples=3)], 0)
    ((_, second),) = fleet.give(8.0)
    # one answer for 10 s beside three for 2 s
    assert fleet.work_shares(name, 10.0) == pytest.approx({"long": 10 / 16, "late": 6 / 16})
    fleet.answered(name, second.number, "x", 10.0)
    assert fleet.work_shares(name, 12.0) == {"long": 1.0}, "what was told is told"
    fleet.answered(name, first.number, "y", 12.0)
    assert fleet.work_shares(name, 13.0) == {} == fleet.work_shares("nobody", 13.0)
    text = ScoreRequest(prompt=np.ones(1, np.int32), tokens=np.ones(2, np.int32), sampling=SamplingParams(max_tokens=1))
    order = fleet.queue_texts((text,))
    fleet.give(13.0)
    assert fleet.work_shares(name, 13.0) == {order: 1.0}, "an ask that was held for no time at all"
