"""Grades of answers: the questions that a judge is asked about them, and scores from its verdicts.

An answer without a readable verdict has no score: its status says why. It is never 0.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message
from hone.core.credit import Metrics
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, ErrorCollector, UserCodeError, did_you_mean, run_all_checks
from hone.core.judging import DatasetRow, ScorerInput
from hone.core.state import State, integer, substate
from hone.estimators.means import wilson_interval
from hone.rewards.judges.canaries import CanaryItem, due_canaries, pick_canary, read_canaries
from hone.rewards.judges.config import PairwiseQuestion, RewardJudge
from hone.rewards.judges.questions import (
    JudgeReply,
    JudgeRequest,
    VerdictError,
    VerdictValue,
    answer_text,
    compare_request,
    first_wins,
    grade_request,
    grade_score,
    read_verdict,
)
from hone.rewards.references import describe_missing
from hone.rewards.score_watch import ScoreWatch
from hone.rewards.scorer import MeasuredMember
from hone.rewards.scores import RewardResult, failed_result, result_from_value
from hone.text.evaluate.judges.client import JudgeClient, JudgeFault

Prompt: TypeAlias = "str | Sequence[Message]"
PendingVerdict: TypeAlias = "tuple[JudgeRequest, Future[JudgeReply]]"


@dataclass(frozen=True, slots=True)
class _PendingPair:
    """Two answers that are being compared in both orders."""

    first: int
    """Place of the first answer in its group."""
    second: int | None
    """Place of the second answer; None for the reference."""
    orders: tuple[PendingVerdict, PendingVerdict] | None
    """The first answer as A, and as B; None for two equal answers, which nobody needs to compare."""


@dataclass(frozen=True, slots=True)
class _PendingGrades:
    """Answers to one prompt that are being graded."""

    count: int
    grades: Sequence[PendingVerdict] = ()
    """Grades of single answers."""
    pairs: Sequence[_PendingPair] = ()
    faults: Mapping[int, str] | None = None
    """Answers that cannot be asked about, and why."""

    @property
    def verdicts(self) -> list[PendingVerdict]:
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


def ask_grades(judge: RewardJudge, client: JudgeClient, answers: Sequence[ScorerInput]) -> _PendingGrades:
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
    return _PendingGrades(len(answers), grades=grades, faults=faults)


def _ask_pairs(
    judge: RewardJudge,
    client: JudgeClient,
    prompt: Prompt,
    texts: Sequence[str],
    references: Sequence[str | None],
    faults: Mapping[int, str],
) -> _PendingGrades:
    assert isinstance(judge.ask, PairwiseQuestion)
    if judge.ask.reference is not None:
        pairs = [
            _ask_pair(judge, client, prompt, (place, text), (None, str(references[place])))
            for place, text in enumerate(texts)
            if place not in faults
        ]
        return _PendingGrades(len(texts), pairs=pairs, faults=faults)
    pairs = [
        _ask_pair(judge, client, prompt, (one, texts[one]), (other, texts[other]))
        for one, other in ring_pairs(len(texts), judge.ask.opponents)
    ]
    alone = {0: "a pairwise judge needs two answers to a prompt, or ask.reference"} if len(texts) == 1 else {}
    return _PendingGrades(len(texts), pairs=pairs, faults=alone)


def ring_pairs(count: int, opponents: int) -> list[tuple[int, int]]:
    """Each of `count` answers with the `opponents` next ones in a ring; every pair once."""
    steps = range(1, min(opponents, count - 1) + 1)
    ring = [(place, (place + step) % count) for step in steps for place in range(count)]
    return list({frozenset(pair): pair for pair in reversed(ring)}.values())[::-1]


def finished_grades(judge: RewardJudge, pending: _PendingGrades) -> GradedAnswers:
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


def _ask_canary(
    judge: RewardJudge, client: JudgeClient, item: CanaryItem, repeat: str, temperature: float
) -> _PendingGrades:
    """Begin to grade a canary: its good and bad answers, compared or graded one by one."""
    reference = _reference(judge, item.columns)
    if isinstance(judge.ask, PairwiseQuestion):
        orders = (
            compare_request(judge, item.prompt, item.good, item.bad),
            compare_request(judge, item.prompt, item.bad, item.good),
        )
        first, second = (_ask(client, one.again(repeat, temperature=temperature)) for one in orders)
        return _PendingGrades(2, pairs=[_PendingPair(0, 1, (first, second))])
    requests = [grade_request(judge, item.prompt, text, reference) for text in (item.good, item.bad)]
    return _PendingGrades(2, grades=[_ask(client, one.again(repeat, temperature=temperature)) for one in requests])


def _ask_pair(
    judge: RewardJudge, client: JudgeClient, prompt: Prompt, one: tuple[int, str], other: tuple[int | None, str]
) -> _PendingPair:
    if one[1] == other[1]:
        return _PendingPair(one[0], other[0], None)
    forward = _ask(client, compare_request(judge, prompt, one[1], other[1]))
    backward = _ask(client, compare_request(judge, prompt, other[1], one[1]))
    return _PendingPair(one[0], other[0], (forward, backward))


def _pair_outcome(pair: _PendingPair) -> PairOutcome | RewardResult:
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


# --------------------------------------------------------------------------------------------------------------- health

MIN_CANARIES = 8
"""Canaries before the floor holds."""
_PAIRS = 400
"""Comparisons over which the bias of position is measured."""


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """A canary and its gradings: 1 where the good answer won, 1/2 for a tie, 0 where the bad one won."""

    number: int
    place: str
    outcomes: tuple[float, ...]
    """One for each repeat that has a verdict, the first at the judge's own temperature."""
    good_is_longer: float
    """1, 0, or 1/2 for equal lengths in characters."""


