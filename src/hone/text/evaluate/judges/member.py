"""A judge as a reward: grades of all answers of a batch, with canaries between them."""

from collections.abc import Collection, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, ErrorCollector, UserCodeError, did_you_mean, run_all_checks
from hone.core.judging import DatasetRow, ScorerInput
from hone.core.state import State, integer, substate
from hone.rewards.judges.canaries import CanaryItem, due_canaries, pick_canary, read_canaries
from hone.rewards.judges.config import RewardJudge
from hone.rewards.judges.questions import answer_text
from hone.rewards.references import describe_missing
from hone.rewards.score_watch import ScoreWatch
from hone.rewards.scores import RewardResult
from hone.text.evaluate.judges.client import JudgeClient
from hone.text.evaluate.judges.grading import GradedAnswers, PendingGrades, ask_canary, ask_grades, finished_grades
from hone.text.evaluate.judges.health import JudgeHealth, canary_outcome, length_correlation
from hone.text.evaluate.judges.open_client import open_client

_ROWS_SHOWN = 5
_NO_CANARIES_WINDOW = 100


@dataclass(frozen=True, slots=True)
class JudgeTicket:
    """Answers to one prompt at the judge."""

    answers: Sequence[ScorerInput]
    pending: PendingGrades


PendingCanary = tuple[int, CanaryItem, Sequence[PendingGrades]]
"""Number, item, and the gradings of each repeat."""


class JudgeMember:
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
        found = run_all_checks({"data": lambda: self._check_data(columns, rows), "model": self.client.backend.check})
        return found["model"]

    def write_protect(self, folder: Path) -> None:
        """Take the run's folder, which keeps the judge's spending; a judge runs no code of the user's."""
        self._run = str(folder.resolve())
        self.client.ledger.keep_totals(folder / f"judge_{self.name}.json")

    def notices(self) -> list[str]:
        return [*self.client.notices(), *self._watch.notices()]

    def submit(self, answers: Sequence[ScorerInput]) -> JudgeTicket:
        return JudgeTicket(answers, ask_grades(self.config, self.client, answers))

    def results(self, tickets: Sequence[JudgeTicket]) -> tuple[list[list[RewardResult]], list[str]]:
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
        self._stop_below_floor()
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
        return {
            "answers": self._answers,
            "health": self.health.state(),
        }

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
            faults.extend(_empty_rows(self.name, column, rows))
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
        found: list[PendingCanary] = []
        for number in due_canaries(self._answers, answers, rate=config.rate):
            item = items[pick_canary(number, len(items))]
            repeats = [
                ask_canary(
                    self.config,
                    self.client,
                    item,
                    f"canary {number} {repeat} {self._run}",
                    config.temperature if repeat else self.config.temperature,
                )
                for repeat in range(config.repeats)
            ]
            found.append((number, item, repeats))
        return found

    def _canary_items(self) -> list[CanaryItem]:
        assert self.config.canaries is not None
        if not self._items:
            self._items = read_canaries(Path(self.config.canaries.path), column=self.config.column)
        return self._items

    def _stop_below_floor(self) -> None:
        config = self.config.canaries
        fault = "" if config is None else self.health.fault(config.floor)
        if fault:
            cache = f" Its replies are in {self.config.cache}: set another cache first." if self.config.cache else ""
            raise UserCodeError(
                f"judge {self.name!r} {fault}. Nothing was learned from this batch. Fix the judge (`hone plan` prints "
                f"its question), and resume from the last checkpoint.{cache}"
            )

    def _batch_metrics(self, tickets: Sequence[JudgeTicket], graded: Sequence[GradedAnswers]) -> Metrics:
        scores = [np.array([result.score for result in one.results]) for one in graded]
        lengths = [np.array([float(len(answer_text(one))) for one in ticket.answers]) for ticket in tickets]
        missing = [result.status is not ScoreStatus.SCORED for one in graded for result in one.results]
        found: Metrics = {
            f"judge/{self.name}/missing": float(np.mean(missing)) if missing else 0.0,
            f"judge/{self.name}/tokens": float(sum(one.tokens for one in graded)),
        }
        correlation = length_correlation(scores, lengths)
        return found if correlation is None else {**found, f"judge/{self.name}/length_correlation": correlation}


def judge_member(config: RewardJudge, name: str, *, device: str) -> JudgeMember:
    """The member of a judge, wired; opens nothing. Raises ConfigError for an address that cannot be one, or a key that
    the environment lacks."""
    return JudgeMember(config, name, open_client(name, config.by, config.budget, cache=config.cache, device=device))


def _empty_rows(name: str, column: str, rows: Sequence[DatasetRow]) -> list[str]:
    empty = [row for row in rows if describe_missing(row.columns.get(column), blank=True)]
    if not empty:
        return []
    shown = ", ".join(f"{row.source}:{row.row}" for row in empty[:_ROWS_SHOWN])
    more = ", ..." if len(empty) > _ROWS_SHOWN else ""
    return [f"judge {name!r}: the column {column!r} is empty in {len(empty)} rows: {shown}{more}"]
