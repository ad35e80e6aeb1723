"""What a comparison of runs found, as data: for the screen, for JSON and for a page.

Belongs here: the shape of it. What the figures are computed from is `hone.evaluate.comparison`'s, how they look is
`comparison_page`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.store.durable import Json, finite_or_none
from hone.store.evaluations import PairedDifference

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInterval:
    """A figure with its 95% interval; NaN ends where one run gives none."""

    mean: float
    low: float
    high: float

    def to_json(self) -> Json:
        return {"value": finite_or_none(self.mean), "low": finite_or_none(self.low), "high": finite_or_none(self.high)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurveBand:
    """A curve with its interval over runs: `x`, `middle`, `low`, `high` `[S]`; NaN where nothing is known."""

    x: Floats
    middle: Floats
    low: Floats
    high: Floats

    def to_json(self) -> Json:
        columns = {"x": self.x, "middle": self.middle, "low": self.low, "high": self.high}
        return {name: [finite_or_none(value) for value in column.tolist()] for name, column in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToThreshold:
    """Steps until a threshold was reached: Kaplan-Meier median with its interval, infinite while half have not."""

    threshold: float
    median: float
    low: float
    high: float
    reached: int
    n: int

    def to_json(self) -> Json:
        return {
            "threshold": self.threshold,
            "median": finite_or_none(self.median),
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "reached": self.reached,
            "runs": self.n,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """A run as it entered."""

    name: str
    task: str
    score: float
    """NaN where it has none."""
    seconds: float
    """Wall time of its steps."""

    def to_json(self) -> Json:
        return {
            "run": self.name,
            "task": self.task,
            "score": finite_or_none(self.score),
            "seconds": finite_or_none(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """Runs of one configuration."""

    name: str
    recipe: str
    settings: Mapping[str, str]
    """Those in which the groups differ."""
    runs: tuple[RunScore, ...]
    iqm: ScoreInterval
    median: ScoreInterval
    mean: ScoreInterval
    curves: Mapping[str, RunCurveBand]
    """Per task, where it has one."""
    profile: RunCurveBand | None
    """Share of runs above each score; None where no run has a score."""
    reached: Mapping[str, TimeToThreshold]
    """Per task that has a threshold."""

    def to_json(self) -> Json:
        return {
            "name": self.name,
            "recipe": self.recipe,
            "settings": dict(self.settings),
            "runs": [run.to_json() for run in self.runs],
            "iqm": self.iqm.to_json(),
            "median": self.median.to_json(),
            "mean": self.mean.to_json(),
            "curves": {task: line.to_json() for task, line in self.curves.items()},
            "profile": None if self.profile is None else self.profile.to_json(),
            "reached": {task: reached.to_json() for task, reached in self.reached.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbabilityOfImprovement:
    """How often a run of `after` scores more than one of `before`, with its interval."""

    before: str
    after: str
    probability: ScoreInterval

    def to_json(self) -> Json:
        return {"before": self.before, "after": self.after, "probability": self.probability.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Groups of runs side by side."""

    metric: str
    """What a score is, in words."""
    tasks: tuple[str, ...]
    normalised: bool
    """Scores run from 0, the lowest of all runs of a task, to 1, the highest: several tasks have no common unit."""
    curve_metric: str
    """Empty where there are no curves."""
    curve_unit: str
    """What the curves' x counts."""
    groups: tuple[GroupSummary, ...]
    improvements: tuple[ProbabilityOfImprovement, ...]
    """Of each group over the first."""
    paired: tuple[PairedDifference, ...]
    """Where the same questions were answered."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "metric": self.metric,
            "tasks": list(self.tasks),
            "normalised": self.normalised,
            "curve": {"metric": self.curve_metric, "unit": self.curve_unit},
            "groups": [group.to_json() for group in self.groups],
            "improvements": [one.to_json() for one in self.improvements],
            "paired": [
                {
                    "before": pair.before,
                    "after": pair.after,
                    "difference": finite_or_none(pair.difference),
                    "low": finite_or_none(pair.low),
                    "high": finite_or_none(pair.high),
                    "p_value": finite_or_none(pair.p_value),
                    "n": pair.n,
                }
                for pair in self.paired
            ],
            "notes": list(self.notes),
        }
