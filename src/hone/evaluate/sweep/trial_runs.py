"""The runs of trials: made by commands of `hone train`, several at a time, then scored as `hone compare` does."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hone.core.errors import DataError, InterruptedRun, ResourceError
from hone.evaluate.comparison import IGNORED_KEYS, compare
from hone.evaluate.sweep.space import trial_label
from hone.process.commands import CommandEnd, CommandRunner, HoneCommand, run_commands
from hone.run.store.comparison import Comparison, GroupSummary, SweepJournal, SweepTrialRecord, TrialScore
from hone.run.store.folder import MANIFEST

# ---------------------------------------------------------------------------------------------------------------- judge


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRuns:
    """A trial's runs, or the reason why it has no score."""

    trial: int
    label: str
    runs: Sequence[Path]
    failure: str = ""


def uncompared_keys(keys: Sequence[str]) -> list[str]:
    """Keys in which runs of one group may differ, so that a comparison cannot tell their values apart."""
    return [key for key in keys if IGNORED_KEYS.match(key)]


def judge(trials: Sequence[TrialRuns], *, root: Path, metric: str) -> tuple[dict[int, TrialScore], Comparison | None]:
    """Score every trial, and compare those that did not fail; None if all failed. Raises DataError without scores."""
    scores = {one.trial: _failed(one.trial, one.failure) for one in trials if one.failure}
    sound = [one for one in trials if not one.failure]
    if not sound:
        return scores, None
    comparison = compare([str(path) for one in sound for path in one.runs], root=root, metric=metric)
    if len(comparison.groups) != len(sound):
        raise DataError(
            f"{root}: {len(sound)} trials make {len(comparison.groups)} groups of runs: some trials do the same under "
            "different settings; leave those values out"
        )
    names = {group.name: one.label for one, group in zip(sound, comparison.groups, strict=True)}
    scores |= {one.trial: _score(one.trial, group) for one, group in zip(sound, comparison.groups, strict=True)}
    # the comparison with the trials' labels in place of the names of groups

    def text(note: str) -> str:
        old = next((name for name in names if note.startswith(f"{name}: ")), None)
        return note if old is None else names[old] + note[len(old) :]

    return scores, replace(
        comparison,
        groups=tuple(replace(group, name=names[group.name]) for group in comparison.groups),
        improvements=tuple(
            replace(one, before=names[one.before], after=names[one.after]) for one in comparison.improvements
        ),
        paired=tuple(replace(one, before=names[one.before], after=names[one.after]) for one in comparison.paired),
        notes=tuple(map(text, comparison.notes)),
    )


def best(scores: Mapping[int, TrialScore], count: int) -> tuple[int, ...]:
    """The `count` trials with the highest scores, the best first; of equal ones the earlier."""
    known = [one for one in scores.values() if math.isfinite(one.mean)]
    return tuple(one.trial for one in sorted(known, key=lambda one: (-one.mean, one.trial))[:count])


def _score(trial: int, group: GroupSummary) -> TrialScore:
    seeds = [run.score for run in group.runs]
    if any(math.isnan(score) for score in seeds):
        return _failed(trial, "a run has no score")
    return TrialScore(trial=trial, mean=group.iqm.mean, low=group.iqm.low, high=group.iqm.high, worst=min(seeds))


def _failed(trial: int, why: str) -> TrialScore:
    nan = math.nan
    return TrialScore(trial=trial, mean=nan, low=nan, high=nan, worst=nan, failure=why)


