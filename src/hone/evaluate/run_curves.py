"""Reading of runs for a comparison: settings, score curves and final scores.

Belongs here: from folders to `LoadedRun`. `comparison.py` combines several runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import SystemClock
from hone.core.errors import DataError, ErrorCollector, did_you_mean
from hone.core.strict_json import Json
from hone.run.store.answers import AnswerRow, latest_answers
from hone.run.store.evaluations import read_evaluations
from hone.run.store.folder import list_runs, open_run
from hone.run.store.manifest import RunChange, with_current_keys
from hone.run.store.metrics import CLOCK_PREFIX, MetricColumns, read_metrics

Floats = NDArray[np.float64]

EVALUATION_METRIC = "eval/score"
TRAINING_METRICS = ("reward/mean", "episodes/return", "return/mean")
"""Training scores, in order of preference."""
TAIL_SHARE = 0.1
"""Last fraction of a run over which the training score is averaged if there was no evaluation."""
SMOOTHING_SHARE = 0.05
"""Fraction of a run over which the training score is averaged for its curve."""
TASK_KEYS = (
    "env.id",
    "finite.world.id",
    "finite.world.kind",
    "evaluation.task.reasoning_gym",
    "evaluation.task.source",
    "task.reasoning_gym",
    "task.source",
    "log",
)
"""Config keys that name the task, in order of preference."""
MIN_EVALUATIONS = 3
"""Fewest evaluations for a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCurve:
    """Score over a run: `[N]` each."""

    metric: str
    unit: str
    """Unit of `x`."""
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """Data of a run for a comparison."""

    path: Path
    name: str
    recipe: str
    argument: str
    """The argument that named it."""
    settings: Mapping[str, Json]
    columns: MetricColumns
    score: float
    """NaN without a score."""
    score_description: str
    """Meaning of the score, in words."""
    answers: Sequence[AnswerRow]
    changes: Sequence[RunChange] = ()
    """Changes of settings or code on the way, by resumes."""

    @property
    def task(self) -> str:
        """Task of the run by its config."""
        values = (self.settings.get(key) for key in TASK_KEYS)
        return next((value for value in values if isinstance(value, str)), "task")

    @property
    def has_environment(self) -> bool:
        """True if a decision is an environment step."""
        return any(key in self.settings for key in ("env.id", "finite.world.kind"))

    @property
    def seconds(self) -> float:
        """Wall time of its steps."""
        return float(np.nansum(self.columns.values.get("time/step_s", np.zeros(0))))


def read_runs(asked: Sequence[str], root: Path, *, metric: str = "") -> list[LoadedRun]:
    """Read the runs of each argument: a run's folder, its name under `root`, or a folder of runs.

    Raises DataError with every argument without a run, and every run with unreadable files.
    """
    faults = ErrorCollector(DataError)
    found: dict[Path, LoadedRun] = {}
    for text in asked:
        folders = _folders(text, root)
        if not folders:
            names = [path.name for path in list_runs(root)]
            faults.add(f"{text!r} is not a run or a folder of runs{did_you_mean(text, names)}")
        for folder in folders:
            try:
                found.setdefault(folder.resolve(), _read(folder, text, metric))
            except DataError as fault:
                faults.extend(fault.messages)
    faults.raise_if_any()
    known: dict[str, dict[str, Json]] = {}
    for run in found.values():
        known.setdefault(run.recipe, {}).update(run.settings)
    return [replace(run, settings=with_current_keys(run.settings, known[run.recipe])) for run in found.values()]


def _folders(text: str, root: Path) -> list[Path]:
    for path in (Path(text), root / text):
        if (path / "manifest.json").is_file():
            return [path]
        if inside := list_runs(path):
            return inside
    return []


def _read(folder: Path, asked: str, metric: str) -> LoadedRun:
    run = open_run(folder, clock=SystemClock())
    columns = read_metrics(run.metrics_path)
    if metric and metric not in columns.values:
        raise DataError(
            f"{folder} has no metric {metric!r}{did_you_mean(metric, list(columns.values))}; it has "
            f"{', '.join(name for name in columns.values if not name.startswith(CLOCK_PREFIX)) or 'none'}"
        )
    score, what = _score(folder, columns, metric)
    manifest = run.manifest()
    return LoadedRun(
        path=folder,
        name=folder.resolve().name,
        recipe=manifest.metadata.recipe,
        argument=asked,
        settings={key: setting.value for key, setting in run.config().items()},
        columns=columns,
        score=score,
        score_description=what,
        answers=[] if metric else latest_answers(folder),
        changes=manifest.changes,
    )


def _score(folder: Path, columns: MetricColumns, metric: str) -> tuple[float, str]:
    """Score of the newest evaluation; without one, the mean training score of the last tenth."""
    evaluations = [] if metric else [one for one in read_evaluations(folder)[0] if one.metric == "score"]
    if evaluations:
        return evaluations[-1].mean, "held-out score at the end of the run"
    for name in (metric,) if metric else (EVALUATION_METRIC, *TRAINING_METRICS):
        values = columns.values.get(name)
        known = values[np.isfinite(values)] if values is not None else np.zeros(0)
        if len(known):
            tail = known[-max(1, round(TAIL_SHARE * len(known))) :]
            return float(tail.mean()), f"mean of {name} over the last tenth of the run"
    return float("nan"), "nothing"


def score_curves(runs: Sequence[LoadedRun], metric: str = "") -> list[ScoreCurve]:
    """Curves of the runs, all of the same metric; empty if no metric is in all of them.

    `x` counts environment steps if every run has them, otherwise iterations.
    """
    name = metric or _common_metric(runs)
    if not name:
        return []
    worldly = all("episodes/decisions" in run.columns.values and run.has_environment for run in runs)
    return [_curve(run, name, by_environment_steps=worldly) for run in runs]


def _common_metric(runs: Sequence[LoadedRun]) -> str:
    def there(run: LoadedRun, name: str, least: int) -> bool:
        return name in run.columns.values and int(np.isfinite(run.columns.values[name]).sum()) >= least

    if all(there(run, EVALUATION_METRIC, MIN_EVALUATIONS) for run in runs):
        return EVALUATION_METRIC
    return next((name for name in TRAINING_METRICS if all(there(run, name, 1) for run in runs)), "")


def _curve(run: LoadedRun, name: str, *, by_environment_steps: bool) -> ScoreCurve:
    steps, values = run.columns.steps, run.columns.values[name]
    x = steps.astype(np.float64)
    if by_environment_steps:  # a line's value is a mean over the steps since the previous line
        made = np.nan_to_num(run.columns.values["episodes/decisions"])
        x = np.cumsum(made * np.diff(steps, prepend=0))
    known = np.isfinite(values)
    curve = ScoreCurve(
        metric=name, unit="environment steps" if by_environment_steps else "steps", x=x[known], y=values[known]
    )
    return curve if name == EVALUATION_METRIC else replace(curve, y=_trailing_mean(curve.y))


def _trailing_mean(values: Floats) -> Floats:
    """Trailing means over a twentieth of the run."""
    size = max(1, round(SMOOTHING_SHARE * len(values)))
    total = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - size, 0)
    return (total[ends] - total[starts]) / (ends - starts)
