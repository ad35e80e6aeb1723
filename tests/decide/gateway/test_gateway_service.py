"""The service in process: decide, reward, repeats, batches, order of failure, numbers of records."""

import math
import threading

import numpy as np
import pytest
from gateway_parts import MemorySink, SoftmaxPolicy, make_box
from manual_clock import ManualClock

from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Decision, Outcome, decision_key
from hone.decide.gateway.fallback_chain import (
    FallbackChain,
    GuardedPolicy,
    PolicyFailureError,
    SafeDefault,
    ServingVersion,
    describe_error,
)
from hone.decide.gateway.log_writer import SequenceNumbers, WriteAfter
from hone.decide.gateway.requests import DecisionRequest, RequestError, RewardRequest

CONTEXT = {"age": 0.5, "country": "de"}


def test_a_decision_is_drawn_from_its_distribution_and_logged_with_it() -> None:
    box = make_box()
    counts = np.zeros(3)
    for unit in range(2000):
        decided = box.service.decide(f"u{unit}", CONTEXT)
        counts[decided.index] += 1
        logged = box.sink.records[-1]
        assert isinstance(logged, Decision)
        assert (logged.id, logged.executed_logp, logged.version) == (decided.id, decided.logp, "v1")
    share = np.exp(SoftmaxPolicy().logp(np.array([0.5]), ActionSet(names=("a", "b", "c"))))
    assert np.abs(counts / 2000 - share).max() < 0.04  # four standard errors
    assert [record.seq for record in box.sink.records] == list(range(2000))


def test_a_decision_can_be_replayed_bit_for_bit_from_its_record() -> None:
    box = make_box()
    box.service.decide("u1", CONTEXT, id="mine")
    logged = box.sink.records[0]
    assert isinstance(logged, Decision)
    assert logged.draw_key == decision_key(0, "default", "mine")
    choice = SoftmaxPolicy().act(logged.context, logged.actions, logged.draw_key)
    assert (choice.action, choice.logp) == (logged.executed, logged.executed_logp)


def test_the_same_id_gets_the_same_answer_and_another_request_under_it_is_refused() -> None:
    box = make_box()
    first = box.service.decide("u1", CONTEXT, id="k")
    assert box.service.decide("u1", CONTEXT, id="k") == first
    assert len(box.sink.records) == 1
    with pytest.raises(RequestError, match="used for another request") as caught:
        box.service.decide("u2", CONTEXT, id="k")
    assert caught.value.status == 409


def test_repeats_inside_one_batch_are_one_decision() -> None:
    box = make_box(tenants=("s", "t"))
    one = DecisionRequest(unit="u", context=CONTEXT, id="k", tenant="s")
    other = DecisionRequest(unit="v", context=CONTEXT, id="k", tenant="s")
    elsewhere = DecisionRequest(unit="v", context=CONTEXT, id="k", tenant="t")
    first, again, fault, apart = box.service.answer_many([one, one, other, elsewhere])
    assert first is again
    assert isinstance(fault, RequestError)
    assert not isinstance(apart, RequestError)
    assert box.sink.batches == [2]


def test_rewards_join_wait_and_repeat() -> None:
    box = make_box()
    decided = box.service.decide("u1", CONTEXT)
    assert box.service.reward(decided.id, 1.0, key="r1").status == "joined"
    assert box.service.reward(decided.id, 1.0, key="r1").status == "repeated"
    assert box.service.reward("unseen", 1.0).status == "waiting"
    with pytest.raises(RequestError, match="key 'r1' was used"):
        box.service.reward(decided.id, 0.0, key="r1")
    outcomes = [record for record in box.sink.records if isinstance(record, Outcome)]
    assert [(one.decision_id, one.seq) for one in outcomes] == [(decided.id, 1), ("unseen", 2)]


def test_a_reward_with_a_number_of_its_own_keeps_it() -> None:
    box = make_box()
    reward = RewardRequest(id="d", value=1.0, at_s=5.0, source="phone-7", seq=12)
    answers = [box.service.answer_many([reward])[0] for _ in range(2)]
    assert [one.status for one in answers] == ["waiting", "repeated"]
    assert [(record.source, record.seq) for record in box.sink.records] == [("phone-7", 12)]
    fault = box.service.answer_many([RewardRequest(id="d", value=1.0, at_s=5.0, source="gateway", seq=0)])[0]
    assert isinstance(fault, RequestError) and fault.code == "reserved_source"


