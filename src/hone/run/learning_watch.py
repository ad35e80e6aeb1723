"""Steps that teach nothing: told apart by the figures of each step, counted, and named in one line.

Belongs here: the conditions and their words. What is done with the lines is `reporter.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hone.core.credit import Metrics
from hone.core.state import State, integer, number, substate
from hone.run.preference_watch import PreferenceWatch

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
