"""Hears of every step: writes metrics and samples, judges, saves checkpoints, shows progress, and stops when asked.

Also measures where the time of a step goes: the parts of a recipe, each wrapped in a stopwatch.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.credit import NO_VALUES, Credits, Metrics, Values, explained_variance
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import DataError, InterruptedRun, UserCodeError
from hone.core.state import State, integer, number, substate
from hone.run.alarms import NO_CAUSE, AlarmWatch
from hone.run.callbacks import (
    NO_CALLBACKS,
    CheckpointEvent,
    EvaluationEvent,
    EventT,
    ProgressDisplay,
    RunCallbacks,
    StepEvent,
    StoppedByCallback,
    StopRequest,
    wants_stop,
)
from hone.run.job import EvaluationResult, RunSettings, StepRecord, TrainingJob
from hone.run.loop import Learner, Recipe, SourceWrapper
from hone.run.store.checkpoints import CheckpointFolder, step_name
from hone.run.store.durable import EVENTS, DiskFullError
from hone.run.store.evaluations import (
    EvaluationScore,
    read_evaluations,
    write_answers,
    write_evaluations,
)
from hone.run.store.folder import RunFolder
from hone.run.store.histograms import HISTOGRAMS, HistogramLog
from hone.run.store.metrics import MetricsWindow, MetricsWriter
from hone.run.store.records import LEARNING
from hone.run.store.rollouts import (
    rollout_bytes,
    rollout_files,
    rollout_path,
    rollouts_are_due,
    thin,
    write_rollouts,
)
from hone.run.store.survivorship import SURVIVORSHIP

if TYPE_CHECKING:
    from hone.run.machine import MachineReader
    from hone.run.tracking import RunTracking

# ---------------------------------------------------------------------------------------------------------- step timing


P = TypeVar("P")
T = TypeVar("T")


@dataclass
class Stopwatch:
    """Seconds by name since they were last told, and what was in hand when something failed."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    episodes: Episodes | None = None
    credits: Credits | None = None
    values: Values = NO_VALUES

    def time(self, name: str, work: Callable[[], T]) -> T:
        start = self.clock.monotonic_s()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + self.clock.monotonic_s() - start
        return result

    def pop_metrics(self) -> Metrics:
        metrics = {f"time/{name}_s": seconds for name, seconds in self.seconds.items()}
        self.seconds.clear()
        return metrics


@dataclass
class _TimedSource(SourceWrapper[P]):
    """Source that measures the seconds of each collection."""

    stopwatch: Stopwatch

    def collect(self) -> Episodes:
        self.stopwatch.episodes = self.stopwatch.credits = None  # what fails from here on has no batch yet
        self.stopwatch.values = NO_VALUES
        self.stopwatch.episodes = self.stopwatch.time("collect", self.source.collect)
        return self.stopwatch.episodes

    def publish(self, policy: P) -> None:
        self.stopwatch.time("publish", lambda: self.source.publish(policy))


@dataclass
class _TimedLearner(Generic[P]):
    """Learner that measures the seconds of each update."""

    learner: Learner[P]
    stopwatch: Stopwatch

    @property
    def policy(self) -> P:
        return self.learner.policy

    def values(self, episodes: Episodes) -> Values:
        self.stopwatch.values = self.stopwatch.time("values", lambda: self.learner.values(episodes))
        return self.stopwatch.values

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        self.stopwatch.credits = credits
        return self.stopwatch.time("update", lambda: self.learner.update(episodes, credits))

    def state(self) -> State:
        return self.learner.state()

    def restore(self, state: State) -> None:
        self.learner.restore(state)


def timed(recipe: Recipe[P], stopwatch: Stopwatch) -> Recipe[P]:
    """The same recipe, its parts timed."""
    return Recipe(
        source=_TimedSource(recipe.source, stopwatch),
        credit=lambda episodes, values: stopwatch.time("credit", lambda: recipe.credit(episodes, values)),
        learner=_TimedLearner(recipe.learner, stopwatch),
    )