# ----------------------------------------------------------------------------------------------------------- trial runs


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """A run to make: a trial with one seed, up to a number of steps."""

    trial: SweepTrialRecord
    seed: int
    part: str
    """`SEARCH_RUNS` or `FRESH_RUNS`."""
    steps: int

    @property
    def folder(self) -> str:
        """Folder of the trial's runs, within the sweep's."""
        return f"{self.part}/{self.trial.folder}"

    @property
    def name(self) -> str:
        """Its own folder, within the sweep's."""
        return "/".join((self.folder, f"seed_{self.seed}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTrainer:
    """Trains and scores trials in the folder of `journal`."""

    journal: SweepJournal
    runner: CommandRunner
    arguments: Callable[[TrialRun, bool], Sequence[str]]
    """The command line after `hone` that makes a run; the second argument says that the run has begun."""
    metric: str = ""
    retries: int = 1
    """Times that a run goes on from its newest checkpoint after its process was lost."""
    stopping: Callable[[], bool] = lambda: False
    note: Callable[[str], None] = lambda _: None

    def train_and_judge(
        self, trials: Sequence[SweepTrialRecord], seeds: Sequence[int], part: str, steps: int
    ) -> tuple[dict[int, TrialScore], Comparison]:
        """Scores of trials that are trained to `steps`. Raises InterruptedRun on request, when all runs have saved
        their state, and the error of the runs if all trials failed."""
        runs = [TrialRun(trial=one, seed=seed, part=part, steps=steps) for one in trials for seed in seeds]
        failed = self._train(runs)
        reasons = {run.trial.number: _reason(run, failed[run.name]) for run in reversed(runs) if run.name in failed}
        scores, comparison = self.judge(trials, seeds, part, reasons)
        if comparison is None:
            fault = DataError(*dict.fromkeys(f"{name}: {line}" for name, end in failed.items() for line in end.lines))
            code = next(iter(failed.values())).code
            fault.exit_code = code if code > 0 else ResourceError.exit_code
            raise fault
        return scores, comparison

    def judge(
        self, trials: Sequence[SweepTrialRecord], seeds: Sequence[int], part: str, failures: Mapping[int, str]
    ) -> tuple[dict[int, TrialScore], Comparison | None]:
        """Scores of trials as their runs are now; `failures` are the reasons of those without one."""
        folder = self.journal.folder
        judged = [
            TrialRuns(
                trial=one.number,
                label=trial_label(one.number, one.settings),
                runs=[folder / TrialRun(trial=one, seed=seed, part=part, steps=0).name for seed in seeds],
                failure=failures.get(one.number, ""),
            )
            for one in trials
        ]
        try:
            return judge(judged, root=folder, metric=self.metric)
        except DataError as fault:
            if not self.metric:
                raise
            advice = f"the runs are kept; --resume --metric NAME judges them by another metric than {self.metric}"
            raise DataError(*fault.messages, advice) from None

    def _train(self, runs: Sequence[TrialRun]) -> dict[str, CommandEnd]:
        """Make the runs that are missing; returns those that failed."""
        pending = [run for run in runs if self.journal.record.finished_runs.get(run.name, 0) < run.steps]
        failed: dict[str, CommandEnd] = {}
        for attempt in range(self.retries + 1):
            ends = run_commands(
                [HoneCommand(name=run.name, arguments=self._words(run)) for run in pending],
                self.runner,
                stopping=self.stopping,
                ended=lambda end: self._take_end(end, runs),
            )
            if self.stopping():
                raise InterruptedRun("stopped; --resume continues the sweep")
            failed |= {name: end for name, end in ends.items() if end.code}
            pending = [run for run in pending if ends[run.name].code < 0]
            if not pending or attempt == self.retries:
                break
            for run in pending:
                self.note(f"{run.name} was lost ({failed.pop(run.name).lines[0]}); it goes on from its checkpoint")
        return failed

    def _words(self, run: TrialRun) -> tuple[str, ...]:
        return tuple(self.arguments(run, (self.journal.folder / run.name / MANIFEST).is_file()))

    def _take_end(self, end: CommandEnd, runs: Sequence[TrialRun]) -> None:
        """Write a finished run down, and say what ended."""
        run = next(one for one in runs if one.name == end.name)
        record = self.journal.record
        if end.code == 0:
            record = replace(record, finished_runs={**record.finished_runs, run.name: run.steps})
            self.journal.write(record)
        done = sum(record.finished_runs.get(one.name, 0) >= one.steps for one in runs)
        how = "finished" if end.code == 0 else "stopped" if self.stopping() else "failed"
        self.note(f"{run.name} {how} ({trial_label(run.trial.number, run.trial.settings)}): {done} of {len(runs)} runs")


def _reason(run: TrialRun, end: CommandEnd) -> str:
    return f"seed {run.seed}: {end.lines[0] if end.lines else f'exit code {end.code}'}"
