"""The course of a sweep: batches of trials, judged and halved; then the best again on fresh seeds.

Belongs here: which trials are trained, how far, and what is written down in between. Nothing depends on which run ends
first: a batch is judged when all its runs have ended, and every judgement is written once and read back by a resume.
So an interrupted sweep makes the trials of an uninterrupted one, and none twice.

The next trials are a function of the trials so far: a grid, or Optuna's ask and tell. A proposal holds no state: after
an interruption the same trials give the same next ones. Trials run as commands
of `hone train`, several at a time, and are scored as `hone compare` does.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from pydantic import JsonValue

from hone.core.errors import ResourceError
from hone.core.random import key
from hone.evaluate.sweep.space import GridSearch, OptunaSearch, SweptKey, TrialSettings, grid, trial_label
from hone.run.store.comparison import (
    FRESH_RUNS,
    SEARCH_RUNS,
    Comparison,
    RungRecord,
    SweepJournal,
    SweepRecord,
    SweepTrialRecord,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial
from pathlib import Path

from hone.core.errors import DataError, InterruptedRun
from hone.evaluate.comparison import IGNORED_KEYS, compare, read_runs
from hone.process.commands import CommandEnd, CommandRunner, HoneCommand, run_commands
from hone.run.store.comparison import GroupSummary, TrialScore
from hone.run.store.folder import MANIFEST

# ---------------------------------------------------------------------------------------------------------------- judge


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrialRuns:
    """A trial's runs, or the reason why it has no score."""

    trial: int
    label: str
    runs: Sequence[Path]
    failure: str = ""


def uncompared_keys(keys: Sequence[str]) -> list[str]:
    """Keys in which runs of one group may differ, so that a comparison cannot tell their values apart."""
    return [key for key in keys if IGNORED_KEYS.match(key)]


def _judge(trials: Sequence[_TrialRuns], *, root: Path, metric: str) -> tuple[dict[int, TrialScore], Comparison | None]:
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


def _best(scores: Mapping[int, TrialScore], count: int) -> tuple[int, ...]:
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
            _TrialRuns(
                trial=one.number,
                label=trial_label(one.number, one.settings),
                runs=[folder / TrialRun(trial=one, seed=seed, part=part, steps=0).name for seed in seeds],
                failure=failures.get(one.number, ""),
            )
            for one in trials
        ]
        with self._metric_advice():
            return _judge(judged, root=folder, metric=self.metric)

    @contextmanager
    def _metric_advice(self) -> Iterator[None]:
        """Adds what to do to faults of runs that are judged by a named metric."""
        try:
            yield
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
        if end.code == 0 and self.metric:
            # of the first run, not of the last: a metric that none of them writes shows at once
            with self._metric_advice():
                read_runs([str(self.journal.folder / run.name)], self.journal.folder, metric=self.metric)


def _reason(run: TrialRun, end: CommandEnd) -> str:
    return f"seed {run.seed}: {end.lines[0] if end.lines else f'exit code {end.code}'}"


# ------------------------------------------------------------------------------------------------------------ proposals


_ATTEMPTS = 32
"""Draws for settings that were not tried yet, before a search counts as exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """A finished trial: its settings, and its score after each number of steps at which it was judged."""

    settings: TrialSettings
    scores: Mapping[int, float]
    complete: bool
    """It was trained to the last step."""


class TrialProposer(Protocol):
    """Chooses settings."""

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        """The settings of the next batch of trials, none of them tried before; empty at the end of the search."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridProposer:
    """All combinations as one batch."""

    combinations: Sequence[TrialSettings]

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        return [] if history else list(self.combinations)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaProposer:
    """Optuna's TPE sampler. The study is built from the history, and each draw has its own seed."""

    keys: Sequence[SweptKey]
    search: OptunaSearch

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        count = min(self.search.batch, self.search.trials - len(history))
        if count <= 0:
            return []
        from optuna import create_study, samplers  # noqa: PLC0415 - an extra
        from optuna.trial import TrialState  # noqa: PLC0415 - an extra

        study = create_study(direction="maximize")
        spaces = {one.key: _distribution(one) for one in self.keys}
        for outcome in history:
            study.add_trial(_told(outcome, self.keys, spaces))
        tried = [dict(outcome.settings) for outcome in history]
        proposed: list[dict[str, JsonValue]] = []
        for attempt in range(_ATTEMPTS * count):
            seed = key(self.search.seed, "sweep", len(history), attempt) & 0x7FFFFFFF
            study.sampler = samplers.TPESampler(seed=seed, n_startup_trials=self.search.startup_trials)
            asked = study.ask(spaces)
            settings = {one.key: _value(one, asked.params[one.key]) for one in self.keys}
            if settings in tried or settings in proposed:
                study.tell(asked, state=TrialState.FAIL)
                continue
            proposed.append(settings)
            if len(proposed) == count:
                break
        return list(proposed)