def canary_outcome(number: int, item: CanaryItem, graded: Sequence[GradedAnswers]) -> CanaryOutcome | None:
    """The outcome of a canary from its repeats; None where the first has no verdict."""
    outcomes = [_outcome(one) for one in graded]
    if not outcomes or outcomes[0] is None:
        return None
    longer = (1.0 + np.sign(len(item.good) - len(item.bad))) / 2
    return CanaryOutcome(number, item.place, tuple(one for one in outcomes if one is not None), float(longer))


def _outcome(graded: GradedAnswers) -> float | None:
    good, bad = graded.results
    if good.status is not ScoreStatus.SCORED or bad.status is not ScoreStatus.SCORED:
        return None
    return float((1.0 + np.sign(good.score - bad.score)) / 2)


class JudgeHealth:
    """Outcomes of the last canaries and comparisons; pure bookkeeping."""

    def __init__(self, name: str, *, window: int) -> None:
        self.name = name
        self.canaries: deque[CanaryOutcome] = deque(maxlen=window)
        self.asked = 0
        """Canaries asked so far."""
        self.missing = 0
        """Canaries without a verdict so far."""
        self._slots: deque[tuple[float, bool]] = deque(maxlen=_PAIRS)
        """Mean wins of slot A, and whether both orders agree, for each comparison."""

    def add_pairs(self, pairs: Sequence[PairOutcome]) -> None:
        self._slots.extend((sum(pair.slot_a_wins) / 2, pair.consistent) for pair in pairs)

    def add_canary(self, outcome: CanaryOutcome | None) -> None:
        """Take a canary into account; None: it has no verdict."""
        self.asked += 1
        if outcome is None:
            self.missing += 1
        else:
            self.canaries.append(outcome)

    def agreed(self) -> int:
        """Number of canaries of the window in which the good answer won."""
        return sum(one.outcomes[0] == 1.0 for one in self.canaries)

    def fault(self, floor: float) -> str:
        """The judge's agreement in words where its interval lies below `floor`; else empty."""
        n = len(self.canaries)
        if n < MIN_CANARIES:
            return ""
        share = wilson_interval(self.agreed(), n)
        if share.high >= floor:
            return ""
        wrong = [one.place for one in self.canaries if one.outcomes[0] < 1.0][-3:]
        return (
            f"agrees with {self.agreed()} of the last {n} canaries ({share.mean:.2f}, 95% interval {share.low:.2f} to "
            f"{share.high:.2f}), below canaries.floor = {floor:g}; for example {', '.join(dict.fromkeys(wrong))}"
        )

    def metrics(self) -> Metrics:
        """Agreement with its interval, self-consistency, and biases, where they are known."""
        metrics, name = Metrics(), self.name
        if self.canaries:
            agreement = wilson_interval(self.agreed(), len(self.canaries))
            metrics |= {
                f"judge/{name}/agreement": agreement.mean,
                f"judge/{name}/agreement_low": agreement.low,
                f"judge/{name}/agreement_high": agreement.high,
            }
            metrics |= self._length_bias() | self._self_consistency()
        if self.asked:
            metrics |= {
                f"judge/{name}/canaries": float(self.asked),
                f"judge/{name}/canaries_missing": float(self.missing),
            }
        if self._slots:
            metrics[f"judge/{name}/first_preferred"] = float(np.mean([wins for wins, _ in self._slots]))
            metrics[f"judge/{name}/order_consistency"] = float(np.mean([same for _, same in self._slots]))
        return metrics

    def _length_bias(self) -> Metrics:
        """Share of canaries in which the longer answer won, less the share in which it is the good one."""
        unequal = [one for one in self.canaries if one.good_is_longer != 0.5]
        if not unequal:
            return {}
        won = [one.outcomes[0] if one.good_is_longer else 1.0 - one.outcomes[0] for one in unequal]
        return {
            f"judge/{self.name}/length_bias": float(np.mean(won) - np.mean([one.good_is_longer for one in unequal]))
        }

    def _self_consistency(self) -> Metrics:
        """Share of pairs of repeats of a canary that agree."""
        same: list[float] = []
        for one in self.canaries:
            values = one.outcomes
            pairs = [(a, b) for place, a in enumerate(values) for b in values[:place]]
            same += [float(np.mean([a == b for a, b in pairs]))] if pairs else []
        return {f"judge/{self.name}/self_consistency": float(np.mean(same))} if same else {}

    def state(self) -> State:
        ragged = [one.outcomes for one in self.canaries]
        return {
            "numbers": np.array([one.number for one in self.canaries], np.int64),
            "places": [one.place for one in self.canaries],
            "counts": np.array([len(one) for one in ragged], np.int64),
            "outcomes": np.array([value for one in ragged for value in one], np.float64),
            "good_is_longer": np.array([one.good_is_longer for one in self.canaries], np.float64),
            "asked": self.asked,
            "missing": self.missing,
            "slots": np.array([wins for wins, _ in self._slots], np.float64),
            "same": np.array([same for _, same in self._slots], np.uint8),
        }

    def restore(self, state: State) -> None:
        """Take up a saved state. Raises DataError where it does not fit."""
        places, asked, missing = state.get("places"), state.get("asked"), state.get("missing")
        arrays = [state.get(name) for name in ("numbers", "counts", "outcomes", "good_is_longer", "slots", "same")]
        if not (isinstance(places, list) and isinstance(asked, int) and isinstance(missing, int)):
            raise DataError("the checkpoint's judge health needs places, asked and missing")
        numbers, counts, outcomes, longer, slots, same = (_floats(values) for values in arrays)
        ends = np.cumsum(counts).astype(int)
        rows = [tuple(part.tolist()) for part in np.split(outcomes, ends[:-1])] if len(ends) else []
        self.canaries.clear()
        for number, place, values, good in zip(numbers, places, rows, longer, strict=True):
            self.canaries.append(CanaryOutcome(int(number), str(place), values, float(good)))
        self._slots.clear()
        self._slots.extend((float(wins), bool(both)) for wins, both in zip(slots, same, strict=True))
        self.asked, self.missing = asked, missing


