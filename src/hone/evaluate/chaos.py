"""Proof that a run comes through faults with the same bits: an uninterrupted run, the same run under faults, and what
they do not have in common.

Belongs here: which faults come where, how often the run is taken up again, and the comparison. A fault comes at a
counted event of a step (`run.store.durable`): of the events of the uninterrupted run a seed draws as many as are asked
for, in their order, so that every attempt gets further than the one before. Runs are processes of `hone train`.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hone.core.clock import long_work
from hone.core.errors import DataError, DivergedError, HoneError, ResourceError
from hone.core.random import permutation
from hone.core.strict_json import Json
from hone.run.store.checkpoints import CheckpointFolder, step_name
from hone.run.store.durable import (
    ENDING_FAULTS,
    FaultKind,
    Moment,
    PlannedFault,
    read_events,
    read_json_object,
    replace_file,
    to_json,
)
from hone.run.store.folder import MANIFEST
from hone.run.store.metrics import without_clock_metrics

REFERENCE: Final = "uninterrupted"
HARMED: Final = "harmed"
AGAIN: Final = "uninterrupted_again"
RECORD: Final = "chaos.json"
DIFFERENCES_SHOWN: Final = 5
EXPECTED_END: Final = {"kill": -signal.SIGKILL, "disk": ResourceError.exit_code}
"""Exit code of the process after a fault that ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One process of the harmed run."""

    resumed_from: int | None
    """Step of the newest checkpoint when it began; None: there was none, and the run began at its first step."""
    code: int
    """Its exit code; negative: the signal that killed it."""
    faults: tuple[tuple[str, Moment], ...]
    """Faults that came in it, with the events at which they did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosResult:
    """What was done to a run, and what it has in common with the uninterrupted one."""

    attempts: tuple[_Attempt, ...]
    differences: tuple[str, ...]
    """What the harmed run does not have in common with the uninterrupted one; none: the same bits."""
    compared: str
    """What was compared, in words."""
    reproducible: bool = True
    """False: two uninterrupted runs differ as well."""

    def to_json(self) -> Json:
        """For `chaos.json`."""
        attempts: list[Json] = [
            {
                "resumed_from": one.resumed_from,
                "exit_code": one.code,
                "faults": [
                    {"kind": kind, "step": at.step, "event": at.number, "at": at.name} for kind, at in one.faults
                ],
            }
            for one in self.attempts
        ]
        return {
            "attempts": attempts,
            "differences": list(self.differences),
            "compared": self.compared,
            "reproducible": self.reproducible,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosTrial:
    """A config under faults, in a folder of its own."""

    folder: Path
    kinds: Sequence[FaultKind]
    count: int
    """Number of faults."""
    seed: int
    train: Callable[[str, bool, str], tuple[int, str]]
    """Name of a run, whether it is resumed, and the value of `HONE_CHAOS` -> exit code (negative: killed by a signal)
    and the last that the process printed."""
    note: Callable[[str], None] = field(default=lambda _: None)

    def run(self) -> ChaosResult:
        """Raises the error of a run that fails without a fault, and DivergedError where a harmed run does not go on."""
        with long_work("runs ended", 2) as work:
            events = self._uninterrupted(REFERENCE)
            plan = plan_faults(events, self.kinds, self.count, self.seed)
            self.note(f"{len(events)} events in the uninterrupted run; planned: {'; '.join(map(str, plan))}")
            work.total = 2 + sum(fault.kind in ENDING_FAULTS for fault in plan)
            work.advance()
            attempts: list[_Attempt] = []
            for attempt in self._attempts(plan):
                attempts.append(attempt)
                work.advance()
        differences = run_differences(self.folder / REFERENCE, self.folder / HARMED)
        reproducible = True
        if differences:
            self.note("the runs differ; a second uninterrupted run shows whether any two do")
            self._uninterrupted(AGAIN)
            reproducible = not run_differences(self.folder / REFERENCE, self.folder / AGAIN)
        result = ChaosResult(
            attempts=tuple(attempts),
            differences=tuple(differences),
            compared=_compared(self.folder / REFERENCE),
            reproducible=reproducible,
        )
        replace_file(self.folder / RECORD, to_json(result.to_json(), indent=1))
        return result

    def _uninterrupted(self, name: str) -> list[Moment]:
        """Make a run without faults; returns its events."""
        path = self.folder / f"{name}.events"
        code, printed = self.train(name, False, str(path))
        if code:
            fault = HoneError(f"the run fails without any fault (exit code {code}): {printed}")
            fault.exit_code = code if code > 0 else ResourceError.exit_code
            raise fault
        return read_events(path)[0]

    def _attempts(self, plan: Sequence[PlannedFault]) -> Iterator[_Attempt]:
        """The processes of the harmed run, until one of them finishes it."""
        run, left = self.folder / HARMED, list(plan)
        while True:
            path = self.folder / f"{HARMED}_{len(plan) - len(left)}.events"
            path.unlink(missing_ok=True)
            ends = (place + 1 for place, fault in enumerate(left) if fault.kind in ENDING_FAULTS)
            now = left[: next(ends, len(left))]
            begun = (run / MANIFEST).is_file()
            steps = CheckpointFolder(folder=run / "checkpoints").steps()
            code, printed = self.train(HARMED, begun, ";".join([str(path), *map(str, now)]))
            came = read_events(path)[1]
            yield _Attempt(resumed_from=max(steps, default=None), code=code, faults=tuple(came))
            ended_by = came[-1][0] if came and came[-1][0] in ENDING_FAULTS else ""
            expected = EXPECTED_END[ended_by] if ended_by else 0
            if code != expected:
                where = f"after {came[-1][0]} at {came[-1][1]}" if came else "without a fault"
                raise DivergedError(
                    f"attempt {len(plan) - len(left) + 1} of the harmed run ended {where} with exit code {code}, "
                    f"expected {expected}: {printed}",
                    f"the run is kept in {run}; hone train ... --resume shows the same",
                )
            if not ended_by:
                for fault in now[len(came) :]:
                    self.note(f"{fault} did not come: there was no replica from that event to the end")
                return
            left = left[len(now) :]


def plan_faults(events: Sequence[Moment], kinds: Sequence[FaultKind], count: int, seed: int) -> list[PlannedFault]:
    """`count` faults at different events, in their order; kinds take turns. A seed draws the steps, each once before
    one is drawn again, and in each an event.

    Raises DataError for a run with fewer events.
    """
    if len(events) < count:
        raise DataError(f"the run has {len(events)} events, fewer than {count} faults; lower --count")
    by_step: dict[int, list[Moment]] = {}
    for event in (events[place] for place in permutation(seed, "chaos events", 0, count=len(events))):
        by_step.setdefault(event.step, []).append(event)
    steps = [sorted(by_step)[place] for place in permutation(seed, "chaos steps", 0, count=len(by_step))]
    drawn: list[Moment] = []
    while len(drawn) < count:
        drawn += [by_step[step].pop() for step in steps if by_step[step]][: count - len(drawn)]
    return [PlannedFault(kind=kinds[place % len(kinds)], at=event) for place, event in enumerate(sorted(drawn))]


# ----------------------------------------------------------------------------------------------------------- comparison


def run_differences(one: Path, other: Path) -> list[str]:
    """What two finished runs that should be the same run do not have in common: lines of metrics but for clocks, files
    of the last checkpoint, rollouts and answers of evaluations. Raises DataError for an unreadable run."""
    lines = list(_metric_differences(one, other))
    files, others = _last_checkpoint(one), _last_checkpoint(other)
    lines += [f"last checkpoint: {name} differs" for name in _unequal(files, others)]
    for folder in ("rollouts", "evaluation"):
        left, right = (_contents(run / folder) for run in (one, other))
        lines += [f"{folder}/{name} differs" for name in _unequal(left, right)]
    return lines


def _metric_differences(one: Path, other: Path) -> Iterator[str]:
    ours, theirs = (
        without_clock_metrics((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) for run in (one, other)
    )
    for number, (line, expected) in enumerate(zip(theirs, ours, strict=False), start=1):
        if line != expected:
            yield f"metrics.jsonl, line {number}: {line[:160]} where the uninterrupted run has {expected[:160]}"
    if len(ours) != len(theirs):
        yield f"metrics.jsonl has {len(theirs)} lines, that of the uninterrupted run {len(ours)}"


def _last_checkpoint(run: Path) -> dict[str, object]:
    """Size and sha256 of each file of the last checkpoint, by its manifest."""
    folder = CheckpointFolder(folder=run / "checkpoints")
    steps = folder.steps()
    if not steps:
        raise DataError(f"{folder.folder} has no checkpoint")
    files = read_json_object(folder.folder / step_name(steps[-1]) / "manifest.json").get("files")
    if not isinstance(files, dict):
        raise DataError(f"{folder.folder / step_name(steps[-1])}: the manifest names no files")
    return {step_name(steps[-1]): "", **files}


def _contents(folder: Path) -> dict[str, object]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()}


def _unequal(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """Names that only one has, or whose values differ."""
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]


def _compared(run: Path) -> str:
    """What the comparison looked at, in words."""
    lines = len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    more = sum(len(_contents(run / folder)) for folder in ("rollouts", "evaluation"))
    return (
        f"{len(_last_checkpoint(run)) - 1} files of the last checkpoint, {lines} lines of metrics, {more} files of "
        "rollouts and evaluations"
    )
