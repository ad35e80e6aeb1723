"""Grades of answers: the questions that a judge is asked about them, and scores from its verdicts.

An answer without a readable verdict has no score: its status says why. It is never 0.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hone.core.conversation import Message
from hone.core.episodes import ScoreStatus
from hone.core.judging import ScorerInput
from hone.rewards.judges.canaries import CanaryItem
from hone.rewards.judges.config import PairwiseQuestion, RewardJudge
from hone.rewards.judges.questions import answer_text, compare_request, first_wins, grade_request, grade_score
from hone.rewards.judges.requests import JudgeReply, JudgeRequest
from hone.rewards.judges.verdicts import VerdictError, VerdictValue, read_verdict
from hone.rewards.scores import RewardResult, failed_result, result_from_value
from hone.text.evaluate.judges.client import JudgeClient, JudgeFault

Prompt: TypeAlias = "str | Sequence[Message]"
PendingVerdict: TypeAlias = "tuple[JudgeRequest, Future[JudgeReply]]"


@dataclass(frozen=True, slots=True)
class PendingPair:
    """Two answers that are being compared in both orders."""

    first: int
    """Place of the first answer in its group."""
    second: int | None
    """Place of the second answer; None for the reference."""
    orders: tuple[PendingVerdict, PendingVerdict] | None
    """The first answer as A, and as B; None for two equal answers, which nobody needs to compare."""


@dataclass(frozen=True, slots=True)
class PendingGrades:
    """Answers to one prompt that are being graded."""

    count: int
    grades: Sequence[PendingVerdict] = ()
    """Grades of single answers."""
    pairs: Sequence[PendingPair] = ()
    faults: Mapping[int, str] | None = None
    """Answers that cannot be asked about, and why."""

    @property
    def verdicts(self) -> list[PendingVerdict]:
        """All verdicts that are asked for."""
        return [*self.grades, *(verdict for pair in self.pairs for verdict in pair.orders or ())]


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """Result of a comparison: wins of the first answer, 0 to 1, in each order."""

    as_a: float
    as_b: float

    @property
    def wins(self) -> float:
        """Wins of the first answer, with both orders weighted equally."""
        return (self.as_a + self.as_b) / 2

    @property
    def consistent(self) -> bool:
        """True if both orders prefer the same answer, or neither."""
        return self.as_a == self.as_b

    @property
    def slot_a_wins(self) -> tuple[float, float]:
        """Wins of the answer shown first, in both orders; 1/2 for a tie."""
        return self.as_a, 1.0 - self.as_b


@dataclass(frozen=True, slots=True)
class GradedAnswers:
    """Results of the answers to one prompt, and of the comparisons among them."""

    results: Sequence[RewardResult]
    pairs: Sequence[PairOutcome]
    tokens: int
    """Tokens of the verdicts, read and written, cached ones included."""


def ask_grades(judge: RewardJudge, client: JudgeClient, answers: Sequence[ScorerInput]) -> PendingGrades:
    """Begin to grade the answers to one prompt."""
    texts = [answer_text(answer) for answer in answers]
    references = [_reference(judge, answer.columns) for answer in answers]
    faults = {
        place: f"there is nothing to compare with: the column {judge.column!r} is empty"
        for place, reference in enumerate(references)
        if judge.column is not None and not reference
    }
    if isinstance(judge.ask, PairwiseQuestion):
        return _ask_pairs(judge, client, answers[0].prompt, texts, references, faults)
    grades = [
        _ask(client, grade_request(judge, answer.prompt, text, reference))
        for place, (answer, text, reference) in enumerate(zip(answers, texts, references, strict=True))
        if place not in faults
    ]
    return PendingGrades(len(answers), grades=grades, faults=faults)


def _ask_pairs(
    judge: RewardJudge,
    client: JudgeClient,
    prompt: Prompt,
    texts: Sequence[str],
    references: Sequence[str | None],
    faults: Mapping[int, str],
) -> PendingGrades:
    assert isinstance(judge.ask, PairwiseQuestion)
    if judge.ask.reference is not None:
        pairs = [
            _ask_pair(judge, client, prompt, (place, text), (None, str(references[place])))
            for place, text in enumerate(texts)
            if place not in faults
        ]
        return PendingGrades(len(texts), pairs=pairs, faults=faults)
    pairs = [
        _ask_pair(judge, client, prompt, (one, texts[one]), (other, texts[other]))
        for one, other in ring_pairs(len(texts), judge.ask.opponents)
    ]
    alone = {0: "a pairwise judge needs two answers to a prompt, or ask.reference"} if len(texts) == 1 else {}
    return PendingGrades(len(texts), pairs=pairs, faults=alone)


def ring_pairs(count: int, opponents: int) -> list[tuple[int, int]]:
    """Each of `count` answers with the `opponents` next ones in a ring; every pair once."""
    steps = range(1, min(opponents, count - 1) + 1)
    ring = [(place, (place + step) % count) for step in steps for place in range(count)]
    return list({frozenset(pair): pair for pair in reversed(ring)}.values())[::-1]


def finished_grades(judge: RewardJudge, pending: PendingGrades) -> GradedAnswers:
    """The results of graded answers. Raises HoneError where the run must stop."""
    tokens = sum(map(_tokens, pending.verdicts))
    faults = {} if pending.faults is None else pending.faults
    if not isinstance(judge.ask, PairwiseQuestion):
        grades = iter(pending.grades)
        results = [
            failed_result(ScoreStatus.UNSCORABLE, faults[place]) if place in faults else _grade(judge, next(grades))
            for place in range(pending.count)
        ]
        return GradedAnswers(results, (), tokens)
    wins: list[list[float]] = [[] for _ in range(pending.count)]
    missing: dict[int, RewardResult] = {
        place: failed_result(ScoreStatus.UNSCORABLE, reason) for place, reason in faults.items()
    }
    outcomes: list[PairOutcome] = []
    for pair in pending.pairs:
        outcome = _pair_outcome(pair)
        places = [pair.first] if pair.second is None else [pair.first, pair.second]
        if isinstance(outcome, RewardResult):
            missing.update(dict.fromkeys(places, outcome))
            continue
        outcomes += [] if pair.orders is None else [outcome]
        for place, won in zip(places, (outcome.wins, 1.0 - outcome.wins), strict=False):
            wins[place].append(won)
    results = [
        result_from_value(float(np.mean(wins[place])), source="the judge") if wins[place] else missing[place]
        for place in range(pending.count)
    ]
    return GradedAnswers(results, outcomes, tokens)


def ask_canary(
    judge: RewardJudge, client: JudgeClient, item: CanaryItem, repeat: str, temperature: float
) -> PendingGrades:
    """Begin to grade a canary: its good and bad answers, compared or graded one by one."""
    reference = _reference(judge, item.columns)
    if isinstance(judge.ask, PairwiseQuestion):
        orders = (
            compare_request(judge, item.prompt, item.good, item.bad),
            compare_request(judge, item.prompt, item.bad, item.good),
        )
        first, second = (_ask(client, one.again(repeat, temperature=temperature)) for one in orders)
        return PendingGrades(2, pairs=[PendingPair(0, 1, (first, second))])
    requests = [grade_request(judge, item.prompt, text, reference) for text in (item.good, item.bad)]
    return PendingGrades(2, grades=[_ask(client, one.again(repeat, temperature=temperature)) for one in requests])


def _ask_pair(
    judge: RewardJudge, client: JudgeClient, prompt: Prompt, one: tuple[int, str], other: tuple[int | None, str]
) -> PendingPair:
    if one[1] == other[1]:
        return PendingPair(one[0], other[0], None)
    forward = _ask(client, compare_request(judge, prompt, one[1], other[1]))
    backward = _ask(client, compare_request(judge, prompt, other[1], one[1]))
    return PendingPair(one[0], other[0], (forward, backward))


def _pair_outcome(pair: PendingPair) -> PairOutcome | RewardResult:
    """The outcome of a comparison; the result of its answers where a verdict is missing."""
    if pair.orders is None:
        return PairOutcome(0.5, 0.5)
    forward, backward = (_verdict(one) for one in pair.orders)
    if isinstance(forward, RewardResult):
        return forward
    if isinstance(backward, RewardResult):
        return backward
    return PairOutcome(first_wins(forward), 1.0 - first_wins(backward))


def _ask(client: JudgeClient, request: JudgeRequest) -> PendingVerdict:
    return request, client.ask(request)


def _reference(judge: RewardJudge, columns: Mapping[str, object]) -> str | None:
    value = None if judge.column is None else columns.get(judge.column)
    return None if value is None or not str(value).strip() else str(value)


def _grade(judge: RewardJudge, pending: PendingVerdict) -> RewardResult:
    verdict = _verdict(pending)
    if isinstance(verdict, RewardResult):
        return verdict
    return result_from_value(grade_score(judge, verdict), source="the judge")


def _verdict(pending: PendingVerdict) -> Mapping[str, VerdictValue] | RewardResult:
    """The verdict, or the result of an answer without one."""
    request, future = pending
    try:
        reply = future.result()
    except JudgeFault as fault:
        return failed_result(fault.status, fault.reason)
    try:
        return read_verdict(reply.text, request.fields, request.form)
    except VerdictError as error:
        cut = reply.finish_reason == "length"
        why = f"the reply was cut off at max_tokens = {request.max_tokens}: " if cut else ""
        return failed_result(ScoreStatus.UNSCORABLE, f"{why}{error}")


def _tokens(pending: PendingVerdict) -> int:
    try:
        return pending[1].result().tokens
    except JudgeFault:
        return 0