def _floats(values: object) -> NDArray[np.float64]:
    if not isinstance(values, np.ndarray):
        raise DataError("the checkpoint's judge health lacks an array")
    return values.astype(np.float64)


def length_correlation(scores: Sequence[NDArray[np.float64]], lengths: Sequence[NDArray[np.float64]]) -> float | None:
    """Correlation of score and length within groups: both centred by their group's mean; None where one is constant.
    `scores`, `lengths`: arrays `[n]` of each group. A NaN score is left out."""
    pairs: list[NDArray[np.float64]] = []
    for score, length in zip(scores, lengths, strict=True):
        known = np.isfinite(score)
        if known.sum() > 1:
            both = np.stack([score[known], length[known]])
            pairs.append(both - both.mean(axis=1, keepdims=True))
    if not pairs:
        return None
    x, y = np.concatenate(pairs, axis=1)
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return None if size < 1e-12 else float((x * y).sum() / size)


# --------------------------------------------------------------------------------------------------------------- member

_ROWS_SHOWN = 5
_NO_CANARIES_WINDOW = 100


@dataclass(frozen=True, slots=True)
class _JudgeTicket:
    """Answers to one prompt at the judge."""

    answers: Sequence[ScorerInput]
    pending: _PendingGrades


PendingCanary = tuple[int, CanaryItem, Sequence[_PendingGrades]]
"""Number, item, and the gradings of each repeat."""


