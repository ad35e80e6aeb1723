"""A pool of killable processes that score answers while generation goes on.

Belongs here: the assignment of answers to workers, deadlines, the handling of hangs and crashes, and early stops.
Results are made here, in the trainer, from replies: type, length and finiteness are checked again.

A batch is cut into jobs, a job into pieces (one call of a function each). A worker answers piece by piece. When a piece
hangs or takes the process down, the worker is killed and replaced, the pieces after it are queued again, and it alone
is cut further: down to one unit (a sample, or a group), which has no score.
"""

import contextlib
import itertools
import math
import re
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias, cast

from hone.core.clock import Clock, SystemClock
from hone.core.credit import Metrics
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, DataError, HoneError, UserCodeError, did_you_mean
from hone.core.judging import DatasetRow
from hone.process.child import ChildLostError, ChildProcess, LineParser
from hone.process.wire import decode, encode
from hone.rewards.code_tests import check_code_reward
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.functions import check_reference
from hone.rewards.references import ReferenceRule, missing_rows
from hone.rewards.score_watch import reward_fault
from hone.rewards.scores import RewardResult, RewardScores, combine_results, failed_result, result_from_value

# ----------------------------------------------------------------------------------------------------------------- jobs

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
        scores = f"gave {len(result.turns)} {self.unit} scores {list(result.turns)} to an answer{place}"
        hint = "" if self.unit == "turn" else " (rewards.step_end divides it; the last one may be empty)"
        return f"{scores} of {turns} {self.unit}s{hint}"


@dataclass(slots=True)
class RewardTicket:
    """A submitted batch; `RewardWorkerPool.results` waits for it."""

    batch: RewardBatch
    results: list[list[RewardResult | None]]
    pending: int
    tracebacks: list[str] = field(default_factory=list[str])
    fatal: HoneError | None = None


@dataclass(frozen=True, slots=True)
class _RewardJob:
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
class _FunctionStats:
    """Statistics of a function's calls so far."""

    seconds_per_sample: float | None = None
    """Seconds per sample, exponentially smoothed; None before the first call."""
    has_succeeded: bool = False
    """It answered at least once without failing."""
    workers_lost: int = 0
    errors: set[str] = field(default_factory=set[str])
    """Distinct errors that it raised."""

    def job_size(self) -> int:
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


def _split_into_units(
    batch: RewardBatch, unit: Literal["sample", "group"], samples: Collection[int]
) -> list[tuple[int, ...]]:
    """The smallest parts of a batch that one call may get; without groups, single samples."""
    groups = batch.groups
    if unit == "group" and groups is not None:
        return [tuple(members) for _, members in groupby(samples, key=lambda index: groups[index])]
    return [(index,) for index in samples]


