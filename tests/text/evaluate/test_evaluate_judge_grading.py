"""Grades, comparisons in both orders, canaries, and the health that they tell."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_servers import material

from hone.core.clock import SystemClock
from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import UserCodeError
from hone.core.judging import ScorerInput
from hone.estimators.means import wilson_interval
from hone.rewards.judges.canaries import CanaryItem
from hone.rewards.judges.config import JudgeBudget, RewardJudge
from hone.rewards.judges.questions import JudgeReply, JudgeRequest
from hone.rewards.judges.spending import JudgeLedger, JudgeSpending
from hone.rewards.scores import failed_result, result_from_value
from hone.text.evaluate.judges.client import JudgeClient, JudgeFault
from hone.text.evaluate.judges.grading import (
    CanaryOutcome,
    GradedAnswers,
    JudgeHealth,
    JudgeMember,
    PairOutcome,
    ask_grades,
    canary_outcome,
    finished_grades,
    length_correlation,
    ring_pairs,
)

RUBRIC = {"kind": "rubric", "criteria": [{"name": "truth", "text": "It is true."}]}


class ScriptedJudge:
    """A backend that replies by a function of the fenced material; None: no reply."""

    model = "scripted"

    def __init__(self, reply: Callable[[dict[str, str]], str | None]) -> None:
        self.reply, self.asked = reply, list[JudgeRequest]()

    def check(self) -> list[str]:
        return []

    def submit(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        self.asked.append(request)
        future: Future[JudgeReply] = Future()
        text = self.reply(material({"messages": request.messages}))
        if text is None:
            future.set_exception(JudgeFault(ScoreStatus.TIMEOUT, "too late"))
        else:
            future.set_result(JudgeReply(text=text, read_tokens=5, written_tokens=2))
        return future

    def run(self) -> None: ...

    def close(self) -> None: ...


def member(reply: Callable[[dict[str, str]], str | None], **judge: Any) -> tuple[JudgeMember, ScriptedJudge]:
    by = {"kind": "server", "url": "http://127.0.0.1:9", "model": "m"}
    config = RewardJudge.model_validate({"kind": "judge", "by": by, "ask": RUBRIC, "cache": None, **judge})
    backend = ScriptedJudge(reply)
    ledger = JudgeLedger(JudgeSpending("wise", JudgeBudget()), None, SystemClock())
    return JudgeMember(config, "wise", JudgeClient("wise", backend, ledger)), backend


def answers(*texts: str, **columns: object) -> list[ScorerInput]:
    return [
        ScorerInput(
            prompt="q",
            text=text,
            columns=columns,
            messages=({"role": "assistant", "content": text},),
            transcript=TranscriptBuilder(np.zeros(1, np.int32)),
        )
        for text in texts
    ]


def scores(judge: JudgeMember, *groups: Sequence[ScorerInput]) -> list[float]:
    (column,), _ = judge.results([judge.submit(group) for group in groups])
    return [result.score for result in column]


def by_length(parts: dict[str, str]) -> str:
    return json.dumps({"truth": min(10, len(parts["answer"]))})


def longer(parts: dict[str, str]) -> str:
    one, other = len(parts["answer A"]), len(parts["answer B"])
    return json.dumps({"better": "A" if one > other else "B" if other > one else "tie"})


def always_first(parts: dict[str, str]) -> str:
    return '{"better": "A"}'


@given(st.integers(1, 12), st.integers(1, 14))
def test_a_ring_compares_each_answer_with_its_opponents_once(count: int, opponents: int) -> None:
    pairs = ring_pairs(count, opponents)
    wanted = {
        frozenset({one, (one + step) % count})
        for one in range(count)
        for step in range(1, min(opponents, count - 1) + 1)
    }
    assert {frozenset(pair) for pair in pairs} == wanted
    assert len(pairs) == len(wanted)


def test_pairwise_scores_are_shares_of_wins_over_both_orders() -> None:
    judge, backend = member(longer, ask={"kind": "pairwise", "opponents": 3})
    assert scores(judge, answers("a", "bb", "ccc", "dd")) == [0.0, 0.5, 1.0, 0.5]
    assert len(backend.asked) == 12
    assert judge.metrics()["judge/wise/first_preferred"] == 0.5
    assert judge.metrics()["judge/wise/order_consistency"] == 1.0


def test_a_judge_of_the_first_slot_gives_ties_and_is_told() -> None:
    judge, _ = member(always_first, ask={"kind": "pairwise"})
    assert scores(judge, answers("a", "bb", "ccc")) == [0.5] * 3
    assert judge.metrics()["judge/wise/first_preferred"] == 1.0
    assert judge.metrics()["judge/wise/order_consistency"] == 0.0


def test_equal_answers_tie_without_a_question_and_one_alone_has_no_score() -> None:
    judge, backend = member(longer, ask={"kind": "pairwise"})
    assert scores(judge, answers("a", "a")) == [0.5, 0.5]
    assert backend.asked == []
    (column,), _ = judge.results([judge.submit(answers("a"))])
    assert (column[0].status, column[0].reason[:28]) == (ScoreStatus.UNSCORABLE, "a pairwise judge needs two a")


def test_a_reference_is_the_opponent_where_there_is_one() -> None:
    judge, _ = member(longer, ask={"kind": "pairwise", "reference": "best"})
    assert scores(judge, answers("a", "bbbb", "cc", best="xx")) == [0.0, 1.0, 0.5]


def test_a_comparison_without_a_verdict_leaves_the_others() -> None:
    def late(parts: dict[str, str]) -> str | None:
        return None if "zz" in parts.values() else longer(parts)

    judge, _ = member(late, ask={"kind": "pairwise", "opponents": 2})
    (column,), _ = judge.results([judge.submit(answers("a", "bbb", "zz"))])
    assert [result.score for result in column[:2]] == [0.0, 1.0]
    assert (column[2].status, column[2].reason) == (ScoreStatus.TIMEOUT, "too late")
    assert judge.metrics()["judge/wise/missing"] == pytest.approx(1 / 3)


def test_a_reply_that_was_cut_off_says_so() -> None:
    judge, _ = member(by_length, max_tokens=3)
    pending = ask_grades(judge.config, judge.client, answers("a"))
    request, _ = pending.grades[0]
    cut: Future[JudgeReply] = Future()
    cut.set_result(JudgeReply(text='{"tru', finish_reason="length"))
    graded = finished_grades(judge.config, type(pending)(1, grades=[(request, cut)]))
    assert graded.results[0].reason.startswith("the reply was cut off at max_tokens = 3: the reply is not JSON")


def canary_file(folder: Path, count: int = 5, *, good: str = "good answer", bad: str = "bad") -> str:
    rows = [{"prompt": f"q{number}", "good": good, "bad": bad} for number in range(count)]
    (folder / "canaries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "canaries.jsonl")


def test_canaries_measure_agreement_consistency_and_length_bias(tmp_path: Path) -> None:
    judge, backend = member(by_length, canaries={"path": canary_file(tmp_path), "rate": 0.5, "repeats": 3})
    scores(judge, answers(*"abcd"), answers(*"efghij"))
    metrics = judge.metrics()
    expected = wilson_interval(5, 5)
    assert metrics["judge/wise/agreement"] == 1.0
    assert metrics["judge/wise/agreement_low"] == expected.low
    assert metrics["judge/wise/canaries"] == 5
    assert metrics["judge/wise/self_consistency"] == 1.0
    assert metrics["judge/wise/length_bias"] == 0.0, "the longer answers are the good ones"
    temperatures = [request.temperature for request in backend.asked if request.repeat]
    assert temperatures.count(0.0) == 10
    assert temperatures.count(1.0) == 20
    assert len({request.key("m") for request in backend.asked}) == len(backend.asked), "each repeat is asked anew"


def test_a_judge_that_likes_length_is_told_by_canaries_whose_good_answer_is_short(tmp_path: Path) -> None:
    path = canary_file(tmp_path, good="no", bad="a long bad one")
    judge, _ = member(by_length, canaries={"path": path, "rate": 0.5, "floor": 0.0})
    scores(judge, answers("a", "bb", "ccc", "dddd"))
    assert judge.metrics()["judge/wise/length_bias"] == 1.0
    assert judge.metrics()["judge/wise/length_correlation"] == pytest.approx(1.0)


@pytest.mark.parametrize("ask", [RUBRIC, {"kind": "pairwise"}, {"kind": "reference"}])
def test_below_the_floor_the_run_stops_with_the_numbers(tmp_path: Path, ask: dict[str, object]) -> None:
    constant = {"rubric": '{"truth": 10}', "pairwise": '{"better": "A"}', "reference": '{"correct": "yes"}'}[
        str(ask["kind"])
    ]
    rows = [{"prompt": f"q{number}", "good": "g", "bad": "b", "answer": "g"} for number in range(9)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge, _ = member(lambda parts: constant, ask=ask, canaries={"path": str(tmp_path / "c.jsonl"), "rate": 1.0})
    scores(judge, answers(*"abcdefg", answer="a"))
    with pytest.raises(UserCodeError) as fault:
        scores(judge, answers(*"hi", answer="a"))
    assert "judge 'wise' agrees with 0 of the last 9 canaries (0.00, 95% interval 0.00 to 0.30)" in str(fault.value)
    assert "below canaries.floor = 0.7; for example" in str(fault.value)
    assert "c.jsonl:" in str(fault.value)


def test_a_judge_that_gives_one_score_to_all_is_told_once() -> None:
    judge, _ = member(lambda parts: '{"truth": 10}')
    for _ in range(3):
        scores(judge, answers(*"abcdefghij"))
    assert judge.notices() == ["judge 'wise' gave all of the first 20 answers the same score, 1: it tells nothing"]


def test_canaries_without_a_verdict_are_counted_apart(tmp_path: Path) -> None:
    judge, _ = member(lambda parts: None, canaries={"path": canary_file(tmp_path), "rate": 1.0})
    scores(judge, answers(*"abc"))
    assert judge.metrics()["judge/wise/canaries_missing"] == 3
    assert "judge/wise/agreement" not in judge.metrics()


def test_a_resumed_judge_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = {"ask": {"kind": "pairwise"}, "canaries": {"path": canary_file(tmp_path), "rate": 0.7}}
    (whole, _), (first, _), (second, asked) = (member(longer, **settings) for _ in range(3))
    for texts in ("abc", "defg", "hi"):
        scores(whole, answers(*texts))
    scores(first, answers(*"abc"))
    scores(first, answers(*"defg"))
    second.restore(first.state())
    scores(second, answers(*"hi"))
    assert json.dumps(second.state(), default=repr) == json.dumps(whole.state(), default=repr)
    assert {k: v for k, v in second.metrics().items() if k[:4] != "time"} == {
        k: v for k, v in whole.metrics().items() if k[:4] != "time"
    }
    assert {request.repeat.split()[1] for request in asked.asked if request.repeat} == {"4", "5"}


OUTCOMES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3)


@given(st.lists(st.tuples(OUTCOMES, st.sampled_from([0.0, 0.5, 1.0])), max_size=12), st.integers(4, 8))
def test_health_equals_its_definition_over_the_window_and_survives_a_resume(
    canaries: list[tuple[list[float], float]], window: int
) -> None:
    health = JudgeHealth("w", window=window)
    for number, (outcomes, is_longer) in enumerate(canaries):
        health.add_canary(CanaryOutcome(number, f"c:{number}", tuple(outcomes), is_longer))
    seen = canaries[-window:]
    metrics = health.metrics()
    if seen:
        assert metrics["judge/w/agreement"] == np.mean([outcomes[0] == 1 for outcomes, _ in seen])
    unequal = [(outcomes[0], is_longer) for outcomes, is_longer in seen if is_longer != 0.5]
    if unequal:
        won = [first if is_longer == 1 else 1 - first for first, is_longer in unequal]
        expected = np.mean(won) - np.mean([is_longer for _, is_longer in unequal])
        assert metrics["judge/w/length_bias"] == pytest.approx(expected)
    repeated = [outcomes for outcomes, _ in seen if len(outcomes) > 1]
    if repeated:
        same = [np.mean([a == b for i, a in enumerate(one) for b in one[:i]]) for one in repeated]
        assert metrics["judge/w/self_consistency"] == pytest.approx(np.mean(same))
    again = JudgeHealth("w", window=window)
    again.restore(health.state())
    assert again.metrics() == metrics
    assert again.canaries == health.canaries


def test_the_bias_of_position_is_the_wins_of_slot_a() -> None:
    health = JudgeHealth("w", window=4)
    health.add_pairs([PairOutcome(1.0, 0.0), PairOutcome(1.0, 1.0), PairOutcome(0.5, 0.5), PairOutcome(1.0, 0.5)])
    slot_a = [(1 + 1) / 2, (1 + 0) / 2, 0.5, (1 + 0.5) / 2]
    assert health.metrics()["judge/w/first_preferred"] == np.mean(slot_a)
    assert health.metrics()["judge/w/order_consistency"] == 0.5


def test_no_floor_holds_for_a_few_canaries_or_an_interval_that_reaches_it() -> None:
    health = JudgeHealth("w", window=100)
    for number in range(7):
        health.add_canary(CanaryOutcome(number, "c:1", (0.0,), 1.0))
    assert health.fault(0.99) == ""
    health.add_canary(CanaryOutcome(7, "c:1", (0.0,), 1.0))
    assert health.fault(0.33) != ""
    assert health.fault(0.3) == "", "the interval ends at 0.32"


def test_a_canary_without_a_first_verdict_has_no_outcome() -> None:
    item = CanaryItem(place="c:1", prompt="q", good="g", bad="bb", columns={})
    missing = GradedAnswers([failed_result(ScoreStatus.ERROR, "e"), result_from_value(1.0)], (), 0)
    known = GradedAnswers([result_from_value(1.0), result_from_value(0.5)], (), 0)
    assert canary_outcome(0, item, [missing, known]) is None
    assert canary_outcome(3, item, [known, missing]) == CanaryOutcome(3, "c:1", (1.0,), 0.0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=5), max_size=4))
def test_length_correlation_is_that_of_centred_groups(groups: list[list[tuple[int, int]]]) -> None:
    scores_ = [np.array([score for score, _ in group], np.float64) for group in groups]
    lengths = [np.array([length for _, length in group], np.float64) for group in groups]
    found = length_correlation(scores_, lengths)
    x = [score - np.mean(one) for one in scores_ if len(one) > 1 for score in one]
    y = [length - np.mean(one) for one in lengths if len(one) > 1 for length in one]
    if len(x) and np.std(x) > 1e-9 and np.std(y) > 1e-9:
        assert found == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    else:
        assert found is None