# ----------------------------------------------------------------------------------------------------- preference watch
# Chosen answers that become less likely while their pairs are told apart better: noticed, and said in one sentence.
#
# A loss on pairs looks at the margin. It can grow while both answers of a pair lose probability to answers that stand
# in no pair; the accuracy on pairs does not show it.


FIRST_STEPS = 5
"""Steps whose means are the beginning that later ones are compared with."""
WEIGHT = 0.2
"""Weight of the newest step in the running means."""
FALL_NATS = 1.0
RISE = 0.05
"""What chosen answers must have lost, and the accuracy gained, for the sentence."""


@dataclass
class PreferenceWatch:
    """Running means of a preference run's `chosen_nats` and `accuracy`; part of a run's state."""

    steps: int = 0
    first_nats: float = 0.0
    first_accuracy: float = 0.0
    nats: float = 0.0
    accuracy: float = 0.0
    was_said: bool = False

    def see(self, step: int, metrics: Metrics) -> list[str]:
        """Take in a step; the sentence, at the first step at which it holds."""
        if "preference/chosen_nats" not in metrics or "preference/accuracy" not in metrics:
            return []
        nats, accuracy = metrics["preference/chosen_nats"], metrics["preference/accuracy"]
        self.steps += 1
        if self.steps <= FIRST_STEPS:
            self.first_nats += (nats - self.first_nats) / self.steps
            self.first_accuracy += (accuracy - self.first_accuracy) / self.steps
            self.nats, self.accuracy = self.first_nats, self.first_accuracy
            return []
        self.nats += WEIGHT * (nats - self.nats)
        self.accuracy += WEIGHT * (accuracy - self.accuracy)
        if self.was_said or not self._falls:
            return []
        self.was_said = True
        return [f"step {step}: {self._words()}"]

    def summary(self) -> list[str]:
        """The sentence, where it holds at the end."""
        words = self._words()
        return [words[0].upper() + words[1:]] if self._falls else []

    @property
    def _falls(self) -> bool:
        fell, rose = self.first_nats - self.nats, self.accuracy - self.first_accuracy
        return self.steps > FIRST_STEPS and fell > FALL_NATS and rose > RISE

    def _words(self) -> str:
        fell = self.first_nats - self.nats
        return (
            f"chosen answers became {fell:.1f} nats less likely while the accuracy on pairs rose from "
            f"{self.first_accuracy:.2f} to {self.accuracy:.2f}: probability moves to answers that are in no pair. "
            'Judge the policy on its own samples; a larger beta, the recipe rpo, or algorithm.loss.kind = "nca" or '
            '"apo_zero" keeps chosen answers likely'
        )

    def state(self) -> State:
        """State for a checkpoint."""
        return {
            "steps": self.steps,
            "first_nats": self.first_nats,
            "first_accuracy": self.first_accuracy,
            "nats": self.nats,
            "accuracy": self.accuracy,
            "was_said": int(self.was_said),
        }

    def restore(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.steps, self.was_said = integer(state, "steps"), bool(integer(state, "was_said"))
        self.first_nats, self.first_accuracy = number(state, "first_nats"), number(state, "first_accuracy")
        self.nats, self.accuracy = number(state, "nats"), number(state, "accuracy")


# ------------------------------------------------------------------------------------------------------- learning watch


MIN_CONSTANT_STEPS = 10
"""Steps with finished episodes before returns that never varied are worth a line."""
NO_ENTROPY_NATS = 1e-6
"""Entropy of a policy that takes one action with probability 1, to the rounding of its logarithms."""
ROUNDING = 1e-9
"""Standard deviation of equal scores, relative to their size, at most."""
_POLICY_NORMS = ("policy/grad_norm", "actor/grad_norm", "all/grad_norm", "generator/grad_norm")

FINDINGS = {
    "no_scores": "taught nothing: no answer had a score",
    "equal_scores": "taught nothing: every answer scored {value}",
    "equal_groups": "taught nothing: the answers to each question scored alike",
    "no_advantage": "taught nothing: every advantage was 0",
    "no_gradient": "taught nothing: the policy's gradient was 0",
    "indistinct": "could not tell answers apart by their scores: every answer scored {value}",
    "timeouts": "had half of their answers or more without a score: their rewards timed out",
    "missing": "had half of their answers or more without a score",
    "no_entropy": "explored nothing: the policy's entropy was 0",
}
"""Finding -> its words after `step 3` or `30 of 30 steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSignals:
    """Figures of a step besides its metrics."""

    advantage_is_zero: bool
    """True if the advantage of every decision is exactly 0."""
    timeouts: float
    """Share of the episodes whose reward timed out."""


@dataclass
class LearningWatch:
    """Counts of the steps without something to learn from, by finding; part of a run's state."""

    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    values: dict[str, float] = field(default_factory=dict[str, float])
    """The score of a finding's steps; NaN where they differ."""
    constant_steps: int = 0
    """Steps with finished episodes of control, as long as all episodes returned the same; -1 once they differed."""
    constant_return: float = 0.0
    preference: PreferenceWatch = field(default_factory=PreferenceWatch)
    """Trend of the chosen answers, in runs on preferences."""

    def see(self, step: int, metrics: Metrics, signals: StepSignals) -> list[str]:
        """Count a step; returns a line for each finding that is the run's first of its kind."""
        self.steps += 1
        lines: list[str] = []
        for name, value in _findings(metrics, signals):
            if name not in self.counts:
                self.counts[name], self.values[name] = 0, value
                lines.append(f"step {step} {self._words(name)}")
            self.counts[name] += 1
            self.values[name] = value if value == self.values[name] else math.nan
        if self._is_newly_constant(metrics):
            lines.append(f"{self._constant_words()} so far")
        return lines + self.preference.see(step, metrics)

    def summary(self) -> list[str]:
        """A line for each finding: `30 of 30 steps taught nothing: every answer scored 0`."""
        lines = [f"{count} of {self.steps} steps {self._words(name)}" for name, count in self.counts.items()]
        lines += [self._constant_words()] if self.constant_steps >= MIN_CONSTANT_STEPS else []
        return lines + self.preference.summary()

    def state(self) -> State:
        """State for a checkpoint."""
        return {
            "steps": self.steps,
            "counts": dict(self.counts),
            "values": dict(self.values),
            "constant_steps": self.constant_steps,
            "constant_return": self.constant_return,
            "preference": self.preference.state(),
        }

    def restore(self, state: State) -> None:
        """Continue counting from a checkpoint."""
        self.steps, self.constant_steps = integer(state, "steps"), integer(state, "constant_steps")
        self.counts = {name: integer(substate(state, "counts"), name) for name in substate(state, "counts")}
        self.values = {name: number(substate(state, "values"), name) for name in substate(state, "values")}
        self.constant_return = number(state, "constant_return")
        if "preference" in state:  # a checkpoint from before the recipes of preferences has none
            self.preference.restore(substate(state, "preference"))

    def _words(self, name: str) -> str:
        value = self.values[name]
        return FINDINGS[name].format(value="alike" if math.isnan(value) else f"{value:g}")

    def _is_newly_constant(self, metrics: Metrics) -> bool:
        """Follow the returns of control; true at the step at which their constancy is worth a line."""
        if self.constant_steps < 0 or _is_text(metrics) or "reward/mean" not in metrics:
            return False
        mean = metrics["reward/mean"]
        if not _is_constant(metrics) or (self.constant_steps and mean != self.constant_return):
            self.constant_steps = -1
            return False
        self.constant_steps, self.constant_return = self.constant_steps + 1, mean
        return self.constant_steps == MIN_CONSTANT_STEPS

    def _constant_words(self) -> str:
        return f"every episode of {self.constant_steps} steps returned {self.constant_return:g}: rewards never differed"


def _findings(metrics: Metrics, signals: StepSignals) -> Iterator[tuple[str, float]]:
    """Findings of one step, each with the score that it names, or 0."""
    text, missing = _is_text(metrics), metrics.get("reward/missing", 0.0)
    equal = "reward/mean" in metrics and _is_constant(metrics) and metrics.get("episodes/ended", 0.0) > 1
    norms = [metrics[name] for name in _POLICY_NORMS if name in metrics]
    norms = norms or [value for name, value in metrics.items() if name.endswith("/grad_norm")]
    if text and missing == 1:
        yield "no_scores", 0.0
    elif text and signals.advantage_is_zero and equal:
        yield "equal_scores", metrics["reward/mean"]
    elif text and signals.advantage_is_zero:
        yield ("equal_groups" if metrics.get("reward/zero_variance_groups") == 1 else "no_advantage"), 0.0
    elif norms and not any(norms):
        yield "no_gradient", 0.0
    elif text and equal and "reward/baseline_missing" not in metrics:
        yield "indistinct", metrics["reward/mean"]
    if text and 0.5 <= missing < 1:
        yield ("timeouts" if signals.timeouts >= 0.5 else "missing"), 0.0
    if abs(metrics.get("policy/entropy_nats", math.inf)) < NO_ENTROPY_NATS:
        yield "no_entropy", 0.0


def _is_constant(metrics: Metrics) -> bool:
    """True if all scores of the step are equal, to the rounding of their mean."""
    return metrics.get("reward/std", math.inf) <= ROUNDING * abs(metrics["reward/mean"])


def _is_text(metrics: Metrics) -> bool:
    return "answers/tokens_mean" in metrics


# ------------------------------------------------------------------------------------------------------------- reporter


DISK_RETRY_S = 5.0
"""Between two tries at a full disk."""
WRITE_EVERY_S = 0.8
"""Lines of a run whose lines come more often are written together: one by one they cost several times the time."""


@dataclass
class RunReporter:
    """Implements `loop.Report` for one run folder."""

    job: TrainingJob[Any]
    folder: RunFolder
    checkpoints: CheckpointFolder
    metrics: MetricsWriter
    settings: RunSettings
    steps: int
    progress: ProgressDisplay
    stop: StopRequest
    stopwatch: Stopwatch
    clock: Clock
    callbacks: RunCallbacks = NO_CALLBACKS
    alarms: AlarmWatch = field(default_factory=lambda: AlarmWatch({}, 1))
    tracking: "RunTracking | None" = None
    """Trackers of `[[track]]`; None without any."""
    machine: "MachineReader | None" = None
    """Readings of memory and disk; None: none are taken."""
    window: MetricsWindow = field(default_factory=MetricsWindow)
    learning: LearningWatch = field(default_factory=LearningWatch)
    saved_step: int = 0
    last_step: int = 0
    """The last step whose metrics were taken in: it can be saved while the next one is under way."""
    selection_score: float | None = None
    """The figure of this step by which checkpoints are compared; None where there is none."""
    best_evaluation: float | None = None
    """Best score of the evaluations so far; None before the first."""
    rollouts_bytes: int | None = None
    """Bytes of the files of rollouts; None: not counted yet."""
    decisions: int = 0
    """Decisions since the last file of rollouts."""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic_s()
        self.histograms = HistogramLog(path=self.folder.path / HISTOGRAMS)
        self._lines: list[tuple[int, Metrics]] = []
        self._unjudged: list[tuple[int, Metrics]] = []
        self._line_s, self._written_s, self._line_every_s = -math.inf, -math.inf, math.inf
        self._stopped_by = ""
        self._callback_fault: UserCodeError | None = None

    def __call__(self, step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        EVENTS.reach(step)
        self.report_notices()
        row = self.job.recipe.source.metrics() | explained_variance(self.stopwatch.values, credits) | metrics
        best = False
        if self._is_due(step, self.job.evaluate_every) and self.job.evaluate is not None:
            row |= self._evaluate(step, self.job.evaluate)
            best = self._take_best(row.get("eval/score", math.nan))
            self.report_notices()
        self.selection_score = (
            row.get("eval/score") if self.job.evaluate is not None else row.get("reward/mean", self.selection_score)
        )
        signals = StepSignals(
            advantage_is_zero=not credits.advantage.any(),
            timeouts=float((episodes.status == ScoreStatus.TIMEOUT).mean()) if len(episodes) else 0.0,
        )
        self._show_findings(step, self.learning.see(step, row, signals))
        now_s = self.clock.monotonic_s()
        times = self.stopwatch.pop_metrics() | {"time/step_s": now_s - self._began_s}
        if "time/publish_s" in times:  # a source that measures the policy which it is given tells how long that took
            times["time/publish_s"] -= row.get("time/distance_s", 0.0)
        self.window.add(row | times)
        self._began_s = now_s
        if step % self.settings.log_every == 0 or step == self.steps:
            line = self.window.means() | {"time/at_s": self.clock.now_s()}
            if self.machine is not None:
                line |= self.machine.read()
            self._lines.append((step, line))
            self._line_every_s, self._line_s = now_s - self._line_s, now_s
            self.progress.update(step, line)
        self._write_rollouts(step, episodes, credits)
        self.last_step = step
        if (write_episodes := self.job.write_episodes) is not None:
            self._timed_write(lambda: write_episodes(self.folder.path, step, episodes))
        # Now, if by the time of the next line it would be too late; where writes are counted, at every line.
        if self._lines and (EVENTS.record >= 0 or now_s - self._written_s + self._line_every_s >= WRITE_EVERY_S):
            self._timed_write(self.append_lines)
        self._call(
            "on_step",
            self.callbacks.on_step,
            StepEvent(step=step, steps=self.steps, metrics=row, run=self.folder.path),
        )
        every = self.settings.checkpoint_every
        if step == self.steps or (every and step % every == 0) or (best and self.settings.keep_best):
            self.save(step)
        self._stop_as_asked(step)

    def append_lines(self) -> None:
        """Write the lines that wait with their histograms, judge them, and let trackers have them. Raises
        ResourceError, and then keeps what is not written."""
        self.metrics.append_lines(self._lines)
        self._unjudged += self._lines
        self._lines = []
        self.histograms.write()
        while self._unjudged:
            step, line = self._unjudged.pop(0)
            self._raise_alarms(step, line)
            if self.tracking is not None:
                self.tracking.complete(step)
        self._written_s = self.clock.monotonic_s()

    def _raise_alarms(self, step: int, line: Metrics) -> None:
        """Write down the alarms that a line of metrics raises or ends, and their cause if it changes; show new ones."""
        before = self.alarms.diagnosis
        for change in self.alarms.see(step, line):
            self.folder.events.append(step, "alarm", change.words, change.data())
            words = f"step {step}: {change.words}"
            self.folder.log(words, level="WARNING" if change.is_raised else "INFO")
            if change.is_raised:
                self.progress.note(f"{words}. To try: {change.advice}")
        if (cause := self.alarms.diagnosis) != before:
            words = NO_CAUSE if cause is None else cause.sentence
            self.folder.events.append(step, "diagnosis", words, None if cause is None else cause.data())
            self.folder.log(words)

    def _write_rollouts(self, step: int, episodes: Episodes, credits: Credits) -> None:
        """The histograms of a step that has a line of metrics, and its rollouts where they are due."""
        trace, rollouts = self.job.pop_trace(), self.job.rollouts
        if rollouts is None:
            return
        if step % self.settings.log_every == 0 or step == self.steps:
            ended = (episodes.terminated | episodes.truncated) & episodes.scored
            columns: dict[str, NDArray[np.generic]] = {
                "reward": episodes.score[ended],
                "length": episodes.lengths,
                "advantage": credits.advantage,
            }
            columns |= {} if trace is None else {"ratio": trace.ratio, "entropy": trace.entropy}
            self.histograms.append(step, columns)
        self.decisions += episodes.decisions
        if rollouts_are_due(step, self.steps, self.settings.rollouts_every, self.decisions):
            self.decisions = 0
            values = self.stopwatch.values
            record = StepRecord(step=step, episodes=episodes, credits=credits, values=values, trace=trace)
            self._timed_write(lambda: write_rollouts(rollout_path(self.folder.path, step), rollouts(record)))
            self._thin_rollouts(step)

    def _thin_rollouts(self, step: int) -> None:
        """Remove older rollouts beyond their space. The folder is looked through only where they may be too many."""
        if self.rollouts_bytes is None:
            self.rollouts_bytes = sum(map(rollout_bytes, rollout_files(self.folder.path).values()))
        else:
            self.rollouts_bytes += rollout_bytes(rollout_path(self.folder.path, step))
        if self.rollouts_bytes > self.settings.rollouts_keep_mb * 1e6:
            thin(self.folder.path, int(self.settings.rollouts_keep_mb * 1e6))
            self.rollouts_bytes = None

    def _call(self, name: str, callback: Callable[[EventT], bool | None] | None, event: EventT) -> None:
        """Call a callback. What follows from it waits until the step is complete and can be saved."""
        try:
            if wants_stop(callback, event, name):
                self._stopped_by = name
        except UserCodeError as fault:
            self._callback_fault = self._callback_fault or fault

    def _stop_as_asked(self, step: int) -> None:
        """Save the step and raise, if a signal or a callback ends the run here."""
        if self._callback_fault is not None:
            self.save(step)
            raise UserCodeError(
                *self._callback_fault.messages, f"step {step} of {self.steps} is saved; a resume goes on after it"
            )
        if self._stopped_by and step < self.steps:
            self.save(step)
            self.folder.events.append(step, "stop", f"stopped by {self._stopped_by}", {"reason": self._stopped_by})
            raise StoppedByCallback(f"stopped after step {step} of {self.steps}: {self._stopped_by} returned False")
        if self.stop.requested and step < self.steps:
            self.save(step)
            name = self.stop.signal_name
            self.folder.events.append(step, "stop", f"stopped by {name}", {"reason": name})
            self.folder.log(f"stopped by {self.stop.signal_name} after step {step} of {self.steps}, which is saved")
            raise InterruptedRun(
                f"stopped after step {step} of {self.steps}; saved in {self.folder.checkpoints_folder}. "
                "Go on with --resume.",
                exit_code=self.stop.exit_code,
            )

    def report_learning(self) -> None:
        """Show, log and save the steps of the run that taught nothing, if any."""
        lines = self.learning.summary()
        if (self.folder.path / LEARNING.name).exists():
            LEARNING.write(self.folder.path, lines)  # those of steps that a resume did over are out of date
        self._show_findings(self.last_step, lines)

    def _show_findings(self, step: int, lines: Sequence[str]) -> None:
        for line in lines:
            self.folder.log(line, level="WARNING")
            self.folder.events.append(step, "finding", line)
            self.progress.note(line)
        if lines:
            LEARNING.write(self.folder.path, self.learning.summary())

    def report_notices(self) -> None:
        """Show notices on the screen and write them to the log."""
        tracking = [] if self.tracking is None else self.tracking.pop_notices()
        for note in [*self.job.pop_notices(), *tracking]:
            self.folder.log(note, level="WARNING")
            self.folder.events.append(self.last_step, "notice", note)
            self.progress.note(note)

    def save(self, step: int) -> None:
        """A whole checkpoint of this step, once."""
        if self.saved_step == step:
            return
        self._timed_write(self.append_lines)
        self.metrics.sync()
        recipe = self.job.recipe
        state: State = {
            "step": step,
            "steps": self.steps,
            "source": recipe.source.state(),
            "learner": recipe.learner.state(),
            "report": {
                "window": self.window.state(),
                "score": self.selection_score,
                "learning": self.learning.state(),
                "best_evaluation": self.best_evaluation,
                "decisions": self.decisions,
            },
        }
        if (counts := self.job.survivorship) is not None:
            state["survivorship"] = counts.state()
            self._timed_write(lambda: SURVIVORSHIP.write(self.folder.path, counts.record()))
        policy, score = self.job.save_policy, self.selection_score
        self._timed_write(lambda: self.checkpoints.save(step, state, write_policy=policy, score=score))
        self.saved_step = step
        folder = self.checkpoints.folder / step_name(step)
        place = str(folder.relative_to(self.folder.path))
        self.folder.events.append(step, "checkpoint", f"checkpoint of step {step}", {"folder": place, "score": score})
        event = CheckpointEvent(step=step, checkpoint=folder, run=self.folder.path)
        self._call("on_checkpoint", self.callbacks.on_checkpoint, event)

    def _timed_write(self, write: Callable[[], object]) -> None:
        """`_written`, timed. It counts towards the next step, as `time/step_s` does: this one's line is written."""
        self.stopwatch.time("save", lambda: self._write_with_retry(write))

    def _write_with_retry(self, write: Callable[[], object]) -> None:
        """Write, and wait for space where there is none. Raises DiskFullError when the wait was in vain."""
        waited_s = 0.0
        while True:
            try:
                write()
            except DiskFullError as fault:
                if waited_s >= self.settings.disk_wait_s or self.stop.requested:
                    raise
                if not waited_s:
                    self.progress.note(f"waiting up to {self.settings.disk_wait_s:g} s for space: {fault}")
                pause_s = min(DISK_RETRY_S, self.settings.disk_wait_s - waited_s)
                self.sleep(pause_s)
                waited_s += pause_s
            else:
                return

    def restore(self, state: State) -> None:
        self.window.restore(substate(state, "window"))
        self.selection_score = _number_or_none(state.get("score"))
        self.best_evaluation = _number_or_none(state.get("best_evaluation"))
        self.decisions = int(_number_or_none(state.get("decisions")) or 0)  # an earlier version saved none
        if "learning" in state:  # a checkpoint from before hone 0.2 has none
            self.learning.restore(substate(state, "learning"))

    def _take_best(self, score: float) -> bool:
        """Whether no evaluation scored more; of equal ones the latest is the best, as in `CheckpointFolder`."""
        if not (math.isfinite(score) and (self.best_evaluation is None or score >= self.best_evaluation)):
            return False
        self.best_evaluation = score
        return True

    def _evaluate(self, step: int, evaluate: Callable[[], EvaluationResult]) -> Metrics:
        self._timed_write(self.append_lines)  # nobody waits for them until a long evaluation ends
        verdict = self.stopwatch.time("evaluate", evaluate)
        estimate = verdict.estimate
        if verdict.answers:
            write_answers(self.folder.path, step, verdict.answers)
        verdict.write_records(self.folder.path, step)
        for warning in verdict.warnings:
            self.folder.log(f"evaluation of step {step}: {warning}", level="WARNING")
        before, _ = read_evaluations(self.folder.path)
        name = f"step {step}"
        score = EvaluationScore(
            stage=name,
            metric="score",
            mean=estimate.mean,
            low=estimate.low,
            high=estimate.high,
            n=estimate.n,
            warnings=tuple(verdict.warnings),
        )
        write_evaluations(self.folder.path, [*(one for one in before if one.stage != name), score])
        self.folder.events.append(
            step,
            "evaluation",
            f"evaluated: {estimate.mean:.5g}, 95% interval {estimate.low:.5g} to {estimate.high:.5g}",
            {"score": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n},
        )
        event = EvaluationEvent(
            step=step,
            score=estimate.mean,
            low=estimate.low,
            high=estimate.high,
            n=estimate.n,
            metrics=verdict.metrics,
            run=self.folder.path,
        )
        self._call("on_evaluation", self.callbacks.on_evaluation, event)
        return verdict.metrics

    def _is_due(self, step: int, every: int) -> bool:
        return step == self.steps or (every > 0 and step % every == 0)


def _number_or_none(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise DataError(f"the saved report state holds {value!r} where a number should be")
    return float(value)
