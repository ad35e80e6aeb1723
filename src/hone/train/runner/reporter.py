"""Hears of every step: writes metrics and samples, judges, saves checkpoints, shows progress, and stops when asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hone.core.clock import Clock
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DataError, InterruptedRun
from hone.core.state import State, substate
from hone.store.answers import write_answers
from hone.store.checkpoints import Checkpoints
from hone.store.durable import DiskFullError
from hone.store.evaluations import Evaluation, read_evaluations, write_evaluations
from hone.store.folder import RunFolder
from hone.store.metrics import MetricsWriter
from hone.store.samples import write_samples
from hone.train.config import RunSettings
from hone.train.job import Job, Verdict
from hone.train.runner.signals import StopRequest
from hone.train.runner.step_timing import Stopwatch

PAUSE_S = 5.0
"""Between two tries at a full disk."""


class Progress(Protocol):
    """What a face shows while a run is under way."""

    def start(self, total: int, title: str) -> None: ...

    def update(self, step: int, metrics: Metrics) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


@dataclass
class Window:
    """Means of metrics over the steps since the last line: the largest where a name ends in `_max`, totals for times.
    Saved with a checkpoint, so that a resume changes nothing."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            if name.endswith("_max") and name in self.sums:
                self.sums[name] = max(self.sums[name], value)
                continue
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> Metrics:
        means = {
            name: total if name.startswith("time/") else total / self.counts[name] for name, total in self.sums.items()
        }
        self.sums, self.counts = {}, {}
        return means

    def state(self) -> State:
        return {"sums": dict(self.sums), "counts": dict(self.counts)}

    def restore(self, state: State) -> None:
        self.sums = {name: _number(value) for name, value in substate(state, "sums").items()}
        self.counts = {name: int(_number(value)) for name, value in substate(state, "counts").items()}


@dataclass
class Reporter:
    """Implements `loop.Report` for one run folder."""

    job: Job[Any]
    folder: RunFolder
    checkpoints: Checkpoints
    metrics: MetricsWriter
    settings: RunSettings
    steps: int
    progress: Progress
    stop: StopRequest
    watch: Stopwatch
    clock: Clock
    window: Window = field(default_factory=Window)
    saved_step: int = 0
    told_step: int = 0
    """The last step whose metrics were taken in: it can be saved while the next one is under way."""
    score: float | None = None
    """The figure of this step by which checkpoints are compared; None where there is none."""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic_s()

    def __call__(self, step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        self.tell_notes()
        told = self.job.recipe.source.metrics() | metrics
        if self._due(step, self.job.judge_every) and self.job.judge is not None:
            told |= self._judge(step, self.job.judge)
            self.tell_notes()
        self.score = self._comparable(told)
        now_s = self.clock.monotonic_s()
        self.window.add(told | self.watch.tell() | {"time/step_s": now_s - self._began_s})
        self._began_s = now_s
        if step % self.settings.log_every == 0 or step == self.steps:
            line = self.window.means()
            self._saving(lambda: self.metrics.append(step, line))
            self.progress.update(step, line)
        self.told_step = step
        if self._sampling(step) and self.job.view is not None:
            rows = self.job.view(step, episodes, credits)
            self._saving(lambda: write_samples(self.folder.samples_path(step), rows))
        every = self.settings.checkpoint_every
        if step == self.steps or (every and step % every == 0):
            self.save(step)
        if self.stop.asked and step < self.steps:
            self.save(step)
            raise InterruptedRun(
                f"stopped after step {step} of {self.steps}; saved in {self.folder.checkpoints_folder}. "
                "Go on with --resume.",
                exit_code=self.stop.exit_code,
            )

    def tell_notes(self) -> None:
        """What came up that a person should read: on the screen, and in the log."""
        for note in self.job.notes():
            self.folder.log(note, level="WARNING")
            self.progress.note(note)

    def save(self, step: int) -> None:
        """A whole checkpoint of this step, once."""
        if self.saved_step == step:
            return
        self.metrics.sync()
        recipe = self.job.recipe
        state: State = {
            "step": step,
            "steps": self.steps,
            "source": recipe.source.state(),
            "learner": recipe.learner.state(),
            "report": {"window": self.window.state(), "score": self.score},
        }
        policy, score = self.job.save_policy, self.score
        self._saving(lambda: self.checkpoints.save(step, state, write_policy=policy, score=score))
        self.saved_step = step

    def _saving(self, write: Callable[[], object]) -> None:
        """`_written`, timed. It counts towards the next step, as `time/step_s` does: this one's line is written."""
        self.watch.time("save", lambda: self._written(write))

    def _written(self, write: Callable[[], object]) -> None:
        """Write, and wait for space where there is none. Raises DiskFullError when the wait was in vain."""
        waited_s = 0.0
        while True:
            try:
                write()
            except DiskFullError as fault:
                if waited_s >= self.settings.disk_wait_s or self.stop.asked:
                    raise
                if not waited_s:
                    self.progress.note(f"waiting up to {self.settings.disk_wait_s:g} s for space: {fault}")
                pause_s = min(PAUSE_S, self.settings.disk_wait_s - waited_s)
                self.sleep(pause_s)
                waited_s += pause_s
            else:
                return

    def restore(self, state: State) -> None:
        self.window.restore(substate(state, "window"))
        self.score = None if state.get("score") is None else _number(state["score"])

    def _comparable(self, told: Metrics) -> float | None:
        """Evaluation scores are compared with evaluation scores only: where there is a judge, a training score is
        none, and so is an older step's."""
        return told.get("eval/score") if self.job.judge is not None else told.get("reward/mean", self.score)

    def _judge(self, step: int, judge: Callable[[], Verdict]) -> Metrics:
        verdict = self.watch.time("judge", judge)
        estimate = verdict.estimate
        if verdict.answers:
            write_answers(self.folder.path, step, verdict.answers)
        before, _ = read_evaluations(self.folder.path)
        name = f"step {step}"
        found = Evaluation(
            stage=name, metric="score", mean=estimate.mean, low=estimate.low, high=estimate.high, n=estimate.n
        )
        write_evaluations(self.folder.path, [*(one for one in before if one.stage != name), found])
        return verdict.metrics

    def _due(self, step: int, every: int) -> bool:
        return step == self.steps or (every > 0 and step % every == 0)

    def _sampling(self, step: int) -> bool:
        return self.settings.samples_every > 0 and (step == 1 or self._due(step, self.settings.samples_every))


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise DataError(f"the saved report state holds {value!r} where a number should be")
    return float(value)
