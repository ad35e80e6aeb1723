"""Batches cut into jobs for workers, and replies of workers parsed into results. Plain data and pure functions.

A batch is cut into jobs, a job into pieces (one call of a function each), a piece into units: a sample, or a group.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, cast

from hone.core.episodes import ScoreStatus
from hone.core.errors import HoneError
from hone.process.wire import decode
from hone.rewards.scores import RewardResult, result_from_value

_JOB_S = 0.25
"""Seconds of work that one job should hold, by how long samples took so far."""
_MAX_JOB = 1024
_FIRST_JOB = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBatch:
    """Answers to be scored, `[n]` each."""

    prompts: Sequence[object]
    """Text, or lists of messages."""
    completions: Sequence[object]
    """Text, or lists of messages where the prompts are conversations."""
    columns: Mapping[str, Sequence[object]]
    """The dataset's other columns; handed to functions by name."""
    groups: Sequence[int] | None = None
    """Number of the prompt of each answer, for functions whose unit is the group; a group is contiguous."""
    conversation: Mapping[str, Callable[[], Sequence[object]]] = field(
        default_factory=dict[str, "Callable[[], Sequence[object]]"]
    )
    """`messages` and `tokens`, made for functions that name them, unless the dataset has a column of that name."""
    ids: Sequence[str] = ()
    """Name of each answer's prompt in messages."""
    turns: Sequence[int] = ()
    """Assistant turns of each answer, or its steps; empty: one each."""
    unit: str = "turn"
    """Name of what has a score of its own: a `turn` or a `step`."""

    def columns_for(self, signature: "FunctionSignature") -> dict[str, Sequence[object]]:
        """The columns that a function is sent."""
        offered = {name: values() for name, values in self.conversation.items() if name in signature.columns}
        asked = signature.columns if not signature.takes_any_column else self.columns.keys()
        return {**offered, **{name: values for name, values in self.columns.items() if name in asked}}

    def wrong_turns(self, index: int, result: RewardResult) -> str:
        """The fault of a result that has scores of turns or steps, but not one for each of the answer; else empty."""
        turns = self.turns[index] if self.turns else 1
        if result.turns is None or len(result.turns) == turns:
            return ""
        place = f" to prompt {self.ids[index]!r}" if self.ids else ""
        given = f"gave {len(result.turns)} {self.unit} scores {list(result.turns)} to an answer{place}"
        hint = "" if self.unit == "turn" else " (rewards.step_end divides it; the last one may be empty)"
        return f"{given} of {turns} {self.unit}s{hint}"


@dataclass(slots=True)
class RewardTicket:
    """A submitted batch; `RewardWorkerPool.results` waits for it."""

    batch: RewardBatch
    results: list[list[RewardResult | None]]
    pending: int
    tracebacks: list[str] = field(default_factory=list[str])
    fatal: HoneError | None = None


@dataclass(frozen=True, slots=True)
class RewardJob:
    """Calls of one function on parts of a batch, done by one worker."""

    ticket: RewardTicket
    function: int
    pieces: tuple[tuple[int, ...], ...]
    """Samples of each call, as places in the batch."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSignature:
    """The form and the columns of a function, as its worker reports them."""

    form: str
    columns: frozenset[str]
    required_columns: frozenset[str]
    takes_any_column: bool


@dataclass(slots=True)
class FunctionStats:
    """Statistics of a function's calls so far."""

    seconds_per_sample: float | None = None
    """Seconds per sample, exponentially smoothed; None before the first call."""
    has_succeeded: bool = False
    """It answered at least once without failing."""
    workers_lost: int = 0
    errors: set[str] = field(default_factory=set[str])
    """Distinct errors that it raised."""

    def job_size(self) -> int:
        """Samples of one job."""
        if self.seconds_per_sample is None:
            return _FIRST_JOB
        return max(1, min(_MAX_JOB, int(_JOB_S / max(self.seconds_per_sample, 1e-9))))

    def max_samples(self) -> int:
        """Samples that a worker may be sent at once; one job where nothing is known yet."""
        return 0 if self.seconds_per_sample is None else self.job_size()

    def add_duration(self, seconds: float) -> None:
        """Update the smoothed seconds per sample."""
        self.seconds_per_sample = (
            seconds if self.seconds_per_sample is None else 0.8 * self.seconds_per_sample + 0.2 * seconds
        )


