"""Runs read for a comparison: what each was configured to do, how its score moved, and where it ended.

Belongs here: from folders to `LoadedRun`. What several of them say together is `comparison.py`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import SystemClock
from hone.core.errors import DataError, ErrorCollector, did_you_mean
from hone.store.answers import AnswerRow, latest_answers
from hone.store.durable import Json
from hone.store.evaluations import read_evaluations
from hone.store.folder import list_runs, open_run
from hone.store.metrics import CLOCK_PREFIX, MetricColumns, read_metrics

Floats = NDArray[np.float64]

EVALUATION_METRIC = "eval/score"
TRAINING_METRICS = ("reward/mean", "episodes/return", "return/mean")
"""Scores of training, in the order in which they are taken."""
TAIL_SHARE = 0.1
"""Share of a run, at its end, whose mean is its score where nothing was judged."""
SMOOTHING_SHARE = 0.05
"""Share of a run over which a training score is averaged for its curve."""
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
"""What a run worked at, the first that its config has."""
MIN_EVALUATIONS = 3
"""Judgements that make a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCurve:
    """How a score moved over a run: `[N]` each."""

    metric: str
    unit: str
    """What `x` counts."""
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A run, as far as a comparison needs it."""

    path: Path
    name: str
    recipe: str
    argument: str
    """The argument that named it."""
    settings: Mapping[str, Json]
    columns: MetricColumns
    score: float
    """NaN where there is none."""
    score_description: str
    """What the score is, in words."""
    answers: Sequence[AnswerRow]

    @property
    def task(self) -> str:
        """What the run worked at, as far as its config says."""
        said = (self.settings.get(key) for key in TASK_KEYS)
        return next((value for value in said if isinstance(value, str)), "task")

    @property
    def has_environment(self) -> bool:
        """Whether its decisions are steps of an environment."""
        return any(key in self.settings for key in ("env.id", "finite.world.kind"))

    @property
    def seconds(self) -> float:
        """Wall time of its steps."""
        return float(np.nansum(self.columns.values.get("time/step_s", np.zeros(0))))


def read_runs(asked: Sequence[str], root: Path, *, metric: str = "") -> list[LoadedRun]:
    """The runs that each argument means: a run's folder, its name under `root`, or a folder whose runs are all meant.

    Raises DataError with every argument that means none, and every run whose files cannot be read.
    """
    faults = ErrorCollector(DataError)
    found: dict[Path, LoadedRun] = {}
    for text in asked:
        folders = _folders(text, root)
        if not folders:
            known = [path.name for path in list_runs(root)]
            faults.add(f"{text!r} is no run, and no folder of runs{did_you_mean(text, known)}")
        for folder in folders:
            try:
                found.setdefault(folder.resolve(), _read(folder, text, metric))
            except DataError as fault:
                faults.extend(fault.messages)
    faults.raise_if_any()
    return list(found.values())


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
    return LoadedRun(
        path=folder,
        name=folder.resolve().name,
        recipe=run.manifest().metadata.recipe,
        argument=asked,
        settings={key: setting.value for key, setting in run.config().items()},
        columns=columns,
        score=score,
        score_description=what,
        answers=[] if metric else latest_answers(folder),
    )


def _score(folder: Path, columns: MetricColumns, metric: str) -> tuple[float, str]:
    """The newest judgement of the run; without one, the mean of the last tenth of its training score."""
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
    """A curve of each run, all of the same metric; none where no metric is in all of them.

    `x` counts steps of the world where every run does, else steps of the run.
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
    if by_environment_steps:  # a line's figure is a mean over the steps since the line before
        made = np.nan_to_num(run.columns.values["episodes/decisions"])
        x = np.cumsum(made * np.diff(steps, prepend=0))
    known = np.isfinite(values)
    curve = ScoreCurve(
        metric=name, unit="steps of the world" if by_environment_steps else "steps", x=x[known], y=values[known]
    )
    return curve if name == EVALUATION_METRIC else replace(curve, y=_trailing_mean(curve.y))


def _trailing_mean(values: Floats) -> Floats:
    """Means over the last twentieth of the run, up to each place."""
    size = max(1, round(SMOOTHING_SHARE * len(values)))
    total = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - size, 0)
    return (total[ends] - total[starts]) / (ends - starts)
