"""Result of a comparison of runs, and a sweep on disk, as data: for the screen, JSON and the HTML page.

`hone.evaluate.comparison` computes a comparison; `hone.evaluate.sweep` fills a sweep's plan, trials and judgements;
`hone.run.report.comparison_page` shows both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from hone.core.strict_json import Json
from hone.estimators.across_runs import TimeToThresholdEstimate
from hone.run.store.durable import finite_or_none, read_json_object, replace_file, to_json
from hone.run.store.evaluations import PairedDifference
from hone.run.store.records import Number, parse_record, record_json

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInterval:
    """Estimate with its 95% interval; the ends are NaN for a single run."""

    mean: float
    low: float
    high: float

    def to_json(self) -> Json:
        """Convert to JSON values."""
        return {"value": finite_or_none(self.mean), "low": finite_or_none(self.low), "high": finite_or_none(self.high)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurveBand:
    """Curve with its interval over runs: `x`, `middle`, `low`, `high` `[S]`; NaN for missing values."""

    x: Floats
    middle: Floats
    low: Floats
    high: Floats

    def to_json(self) -> Json:
        """Convert to JSON values."""
        columns = {"x": self.x, "middle": self.middle, "low": self.low, "high": self.high}
        return {name: [finite_or_none(value) for value in column.tolist()] for name, column in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToThreshold(TimeToThresholdEstimate):
    """Steps until a threshold: Kaplan-Meier median with its interval; infinite if under half of the runs reach it."""

    threshold: float

    def to_json(self) -> Json:
        """Convert to JSON values."""
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
    """A run of the comparison."""

    name: str
    task: str
    score: float
    """NaN without a score."""
    seconds: float
    """Wall time of its steps."""

    def to_json(self) -> Json:
        """Convert to JSON values."""
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
    """Settings that differ between the groups."""
    runs: tuple[RunScore, ...]
    iqm: ScoreInterval
    median: ScoreInterval
    mean: ScoreInterval
    curves: Mapping[str, RunCurveBand]
    """Curve per task, if any."""
    profile: RunCurveBand | None
    """Share of runs above each score; None without scores."""
    reached: Mapping[str, TimeToThreshold]
    """Time to threshold, per task with a threshold."""

    def to_json(self) -> Json:
        """Convert to JSON values."""
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
    """Probability that a run of `after` scores higher than one of `before`, with its interval."""

    before: str
    after: str
    probability: ScoreInterval

    def to_json(self) -> Json:
        return {"before": self.before, "after": self.after, "probability": self.probability.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of groups of runs."""

    metric: str
    """Meaning of the score, in words."""
    tasks: tuple[str, ...]
    normalised: bool
    """True if scores are scaled per task from 0 (lowest run) to 1 (highest), as tasks have no common unit."""
    curve_metric: str
    """Metric of the curves; empty without curves."""
    curve_unit: str
    """Unit of the curves' x."""
    groups: tuple[GroupSummary, ...]
    improvements: tuple[ProbabilityOfImprovement, ...]
    """Probability of improvement of each group over the first."""
    paired: tuple[PairedDifference, ...]
    """Paired differences on the same questions."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """Convert to JSON values."""
        return {
            "metric": self.metric,
            "tasks": list(self.tasks),
            "normalised": self.normalised,
            "curve": {"metric": self.curve_metric, "unit": self.curve_unit},
            "groups": [group.to_json() for group in self.groups],
            "improvements": [one.to_json() for one in self.improvements],
            "paired": [record_json(pair) for pair in self.paired],
            "notes": list(self.notes),
        }


# ---------------------------------------------------------------------------------------------------------------- sweep


SWEEP = "sweep.json"
SEARCH_RUNS = "search"
"""Folder of the runs that choose the winner."""
FRESH_RUNS = "fresh"
"""Folder of the finalists' runs on fresh seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTrialRecord:
    """A trial: settings that were tried, in a batch of trials that are compared with each other."""

    number: int
    batch: int
    settings: Mapping[str, JsonValue]

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"trial_{self.number:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScore:
    """Score of a trial over its seeds, with its 95% interval; a reason in place of a score where a run failed."""

    trial: int
    mean: Number
    """Interquartile mean over the seeds."""
    low: Number
    high: Number
    worst: Number
    """Score of the worst seed."""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRecord:
    """Judgement of a batch's trials after `steps` steps, and the trials that go on."""

    batch: int
    steps: int
    scores: tuple[TrialScore, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """A sweep so far."""

    plan: Mapping[str, JsonValue]
    """What decides its trials and runs; a resume must have the same."""
    trials: tuple[SweepTrialRecord, ...] = ()
    rungs: tuple[RungRecord, ...] = ()
    finished_runs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Run's folder within the sweep's -> the steps after which its command ended well."""
    finalists: tuple[int, ...] = ()
    """Trials that were trained again on fresh seeds, the winner first."""
    fresh: tuple[TrialScore, ...] = ()
    """Their scores on the fresh seeds."""
    metric: str = ""
    """Meaning of the score, in words."""

    def seeds(self, name: str) -> tuple[int, ...]:
        """The plan's `seeds` or `fresh_seeds`."""
        seeds = self.plan.get(name)
        return tuple(one for one in seeds if isinstance(one, int)) if isinstance(seeds, list) else ()


def read_sweep(folder: Path) -> SweepRecord | None:
    """Read the record; None without one. Raises DataError for a damaged file."""
    path = folder / SWEEP
    return parse_record(SweepRecord, read_json_object(path), path) if path.exists() else None


class SweepJournal:
    """The record of a sweep in its folder, written down at every change."""

    def __init__(self, folder: Path, record: SweepRecord) -> None:
        self.folder = folder
        self.record = record

    def write(self, record: SweepRecord) -> None:
        """Replace the record, in the file as well. Raises ResourceError."""
        self.record = record
        replace_file(self.folder / SWEEP, to_json(record_json(record), indent=1))