def split_into_units(
    batch: RewardBatch, unit: Literal["sample", "group"], samples: Collection[int]
) -> list[tuple[int, ...]]:
    """The smallest parts of a batch that one call may get; without groups, single samples."""
    groups = batch.groups
    if unit == "group" and groups is not None:
        return [tuple(members) for _, members in groupby(samples, key=lambda index: groups[index])]
    return [(index,) for index in samples]


def plan_jobs(
    ticket: RewardTicket, function: int, *, unit: Literal["sample", "group"], form: str, job_size: int, workers: int
) -> list[RewardJob]:
    """Jobs for the answers of a batch without a result: small enough to keep all workers busy, and to notice a hang
    soon."""
    open_samples = [index for index, result in enumerate(ticket.results[function]) if result is None]
    size = max(1, min(job_size, -(-len(open_samples) // workers)))
    blocks: list[list[tuple[int, ...]]] = [[]]
    for one in split_into_units(ticket.batch, unit, open_samples):
        if sum(map(len, blocks[-1])) >= size:
            blocks.append([])
        blocks[-1].append(one)
    return [RewardJob(ticket, function, _pieces(block, form)) for block in blocks if block]


def _pieces(units: Sequence[tuple[int, ...]], form: str) -> tuple[tuple[int, ...], ...]:
    """One call for all units where the function takes a batch, else one for each sample."""
    samples = tuple(index for unit in units for index in unit)
    return (samples,) if form == "batch" else tuple((index,) for index in samples)


def parse_message(line: bytes) -> dict[str, object]:
    """A worker's line as a message; an empty one for an invalid line, which no reader accepts."""
    try:
        message = decode(line)
    except ValueError:
        return {}
    return cast("dict[str, object]", message) if isinstance(message, dict) else {}


def parse_results(
    reply: Mapping[str, object], count: int, *, source: str = "the function"
) -> list[RewardResult] | None:
    """The results in a reply to a piece of `count` samples; None for an invalid reply."""
    scores, reasons = reply.get("scores"), reply.get("reasons")
    if not (isinstance(scores, list) and isinstance(reasons, list) and len(scores) == len(reasons) == count):
        return None
    if not all(_is_score(score) for score in scores):
        return None
    seconds = parse_seconds(reply) / count
    return [
        result_from_value(score, reason=str(reason), seconds=seconds, source=source)
        for score, reason in zip(scores, reasons, strict=True)
    ]


def _is_score(score: object) -> bool:
    if isinstance(score, list):
        return all(isinstance(turn, int | float) for turn in cast("list[object]", score))
    return score is None or isinstance(score, int | float)


def first_out_of_bounds(results: Sequence[RewardResult], bounds: Sequence[float] | None) -> float | None:
    """The first score that is not within `bounds` (lowest, highest); None when all are."""
    if bounds is None:
        return None
    scores = [result.score for result in results if result.status is ScoreStatus.SCORED]
    return next((score for score in scores if not bounds[0] <= score <= bounds[1]), None)


def parse_seconds(reply: Mapping[str, object]) -> float:
    """The seconds that a worker reports; 0 where it reports none."""
    seconds = reply.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def parse_signature(reply: Mapping[str, object]) -> FunctionSignature:
    """The signature that a worker reports of a function."""
    return FunctionSignature(
        form=str(reply["form"]),
        columns=frozenset(cast("list[str]", reply["takes"])),
        required_columns=frozenset(cast("list[str]", reply["needs"])),
        takes_any_column=bool(reply["takes_all"]),
    )