def make_proposer(search: GridSearch | OptunaSearch, keys: list[SweptKey]) -> TrialProposer:
    """The proposer of a search. Raises ConfigError for a grid over a range, ResourceError without Optuna."""
    if isinstance(search, GridSearch):
        return GridProposer(combinations=grid(keys))
    # raise ResourceError that names the extra where Optuna cannot be imported
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ResourceError(
            f'search.kind = "optuna" needs Optuna, which cannot be imported ({error}): pip install "hone-rl[sweep]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return OptunaProposer(keys=keys, search=search)


def _distribution(one: SweptKey) -> "BaseDistribution":
    """The distribution of a key; a list is drawn by its positions, so that its values may be of any kind."""
    from optuna import distributions  # noqa: PLC0415 - an extra

    if one.range is None:
        return distributions.CategoricalDistribution(tuple(range(len(one.values))))
    if one.range.whole:
        return distributions.IntDistribution(int(one.range.low), int(one.range.high), log=one.range.log)
    return distributions.FloatDistribution(one.range.low, one.range.high, log=one.range.log)


def _value(one: SweptKey, drawn: JsonValue) -> JsonValue:
    """The value of a key for what its distribution drew."""
    return one.values[cast("int", drawn)] if one.range is None else drawn


def _told(outcome: TrialOutcome, keys: Sequence[SweptKey], spaces: Mapping[str, "BaseDistribution"]) -> "FrozenTrial":
    """An outcome as Optuna's trial: complete, pruned with the scores so far, or failed without a score."""
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - an extra

    known = {steps: score for steps, score in outcome.scores.items() if math.isfinite(score)}
    state = TrialState.FAIL if not known else TrialState.COMPLETE if outcome.complete else TrialState.PRUNED
    places = {one.key: one.values.index(outcome.settings[one.key]) for one in keys if one.range is None}
    return create_trial(
        state=state,
        value=known[max(known)] if state == TrialState.COMPLETE else None,
        params={**outcome.settings, **places},
        distributions=dict(spaces),
        intermediate_values=known,
    )


# --------------------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What decides the trials and runs of a sweep."""

    seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]
    rungs: tuple[int, ...]
    """Steps after which a batch is judged; the last is the end of a run."""
    factor: int
    """One trial of so many goes on after a rung."""
    finalists: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A finished sweep, and the comparisons that it rests on."""

    record: SweepRecord
    searched: Comparison | None
    """Trials that reached the last step, on the seeds that chose."""
    fresh: Comparison | None
    """Finalists on the fresh seeds."""


def rung_steps(steps: int, *, first: int, factor: int) -> tuple[int, ...]:
    """Steps of the rungs: `first`, `first * factor` ... below `steps`, then `steps`."""
    rungs = [first]
    while rungs[-1] * factor < steps:
        rungs.append(rungs[-1] * factor)
    return (*(one for one in rungs if one < steps), steps)


def kept_count(trials: int, factor: int) -> int:
    """Trials that go on after a rung: one of `factor`, rounded up."""
    return -(-trials // factor)


class SweepSearch:
    """A sweep: `proposer` chooses trials, `runs` trains and scores them."""

    def __init__(
        self,
        plan: SweepPlan,
        journal: SweepJournal,
        *,
        proposer: TrialProposer,
        runs: TrialTrainer,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._plan, self._journal = plan, journal
        self._proposer, self._runs, self._note = proposer, runs, note

    def run(self) -> SweepResult:
        """Make every run that is missing. Raises InterruptedRun on request, when all runs have saved their state;
        the error of the runs if all trials of a batch failed."""
        history: list[TrialOutcome] = []
        batch = 0
        while trials := self._batch_trials(batch, history):
            history += self._judge_batch(batch, trials)
            batch += 1
        searched = self._searched()
        # train the best trials again on seeds that chose nothing. The order of the finalists stays that of the search
        last = self._plan.rungs[-1]
        scores = {one.trial: one for rung in self._journal.record.rungs if rung.steps == last for one in rung.scores}
        chosen = _best(scores, self._plan.finalists)
        trials = [self._journal.record.trials[number] for number in chosen]
        self._journal.write(replace(self._journal.record, finalists=chosen))
        self._note(f"best: trial {trial_label(chosen[0], trials[0].settings)}; now the fresh seeds")
        results, comparison = self._runs.train_and_judge(trials, self._plan.fresh_seeds, FRESH_RUNS, last)
        self._journal.write(replace(self._journal.record, fresh=tuple(results[number] for number in chosen)))
        return SweepResult(record=self._journal.record, searched=searched, fresh=comparison)

    def _batch_trials(self, batch: int, history: Sequence[TrialOutcome]) -> list[SweepTrialRecord]:
        """The trials of a batch: those written down, else new ones."""
        if known := [one for one in self._journal.record.trials if one.batch == batch]:
            return known
        first = len(self._journal.record.trials)
        trials = [
            SweepTrialRecord(number=number, batch=batch, settings=settings)
            for number, settings in enumerate(self._proposer.propose(history), start=first)
        ]
        self._journal.write(replace(self._journal.record, trials=(*self._journal.record.trials, *trials)))
        return trials

    def _judge_batch(self, batch: int, trials: Sequence[SweepTrialRecord]) -> list[TrialOutcome]:
        """Train a batch from rung to rung, the better trials further than the others."""
        running = list(trials)
        scores: dict[int, dict[int, float]] = {one.number: {} for one in trials}
        for steps in self._plan.rungs:
            rung = self._rung(batch, steps, running)
            for one in rung.scores:
                scores[one.trial][steps] = one.mean
            running = [one for one in trials if one.number in rung.kept]
        last = self._plan.rungs[-1]
        return [
            TrialOutcome(
                settings=one.settings,
                scores=scores[one.number],
                complete=math.isfinite(scores[one.number].get(last, math.nan)),
            )
            for one in trials
        ]

    def _rung(self, batch: int, steps: int, trials: Sequence[SweepTrialRecord]) -> RungRecord:
        """The judgement of these trials after `steps` steps, from the record or from their runs."""
        known = next((one for one in self._journal.record.rungs if (one.batch, one.steps) == (batch, steps)), None)
        if known is not None:
            return known
        results, comparison = self._runs.train_and_judge(trials, self._plan.seeds, SEARCH_RUNS, steps)
        last = steps == self._plan.rungs[-1]
        kept = _best(results, len(results) if last else kept_count(len(trials), self._plan.factor))
        scores = tuple(results[one.number] for one in trials)
        rung = RungRecord(batch=batch, steps=steps, scores=scores, kept=kept)
        self._journal.write(
            replace(self._journal.record, rungs=(*self._journal.record.rungs, rung), metric=comparison.metric)
        )
        if not last:
            self._note(f"step {steps}: {len(kept)} of {len(trials)} trials go on")
        return rung

    def _searched(self) -> Comparison | None:
        """Comparison of the trials that reached the last step."""
        last = self._plan.rungs[-1]
        there = [trial for rung in self._journal.record.rungs if rung.steps == last for trial in rung.kept]
        trials = [one for one in self._journal.record.trials if one.number in there]
        return self._runs.judge(trials, self._plan.seeds, SEARCH_RUNS, {})[1]