def _plan_jobs(
    ticket: RewardTicket, function: int, *, unit: Literal["sample", "group"], form: str, job_size: int, workers: int
) -> list[_RewardJob]:
    """Jobs for the answers of a batch without a result: small enough to keep all workers busy, and to notice a hang
    soon."""
    open_samples = [index for index, result in enumerate(ticket.results[function]) if result is None]
    size = max(1, min(job_size, -(-len(open_samples) // workers)))
    blocks: list[list[tuple[int, ...]]] = [[]]
    for one in _split_into_units(ticket.batch, unit, open_samples):
        if sum(map(len, blocks[-1])) >= size:
            blocks.append([])
        blocks[-1].append(one)
    jobs: list[_RewardJob] = []
    for samples in (tuple(index for unit in block for index in unit) for block in blocks if block):
        pieces = (samples,) if form == "batch" else tuple((index,) for index in samples)
        jobs.append(_RewardJob(ticket, function, pieces))
    return jobs


def _parse_message(line: bytes) -> dict[str, object]:
    """A worker's line as a message; an empty one for an invalid line, which no reader accepts."""
    try:
        message = decode(line)
    except ValueError:
        return {}
    return cast("dict[str, object]", message) if isinstance(message, dict) else {}


def origin_fault(reply: Mapping[str, object], job: int, place: int, pid: int) -> str:
    """What is wrong with the origin of a reply that should be of this process, to this piece of this job; else
    empty."""
    if reply.get("pid") != pid:
        return (
            f"was answered by process {reply.get('pid')} instead of its worker {pid}, so no score is sure to belong to "
            "its answer: the function forked and let both processes return; end the forked one with os._exit, or use "
            "multiprocessing or subprocess"
        )
    if (reply.get("job"), reply.get("piece")) != (job, place):
        return f"sent a reply to call {reply.get('piece')} of job {reply.get('job')} instead of {place} of {job}"
    return ""


def parse_results(
    reply: Mapping[str, object], count: int, *, source: str = "the function"
) -> list[RewardResult] | None:
    """The results in a reply to a piece of `count` samples; None for an invalid reply."""
    scores, reasons = reply.get("scores"), reply.get("reasons")
    if not (isinstance(scores, list) and isinstance(reasons, list) and len(scores) == len(reasons) == count):
        return None
    if not all(_is_score(score) for score in scores):
        return None
    seconds = _parse_seconds(reply) / count
    return [
        result_from_value(score, reason=str(reason), seconds=seconds, source=source)
        for score, reason in zip(scores, reasons, strict=True)
    ]


def parse_logged(reply: Mapping[str, object]) -> dict[str, tuple[float, float]]:
    """Sum and count of each figure that a function recorded; what is no such pair of finite numbers is left out, as are
    names beyond 64 and names that no file should hold."""
    logged = reply.get("logged")
    figures: dict[str, tuple[float, float]] = {}
    for name, pair in cast("dict[object, object]", logged).items() if isinstance(logged, dict) else ():
        match pair:
            case [int() | float() as total, int() | float() as count] if math.isfinite(total) and count > 0:
                if isinstance(name, str) and _LOGGED_NAME.fullmatch(name) and len(figures) < _MOST_LOGGED:
                    figures[name] = (float(total), float(count))
            case _:
                continue
    return figures


def _is_score(score: object) -> bool:
    if isinstance(score, list):
        return all(isinstance(turn, int | float) for turn in cast("list[object]", score))
    return score is None or isinstance(score, int | float)


def _first_out_of_bounds(results: Sequence[RewardResult], bounds: Sequence[float] | None) -> float | None:
    """The first score that is not within `bounds` (lowest, highest); None when all are."""
    if bounds is None:
        return None
    scores = [result.score for result in results if result.status is ScoreStatus.SCORED]
    return next((score for score in scores if not bounds[0] <= score <= bounds[1]), None)


def _parse_seconds(reply: Mapping[str, object]) -> float:
    """The seconds that a worker reports; 0 where it reports none."""
    seconds = reply.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


# ------------------------------------------------------------------------------------------------------------- starting

Worker: TypeAlias = ChildProcess[bytes]


# -------------------------------------------------------------------------------------------------------------- workers

_LOGGED_NAME = re.compile(r"[\w./ -]{1,80}")
_MOST_LOGGED = 64
_MAX_START_FAILURES = 8
"""Hangs and crashes of a function that never gave a score, after which it is not tried further."""


class RewardWorkerPool:
    """Scores batches with the functions of a config, in `limits.workers` processes. Processes start with the first
    `check` or `submit`. Use it as a context manager, or call `close`: nothing that a function started survives it.
    `warnings` are limits that the system lacks, `notices` those that failed later."""

    def __init__(self, config: RewardsConfig, limits: UserCodeConfig, *, clock: Clock | None = None) -> None:
        self._limits, self._functions = limits, config.worker_functions
        self._clock = clock or SystemClock()
        self._names, self._max_abs_score = config.function_names, limits.max_abs_score
        self._stats = [_FunctionStats() for _ in self._functions]
        self._changed = threading.Condition()
        self._jobs: deque[_RewardJob] = deque()
        self._numbers = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self._signatures: list[FunctionSignature] = []
        self._fatal: HoneError | None = None
        self._closing = False
        self._read_only: tuple[str, ...] = ()
        self._told: set[str] = set()
        self._logged: dict[str, list[tuple[float, float]]] = {}
        self.warnings, self.notices = list[str](), list[str]()

    def __enter__(self) -> "RewardWorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> None:
        """Import all functions in a worker, and see that the dataset has the columns that they name, in every row.
        Raises ConfigError (a reference that is none), UserCodeError (import fails, no such name, unknown form, a column
        is missing), DataError (rows without a value in a column that a function cannot do without), all faults at
        once."""
        # Start the workers if there are none, and wait until the first has imported the functions
        with self._changed:
            if self._closing:
                raise ConfigError("the worker pool is closed")
            if not self._threads:
                for function in self._functions:
                    check_reference(function.use)
                for function in self._functions:
                    check_code_reward(function.use, function.options)
                for number in range(self._limits.workers):
                    name = f"reward-worker-{number}"
                    thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    thread.start()
                    self._threads.append(thread)
            self._changed.wait_for(lambda: self._signatures or self._fatal)
            if self._fatal:
                raise self._fatal
        rules = [self._reference_rule(place) for place in range(len(self._names))]
        faults = [
            f"reward function {rule.name!r} asks for a column {column!r} that the dataset does not have"
            + (did_you_mean(column, sorted(columns)) or "; the dataset has no columns beside the prompt")
            for rule in rules
            for column in sorted(rule.required - set(columns))
        ]
        wrong_rows = missing_rows(rows, rules)
        if faults or wrong_rows:
            raise (UserCodeError if faults else DataError)(*faults, *wrong_rows)

    def write_protect(self, folder: Path) -> None:
        """Make a folder read-only for workers; call it before the first `submit`."""
        self._read_only = (str(folder.absolute()),)

    def submit(self, batch: RewardBatch) -> RewardTicket:
        """Begin to score a batch; returns at once (the first call waits for a worker to start). Raises as `check`."""
        self.check({*batch.columns, *batch.conversation})
        count = len(batch.completions)
        optional = {"groups": batch.groups, "ids": batch.ids, "turns": batch.turns}
        values_of = {"prompts": batch.prompts, **batch.columns, **{name: v for name, v in optional.items() if v}}
        if wrong := [f"{name} has {len(values)}" for name, values in values_of.items() if len(values) != count]:
            raise ValueError(f"a batch of {count} completions needs {count} values of everything: {', '.join(wrong)}")
        functions = len(self._names)
        ticket = RewardTicket(batch, [[None] * count for _ in range(functions)], count * functions)
        for function in range(functions):
            reasons = self._reference_rule(function).unscorable(batch.columns, count)  # the function is not called
            for index, reason in reasons.items():
                ticket.results[function][index] = failed_result(ScoreStatus.UNSCORABLE, reason)
            ticket.pending -= len(reasons)
        with self._changed:
            for function in range(functions):
                self._jobs.extend(
                    _plan_jobs(
                        ticket,
                        function,
                        unit=self._functions[function].unit,
                        form=self._signatures[function].form,
                        job_size=self._stats[function].job_size(),
                        workers=self._limits.workers,
                    )
                )
            self._changed.notify_all()
        return ticket

    def _reference_rule(self, function: int) -> ReferenceRule:
        """The columns that a function needs in each row."""
        return ReferenceRule(
            name=self._names[function],
            use=self._functions[function].use,
            required=self._signatures[function].required_columns,
        )

    def results(self, tickets: Sequence[RewardTicket]) -> tuple[list[list[RewardResult]], list[str]]:
        """Wait for batches; each function's results in the order of the tickets, and tracebacks of new errors. Raises
        UserCodeError: a function broke its contract (wrong length, not numbers), or failed on every answer although it
        never worked before."""
        parts = [self._finished(ticket) for ticket in tickets]
        columns = [[result for part in parts for result in part[place]] for place in range(len(self._names))]
        return columns, [text for ticket in tickets for text in ticket.tracebacks]

    def score(self, batch: RewardBatch) -> RewardScores:
        """The scores of a batch: the weighted sum of its functions' results. Raises as `submit` and `results`."""
        columns, tracebacks = self.results([self.submit(batch)])
        weights = [function.weight for function in self._functions]
        return combine_results(
            dict(zip(self._names, columns, strict=True)),
            weights,
            tracebacks=tracebacks,
            max_abs_score=self._max_abs_score,
            ids=batch.ids,
        )

    def pop_logged(self) -> Metrics:
        """`logged/NAME`: mean over the answers since the last call of what functions recorded."""
        with self._changed:
            logged, self._logged = self._logged, {}
        return {
            f"logged/{name}": math.fsum(total for total, _ in own) / math.fsum(count for _, count in own)
            for name, own in sorted(logged.items())
        }

    def close(self) -> None:
        """Kill all workers and their descendants; scores not gathered by now are lost."""
        with self._changed:
            self._closing = True
            self._jobs.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _finished(self, ticket: RewardTicket) -> list[list[RewardResult]]:
        with self._changed:
            self._changed.wait_for(lambda: ticket.pending == 0 or ticket.fatal or self._fatal or self._closing)
            if fatal := ticket.fatal or self._fatal:
                raise fatal
            if ticket.pending:
                raise ConfigError("the worker pool was closed before these scores were ready")
        columns = [cast("list[RewardResult]", column) for column in ticket.results]
        for name, record, column in zip(self._names, self._stats, columns, strict=True):
            if not record.has_succeeded and any(result.status is not ScoreStatus.UNSCORABLE for result in column):
                reasons = dict.fromkeys(result.reason for result in column)
                raise reward_fault(
                    f"reward function {name!r} failed on all {len(column)} answers of its first batch:",
                    *list(reasons)[:3],
                    *ticket.tracebacks[:1],
                )
        return columns

    # ------------------------------------------------------------------ from here on: in the thread of one worker

    def _serve(self) -> None:
        process: Worker | None = None
        try:
            process = fresh = self._start_worker()
            while jobs := self._next_jobs():
                if process is None:
                    process = fresh = self._start_worker()
                if process is fresh:
                    self._protect(process)
                    fresh = None
                process = self._run(jobs, process)
        except HoneError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - a thread that died without a word would leave `results` waiting
            self._fail(HoneError(f"the reward pool failed: {error!r}", traceback.format_exc()))
        finally:
            if process is not None:
                process.kill()

    def _fail(self, error: HoneError) -> None:
        with self._changed:
            if not self._closing:  # a worker that was still starting is killed by `close`
                self._fatal = self._fatal or error
            self._changed.notify_all()

    def _next_jobs(self) -> list[_RewardJob]:
        """The jobs that a worker is sent together: a small share of the queue; none when the pool closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing or self._fatal)
            if self._closing or self._fatal:
                return []
            most = -(-len(self._jobs) // self._limits.workers)
            taken = [self._jobs.popleft()]
            room = self._stats[taken[0].function].max_samples() - taken[0].samples
            while len(taken) < most and self._jobs[0].function == taken[0].function:
                room -= self._jobs[0].samples
                if room < 0:
                    break
                taken.append(self._jobs.popleft())
            return taken

    def _start_worker(self) -> Worker:
        """A worker that has imported all functions, and keeps out of `write_protect`ed folders. Raises UserCodeError,
        ResourceError."""
        limits = self._limits
        process = ChildProcess("hone.rewards.worker", LineParser(), clock=self._clock, abandoned=lambda: self._closing)
        process.start()
        functions = [{"use": function.use, "options": function.options} for function in self._functions]
        process.send(encode({"functions": functions, "memory_bytes": limits.memory_bytes, "confined": limits.confined}))
        try:
            reply = _parse_message(process.receive(limits.start_deadline_s))
        except ChildLostError as lost:
            process.kill()
            slow = f"took longer than user_code.start_deadline_s = {limits.start_deadline_s:g} s"
            raise reward_fault(
                f"importing the reward functions ({', '.join(self._names)}): {slow if lost.timeout else lost}"
            ) from None
        if "ready" not in reply:
            process.kill()
            raise reward_fault(*cast("list[str]", reply.get("refused", ["the worker did not start"])))
        signatures = [
            FunctionSignature(
                form=str(signature["form"]),
                columns=frozenset(cast("list[str]", signature["takes"])),
                required_columns=frozenset(cast("list[str]", signature["needs"])),
                takes_any_column=bool(signature["takes_all"]),
            )
            for signature in cast("list[dict[str, object]]", reply["ready"])
        ]
        gaps = [
            f"reward functions are not fully confined: {gap}; user_code.confined = false silences this"
            for gap in cast("list[str]", reply["gaps"])
        ]
        with self._changed:
            self.warnings = self.warnings or gaps
            self._signatures = self._signatures or signatures
            self._changed.notify_all()
        return process

    def _protect(self, process: Worker) -> None:
        """Make folders read-only for a new worker, for good, before its first job, which finds out if it is lost."""
        process.send(encode({"read_only": list(self._read_only)}))
        faults: list[str] = []
        with contextlib.suppress(ChildLostError):
            reply = _parse_message(process.receive(self._limits.start_deadline_s))
            faults = cast("list[str]", reply.get("faults", []))
        with self._changed:
            self.notices.extend(f"reward functions: {fault}" for fault in faults if fault not in self._told)
            self._told.update(faults)

    def _run(self, jobs: Sequence[_RewardJob], process: Worker) -> Worker | None:
        """Do jobs, which are sent together and answered in order; the worker, or None when it had to be killed (the
        rest is queued again)."""
        numbered = [(job, next(self._numbers)) for job in jobs]
        sent = deque(one for one in numbered if self._send_job(*one, process))
        while sent:
            if not self._read_answers(*sent.popleft(), process):
                with self._changed:
                    self._jobs.extendleft(job for job, _ in reversed(sent))
                    self._changed.notify_all()
                process.kill()  # with all that it started
                return None
        return process

    def _send_job(self, job: _RewardJob, number: int, process: Worker) -> bool:
        if job.ticket.fatal:
            return False
        try:
            process.send(self._request(job, number))
        except (TypeError, ValueError, RecursionError) as error:
            self._abort_ticket(
                job, f"cannot be called: {error}; columns must be numbers, text, or lists and dicts of them"
            )
            return False
        return True

    def _read_answers(self, job: _RewardJob, number: int, process: Worker) -> bool:
        """Take up the answers to a job; False when a piece of it took the worker down, or something else answered."""
        for place, piece in enumerate(job.pieces):
            try:
                reply = _parse_message(process.receive(self._limits.deadline_s))
            except ChildLostError as lost:
                limit_s = self._limits.deadline_s
                reason = f"no answer within user_code.deadline_s = {limit_s:g} s; the worker was killed"
                slow = failed_result(ScoreStatus.TIMEOUT, reason, seconds=limit_s)
                result = slow if lost.timeout else failed_result(ScoreStatus.ERROR, str(lost))
                self._record_lost_worker(job, place, result)
                return False
            if reply and (fault := origin_fault(reply, number, place, process.pid)):
                self._abort_ticket(job, fault)
                return False
            self._record_reply(job, piece, reply)
        return True

    def _request(self, job: _RewardJob, number: int) -> bytes:
        batch = job.ticket.batch
        samples = [index for piece in job.pieces for index in piece]
        columns = batch.columns_for(self._signatures[job.function])
        return encode(
            {
                "job": number,
                "function": job.function,
                "prompts": [batch.prompts[index] for index in samples],
                "completions": [batch.completions[index] for index in samples],
                "columns": {name: [values[index] for index in samples] for name, values in columns.items()},
                "sizes": [len(piece) for piece in job.pieces],
            }
        )

    def _record_reply(self, job: _RewardJob, piece: tuple[int, ...], reply: Mapping[str, object]) -> None:
        """Check and record a worker's reply to one piece."""
        if "contract" in reply:
            self._abort_ticket(job, str(reply["contract"]))
        elif "error" in reply:
            self._record_failure(job, piece, reply)
        elif (results := parse_results(reply, len(piece))) is None:
            self._abort_ticket(job, f"sent no valid reply for {len(piece)} completions")
        elif wrong := next(filter(None, map(job.ticket.batch.wrong_turns, piece, results)), ""):
            self._abort_ticket(job, wrong)
        elif (score := _first_out_of_bounds(results, self._functions[job.function].bounds)) is not None:
            self._abort_ticket(job, f"gave {score:g}, outside its bounds {self._functions[job.function].bounds}")
        else:
            with self._changed:
                for name, pair in parse_logged(reply).items():
                    self._logged.setdefault(name, []).append(pair)
            self._settle(job, piece, results)

    def _record_failure(self, job: _RewardJob, piece: tuple[int, ...], reply: Mapping[str, object]) -> None:
        """The function raised: find out for which units, and keep one traceback of each distinct error."""
        if self._requeue_by_unit(job, piece):
            return
        reason = str(reply["error"])
        result = failed_result(ScoreStatus.ERROR, reason, seconds=_parse_seconds(reply))
        with self._changed:
            errors = self._stats[job.function].errors
            if reason not in errors:
                errors.add(reason)
                job.ticket.tracebacks.append(f"{self._names[job.function]}: {reply.get('traceback', reason)}")
        self._settle(job, piece, [result] * len(piece))

    def _requeue_by_unit(self, job: _RewardJob, piece: tuple[int, ...]) -> bool:
        """Queue a failed piece again unit by unit; False when it is a single one."""
        units = _split_into_units(job.ticket.batch, self._functions[job.function].unit, piece)
        if len(units) == 1:
            return False
        with self._changed:
            self._jobs.extendleft(_RewardJob(job.ticket, job.function, (unit,)) for unit in reversed(units))
            self._changed.notify_all()
        return True

    def _record_lost_worker(self, job: _RewardJob, place: int, result: RewardResult) -> None:
        """A piece took its worker down: the pieces after it are queued again, and it is cut or has no score."""
        if self._closing:
            return
        piece, rest = job.pieces[place], job.pieces[place + 1 :]
        record = self._stats[job.function]
        with self._changed:
            record.workers_lost += 1
            record.seconds_per_sample = None  # its measured speed no longer holds
            if rest:
                self._jobs.appendleft(_RewardJob(job.ticket, job.function, rest))
                self._changed.notify_all()
            hopeless = record.workers_lost >= _MAX_START_FAILURES and not record.has_succeeded
        if hopeless:
            self._abort_ticket(
                job, f"never gave a score and took down {record.workers_lost} workers; the last: {result.reason}"
            )
        elif not self._requeue_by_unit(job, piece):
            self._settle(job, piece, [result] * len(piece))

    def _settle(self, job: _RewardJob, piece: tuple[int, ...], results: Sequence[RewardResult]) -> None:
        record = self._stats[job.function]
        with self._changed:
            for index, result in zip(piece, results, strict=True):
                job.ticket.results[job.function][index] = result
            if any(result.status in (ScoreStatus.SCORED, ScoreStatus.UNSCORABLE) for result in results):
                record.has_succeeded = True
                record.add_duration(sum(result.seconds for result in results) / len(results))
            job.ticket.pending -= len(piece)
            if job.ticket.pending == 0:
                self._changed.notify_all()

    def _abort_ticket(self, job: _RewardJob, message: str) -> None:
        """The ticket cannot be finished: its queued jobs are dropped, and `results` raises."""
        with self._changed:
            job.ticket.fatal = job.ticket.fatal or reward_fault(
                f"reward function {self._names[job.function]!r} {message}"
            )
            self._changed.notify_all()