def test_a_log_that_takes_nothing_refuses_and_leaves_no_gap() -> None:
    box = make_box()
    box.service.decide("u", CONTEXT)
    box.sink.broken = True
    with pytest.raises(RequestError, match="nothing was decided") as caught:
        box.service.decide("u", CONTEXT, id="k")
    assert caught.value.status == 503
    with pytest.raises(RequestError, match="disk is full"):
        box.service.decide("u", CONTEXT)
    box.sink.broken = False
    box.service.decide("u", CONTEXT, id="k")
    assert [record.seq for record in box.sink.records] == [0, 1]
    assert "log_unavailable" in box.faults()


def test_words_of_an_exception_can_be_logged() -> None:
    told = describe_error(ValueError("a\x00b\ud800\n'; drop table decisions; --é"))
    assert told == "exception: ValueError: a?b??'; drop table decisions; --é"


class FailingPolicy(SoftmaxPolicy):
    """Fails in the way that its context's first feature says."""

    def act(self, context, actions, draw_key):
        match int(context[0]):
            case 1:
                raise ValueError("no model")
            case 2:
                return Choice(action=0, logp=math.nan)
            case 3:
                return Choice(action=7, logp=0.0)
            case 4:
                return Choice(action=0, logp=0.5)
            case 5:
                return Choice(action=0, logp=-1.0, scores=np.array([1.0, math.nan, 0.0]))
            case 6:
                return Choice(action=0, logp=-math.inf)
            case _:
                return None


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (1, "exception: ValueError: no model"),
        (2, "non-finite log-probability nan"),
        (3, "action 7 of 3"),
        (4, "log-probability 0.5 above 0"),
        (5, "non-finite scores"),
        (6, "non-finite log-probability -inf"),
        (7, "not a Choice: NoneType"),
    ],
)
def test_a_failing_policy_is_answered_by_the_last_good_version_with_its_distribution(way: int, reason: str) -> None:
    box = make_box(
        ServingVersion(name="new", policy=FailingPolicy()), ServingVersion(name="good", policy=SoftmaxPolicy())
    )
    decided = box.service.decide("u", {"age": way, "country": "fr"})
    assert decided.version == "good"
    assert decided.intervention == f"fallback: {reason}"
    expected = SoftmaxPolicy().logp(np.array([float(way), 0.0]), ActionSet(names=("a", "b", "c")))
    assert decided.logp == expected[decided.index]
    assert box.faults() == ["fallback"]


def test_the_safe_default_answers_when_every_version_fails() -> None:
    box = make_box(
        ServingVersion(name="new", policy=FailingPolicy()), ServingVersion(name="old", policy=FailingPolicy())
    )
    decided = box.service.decide("u", {"age": 1, "country": "x"})
    assert (decided.version, decided.logp) == ("default:uniform", -math.log(3))


def test_a_named_safe_default_has_all_of_the_probability() -> None:
    actions = ActionSet(names=("a", "b"))
    default = SafeDefault("b")
    assert default.act(np.zeros(1), actions, 5) == Choice(action=1, logp=0.0)
    assert np.exp(default.logp_rows(np.zeros((2, 1)), ActionSet(names=("c", "d")))).tolist() == [[0.5, 0.5]] * 2


class StalledPolicy(SoftmaxPolicy):
    """Waits before it answers."""

    def __init__(self) -> None:
        self.begun, self.go, self.asked = threading.Event(), threading.Event(), 0

    def act(self, context, actions, draw_key):
        self.asked += 1
        self.begun.set()
        self.go.wait(600)
        return super().act(context, actions, draw_key)


def test_a_late_policy_costs_one_deadline_and_rests() -> None:
    clock = SystemClock()
    stalled = StalledPolicy()
    guard = GuardedPolicy(stalled, clock).start()
    default = SafeDefault()
    chain = FallbackChain(
        (
            ServingVersion(name="slow", policy=guard.policy, guard=guard),
            ServingVersion(name=default.version, policy=default),
        ),
        clock,
    )
    actions = ActionSet(names=("a", "b"))
    served = [chain.choose(np.zeros(1), actions, key, clock.monotonic_s() + 0.04) for key in range(50)]
    assert stalled.begun.wait(300)
    assert stalled.asked == 1, "one wait, not fifty"
    assert {one.version for one in served} == {default.version}
    assert served[0].choice.intervention == "fallback: timeout"
    assert all("still running" in one.choice.intervention for one in served[1:])
    stalled.go.set()
    guard.close()


def test_a_quick_guarded_policy_answers_and_its_exceptions_are_named() -> None:
    guard = GuardedPolicy(FailingPolicy(), SystemClock()).start()
    actions = ActionSet(names=("a", "b", "c"))
    with pytest.raises(PolicyFailureError, match="ValueError: no model"):
        guard.act(np.array([1.0]), actions, 5, 10.0)
    guard.policy = SoftmaxPolicy()
    assert guard.act(np.array([1.0]), actions, 5, 10.0) == SoftmaxPolicy().act(np.array([1.0]), actions, 5)
    guard.close()