class JudgeMember(MeasuredMember):
    """Scores of a judge. It asks nothing before the check or the first answer."""

    def __init__(self, config: RewardJudge, name: str, client: JudgeClient) -> None:
        self.config, self.name, self.client = config, name, client
        window = _NO_CANARIES_WINDOW if config.canaries is None else config.canaries.window
        self.health = JudgeHealth(name, window=window)
        self._answers = 0
        """Answers graded so far; the numbers of the canaries follow from it."""
        self._items: list[CanaryItem] = []
        self._run = ""
        """The run's folder: canaries are asked anew in each run, while answers are not."""
        self._batch: Metrics = {}
        self._watch = ScoreWatch(f"judge {name!r}")

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Ask the server for its models, and read the canaries. Raises HoneError with all faults at once."""
        warnings = run_all_checks({"data": lambda: self._check_data(columns, rows), "model": self.client.backend.check})
        return warnings["model"]

    def write_protect(self, folder: Path) -> None:
        """Take the run's folder, which keeps the judge's spending; a judge runs no code of the user's."""
        self._run = str(folder.resolve())
        self.client.ledger.keep_totals(folder / f"judge_{self.name}.json")

    def notices(self) -> list[str]:
        return [*self.client.notices(), *self._watch.notices()]

    def submit(self, answers: Sequence[ScorerInput]) -> _JudgeTicket:
        return _JudgeTicket(answers, ask_grades(self.config, self.client, answers))

    def results(self, tickets: Sequence[_JudgeTicket]) -> tuple[list[list[RewardResult]], list[str]]:
        """Wait for all verdicts. Raises UserCodeError where the judge's agreement with the canaries is below the floor,
        LostResourceError, before anything of the batch is counted, where the budget is spent."""
        count = sum(len(ticket.answers) for ticket in tickets)
        canaries = self._ask_canaries(count)
        self.client.finish()
        wait([future for ticket in tickets for _, future in ticket.pending.verdicts])
        self.client.ledger.write_totals()
        graded = [finished_grades(self.config, ticket.pending) for ticket in tickets]
        outcomes = [
            canary_outcome(number, item, [finished_grades(self.config, one) for one in repeats])
            for number, item, repeats in canaries
        ]
        self._answers += count
        for one in graded:
            self.health.add_pairs(one.pairs)
        for outcome in outcomes:
            self.health.add_canary(outcome)
        self._batch = self._batch_metrics(tickets, graded)
        self._watch.observe([result.score for one in graded for result in one.results])
        config = self.config.canaries
        fault = "" if config is None else self.health.fault(config.floor)
        if fault:
            cache = f" Its replies are in {self.config.cache}: set another cache first." if self.config.cache else ""
            raise UserCodeError(
                f"judge {self.name!r} {fault}. Nothing was learned from this batch. Fix the judge (`hone plan` prints "
                f"its question), and resume from the last checkpoint.{cache}"
            )
        return [[result for one in graded for result in one.results]], []

    def metrics(self) -> Metrics:
        """`judge/NAME/...`: health, missing verdicts, tokens; `time/judge/NAME/...`: costs, with a cache fewer."""
        name, spending = self.name, self.client.ledger.spending
        return {
            **self.health.metrics(),
            **self._batch,
            f"time/judge/{name}/requests": float(spending.requests),
            f"time/judge/{name}/cached": float(spending.cached),
            f"time/judge/{name}/money": spending.money,
        }

    def state(self) -> State:
        return {"answers": self._answers, "health": self.health.state()}

    def restore(self, state: State) -> None:
        self._answers = integer(state, "answers")
        self.health.restore(substate(state, "health"))

    def close(self) -> None:
        self.client.close()

    def _check_data(self, columns: Collection[str], rows: Sequence[DatasetRow]) -> Sequence[str]:
        """No warnings. Raises DataError where a reference or a canary is missing or damaged."""
        column = self.config.column
        faults = ErrorCollector(DataError)
        if column is not None and column not in columns:
            faults.add(
                f"judge {self.name!r} needs the dataset column {column!r}, which does not exist"
                f"{did_you_mean(column, sorted(columns))}"
            )
        elif column is not None:
            empty = [row for row in rows if describe_missing(row.columns.get(column), blank=True)]
            shown = ", ".join(f"{row.source}:{row.row}" for row in empty[:_ROWS_SHOWN])
            more = ", ..." if len(empty) > _ROWS_SHOWN else ""
            if empty:
                faults.add(f"judge {self.name!r}: the column {column!r} is empty in {len(empty)} rows: {shown}{more}")
        if self.config.canaries is not None:
            try:
                self._canary_items()
            except DataError as error:
                faults.extend(error.messages)
        faults.raise_if_any()
        return []

    def _ask_canaries(self, answers: int) -> list[PendingCanary]:
        """Begin to grade the canaries that are due with this many answers."""
        config = self.config.canaries
        if config is None:
            return []
        items = self._canary_items()
        pending: list[PendingCanary] = []
        for number in due_canaries(self._answers, answers, rate=config.rate):
            item = items[pick_canary(number, len(items))]
            repeats = [
                _ask_canary(
                    self.config,
                    self.client,
                    item,
                    f"canary {number} {repeat} {self._run}",
                    config.temperature if repeat else self.config.temperature,
                )
                for repeat in range(config.repeats)
            ]
            pending.append((number, item, repeats))
        return pending

    def _canary_items(self) -> list[CanaryItem]:
        assert self.config.canaries is not None
        if not self._items:
            self._items = read_canaries(Path(self.config.canaries.path), column=self.config.column)
        return self._items

    def _batch_metrics(self, tickets: Sequence[_JudgeTicket], graded: Sequence[GradedAnswers]) -> Metrics:
        scores = [np.array([result.score for result in one.results]) for one in graded]
        lengths = [np.array([float(len(answer_text(one))) for one in ticket.answers]) for ticket in tickets]
        missing = [result.status is not ScoreStatus.SCORED for one in graded for result in one.results]
        metrics: Metrics = {
            f"judge/{self.name}/missing": float(np.mean(missing)) if missing else 0.0,
            f"judge/{self.name}/tokens": float(sum(one.tokens for one in graded)),
        }
        correlation = length_correlation(scores, lengths)
        return metrics if correlation is None else {**metrics, f"judge/{self.name}/length_correlation": correlation}
