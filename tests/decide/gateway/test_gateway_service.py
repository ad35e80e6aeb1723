"""The service in process: decide, reward, repeats, batches, order of failure, numbers of records."""

import math
import time

import numpy as np
import pytest
from gateway_parts import MemorySink, SoftmaxPolicy, make_box

from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Decision, Outcome, decision_key
from hone.decide.gateway.fallback_chain import (
    FallbackChain,
    GuardedPolicy,
    PolicyFailureError,
    RestTimer,
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

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def act(self, context, actions, draw_key):
        time.sleep(self.seconds)
        return super().act(context, actions, draw_key)


def test_a_late_policy_costs_one_deadline_and_rests() -> None:
    clock = SystemClock()
    guard = GuardedPolicy(StalledPolicy(0.3), clock).start()
    default = SafeDefault()
    chain = FallbackChain(
        (
            ServingVersion(name="slow", policy=guard.policy, guard=guard),
            ServingVersion(name=default.version, policy=default),
        ),
        clock,
    )
    actions, began_s = ActionSet(names=("a", "b")), clock.monotonic_s()
    served = [chain.choose(np.zeros(1), actions, key, clock.monotonic_s() + 0.04) for key in range(50)]
    assert clock.monotonic_s() - began_s < 0.25  # one wait of 20 ms, not fifty
    assert {one.version for one in served} == {default.version}
    assert served[0].choice.intervention == "fallback: timeout"
    assert "still running" in served[1].choice.intervention
    guard.close()


def test_a_quick_guarded_policy_answers_and_its_exceptions_are_named() -> None:
    guard = GuardedPolicy(FailingPolicy(), SystemClock()).start()
    actions = ActionSet(names=("a", "b", "c"))
    with pytest.raises(PolicyFailureError, match="ValueError: no model"):
        guard.act(np.array([1.0]), actions, 5, 10.0)
    guard.policy = SoftmaxPolicy()
    assert guard.act(np.array([1.0]), actions, 5, 10.0) == SoftmaxPolicy().act(np.array([1.0]), actions, 5)
    guard.close()


def test_rests_double_up_to_a_minute_and_are_forgotten() -> None:
    rest, rests = RestTimer(), []
    for _ in range(9):
        rest.late(0.0)
        rests.append(rest.until_s)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rest.resting(59.0) and not rest.resting(60.0)
    rest.in_time()
    assert rest.rest_s == 1.0


def test_the_buffer_behind_the_answers_is_bounded_and_written(tmp_path) -> None:
    sink, told = MemorySink(broken=True), []
    writer = WriteAfter(sink, capacity=4, tell=lambda code, words: told.append(code)).start()
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