class TimedPolicy(SoftmaxPolicy):
    """Takes as long as a test says, on the test's clock; stalls where it says so."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.take_s, self.stalls, self.go, self.asked = clock, 0.0, False, threading.Event(), 0

    def act(self, context, actions, draw_key):
        self.asked += 1
        if self.stalls:
            self.go.wait(600)
        self.clock.advance(self.take_s)
        return super().act(context, actions, draw_key)


def make_late(wait_s: float = 0.0) -> tuple[ManualClock, TimedPolicy, GuardedPolicy]:
    """A policy whose first answer came 40 ms after its caller had left."""
    clock = ManualClock()
    policy = TimedPolicy(clock)
    guard = GuardedPolicy(policy, clock).start()
    policy.stalls, policy.take_s = True, 0.04
    assert reason(guard, wait_s) == "timeout"
    policy.stalls = False
    policy.go.set()
    settle(guard)
    return clock, policy, guard


def reason(guard: GuardedPolicy, wait_s: float = 0.02) -> str:
    """Why a call gets no choice; empty: it got one."""
    try:
        guard.act(np.zeros(1), ActionSet(names=("a", "b")), 3, wait_s)
    except PolicyFailureError as failure:
        return str(failure)
    return ""


def settle(guard: GuardedPolicy) -> None:
    """Wait for the present trial."""
    assert guard._trial is not None and guard._trial.done.wait(300)


def test_a_policy_that_was_late_once_serves_again_after_one_trial() -> None:
    clock, policy, guard = make_late()
    policy.take_s = 0.001
    assert "tried again" in reason(guard)
    settle(guard)
    assert [reason(guard, 60.0) for _ in range(5)] == [""] * 5
    assert (policy.asked, clock.monotonic_s() < 0.1) == (7, True), "no rest passed"
    guard.close()


def test_no_caller_waits_for_a_policy_that_stays_late_and_its_trials_become_rare() -> None:
    clock, policy, guard = make_late()
    tried: list[float] = []
    while clock.time_s < 30.0:
        before = policy.asked
        words = reason(guard)
        assert words.startswith("timeout: ")
        if "tried again" in words:
            settle(guard)
            assert policy.asked == before + 1
            tried.append(clock.time_s)
        clock.advance(0.01)
    gaps = np.diff(tried)
    assert len(tried) < 20 and gaps[-1] < 5.1 and gaps[-1] > 4.9 and (np.diff(gaps) > -0.1).all()
    policy.take_s = 0.019
    clock.advance(5.0)
    assert "tried again" in reason(guard)
    settle(guard)
    assert reason(guard, 60.0) == "", "back at once, however long it was late"
    guard.close()


@pytest.mark.parametrize(("took_s", "back"), [(0.02, True), (0.0201, False)])
def test_a_trial_is_in_time_if_it_takes_at_most_what_a_caller_would_wait(took_s: float, back: bool) -> None:
    _, policy, guard = make_late()
    policy.take_s = took_s
    assert "tried again" in reason(guard)
    settle(guard)
    guard._trial.took_s = took_s  # free of the clock's rounding
    policy.take_s = 0.0
    words = reason(guard, 0.02)
    assert (words in ("", "timeout")) == back, words  # on a busy machine the answer itself may be late
    guard.close()


def test_the_buffer_behind_the_answers_is_bounded_and_written(tmp_path) -> None:
    sink, told = MemorySink(broken=True), []
    writer = WriteAfter(sink, capacity=4, tell=lambda code, words: told.append(code), clock=ManualClock()).start()
    box = make_box(writer=writer)
    for number in range(4):
        box.service.decide(f"u{number}", CONTEXT)
    with pytest.raises(RequestError, match="the buffer is full"):
        box.service.decide("one too many", CONTEXT)
    assert writer.waiting() == 4
    sink.broken = False
    box.service.close()
    assert [record.unit for record in sink.records] == ["u0", "u1", "u2", "u3"]
    assert set(told) <= {"log_unavailable"}


def test_numbers_given_out_before_a_kill_are_not_given_out_again(tmp_path) -> None:
    numbers = SequenceNumbers(lambda tenant: 3, tmp_path)
    assert numbers.resume("../etc") == 0
    assert [numbers.take("../etc") for _ in range(4)] == [3, 4, 5, 6]
    again = SequenceNumbers(lambda tenant: 5, tmp_path)  # 5 and 6 were in the buffer when the process was killed
    assert again.resume("../etc") == 2
    assert again.take("../etc") == 7
    assert [path.suffix for path in tmp_path.iterdir()] == [".count"]
