"""Comparison of runs: seeds of one configuration form a group, and groups are compared.

Belongs here: reading runs (settings, score curves, final scores), grouping, and the choice of estimates.
`estimators.across_runs` computes them.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hone.core.clock import SystemClock, counted
from hone.core.errors import DataError, ErrorCollector, did_you_mean
from hone.core.strict_json import Json
from hone.estimators.across_runs import (
    Statistic,
    curve_band,
    improvement_probability,
    interquartile_mean,
    performance_profile,
    pooled_mean,
    pooled_median,
    stratified_bootstrap,
    time_to_threshold,
)
from hone.estimators.means import Estimate, paired_difference
from hone.run.store.comparison import (
    Comparison,
    GroupSummary,
    ProbabilityOfImprovement,
    RunCurveBand,
    RunScore,
    ScoreInterval,
    TimeToThreshold,
)
from hone.run.store.evaluations import AnswerRow, PairedDifference, latest_answers, read_evaluations
from hone.run.store.folder import list_runs, open_run
from hone.run.store.manifest import RunChange
from hone.run.store.metrics import CLOCK_PREFIX, MetricColumns, read_metrics

# ----------------------------------------------------------------------------------------------------------- run curves


Floats = NDArray[np.float64]

EVALUATION_METRIC = "eval/score"
TRAINING_METRICS = ("reward/mean", "episodes/return", "return/mean")
"""Training scores, in order of preference."""
SCORE_METRICS = (EVALUATION_METRIC, *TRAINING_METRICS)
"""Metrics that may be a run's score, in order of preference."""
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
class _ScoreCurve:
    """Score over a run: `[N]` each."""

    metric: str
    unit: str
    """Unit of `x`."""
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedRun:
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


def read_runs(asked: Sequence[str], root: Path, *, metric: str = "") -> list[_LoadedRun]:
    """Read the runs of each argument: a run's folder, its name under `root`, or a folder of runs.

    Raises DataError with every argument without a run, and every run with unreadable files.
    """
    faults = ErrorCollector(DataError)
    runs: dict[Path, _LoadedRun] = {}
    folders = [(text, folder) for text in asked for folder in _folders(text, root)]
    for text in dict.fromkeys(asked):
        if not any(name == text for name, _ in folders):
            names = [path.name for path in list_runs(root)]
            faults.add(f"{text!r} is not a run or a folder of runs{did_you_mean(text, names)}")
    for text, folder in counted(folders, "runs read"):
        try:
            runs.setdefault(folder.resolve(), _read(folder, text, metric))
        except DataError as fault:
            faults.extend(fault.messages)
    faults.raise_if_any()
    return list(runs.values())


def _folders(text: str, root: Path) -> list[Path]:
    for path in (Path(text), root / text):
        if (path / "manifest.json").is_file():
            return [path]
        if inside := list_runs(path):
            return inside
    return []


def _read(folder: Path, asked: str, metric: str) -> _LoadedRun:
    run = open_run(folder, clock=SystemClock())
    columns = read_metrics(run.metrics_path)
    if metric and metric not in columns.values:
        raise DataError(
            f"{folder} has no metric {metric!r}{did_you_mean(metric, list(columns.values))}; it has "
            f"{', '.join(name for name in columns.values if not name.startswith(CLOCK_PREFIX)) or 'none'}"
        )
    score, what = final_score(folder, columns, metric)
    manifest = run.manifest()
    return _LoadedRun(
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


def final_score(folder: Path, columns: MetricColumns, metric: str) -> tuple[float, str]:
    """Score of the newest evaluation; without one, the mean training score of the last tenth."""
    evaluations = [] if metric else [one for one in read_evaluations(folder)[0] if one.metric == "score"]
    if evaluations:
        return evaluations[-1].mean, "held-out score at the end of the run"
    for name in (metric,) if metric else SCORE_METRICS:
        values = columns.values.get(name)
        known = values[np.isfinite(values)] if values is not None else np.zeros(0)
        if len(known):
            tail = known[-max(1, round(TAIL_SHARE * len(known))) :]
            return float(tail.mean()), f"mean of {name} over the last tenth of the run"
    return float("nan"), "nothing"


def score_curves(runs: Sequence[_LoadedRun], metric: str = "") -> list[_ScoreCurve]:
    """Curves of the runs, all of the same metric; empty if no metric is in all of them.

    `x` counts environment steps if every run has them, otherwise iterations.
    """
    name = metric or _common_metric(runs)
    if not name:
        return []
    worldly = all("episodes/decisions" in run.columns.values and run.has_environment for run in runs)
    return [_curve(run, name, by_environment_steps=worldly) for run in runs]


def _common_metric(runs: Sequence[_LoadedRun]) -> str:
    def there(run: _LoadedRun, name: str, least: int) -> bool:
        return name in run.columns.values and int(np.isfinite(run.columns.values[name]).sum()) >= least

    if all(there(run, EVALUATION_METRIC, MIN_EVALUATIONS) for run in runs):
        return EVALUATION_METRIC
    return next((name for name in TRAINING_METRICS if all(there(run, name, 1) for run in runs)), "")


def _curve(run: _LoadedRun, name: str, *, by_environment_steps: bool) -> _ScoreCurve:
    steps, values = run.columns.steps, run.columns.values[name]
    x = steps.astype(np.float64)
    if by_environment_steps:  # a line's value is a mean over the steps since the previous line
        made = np.nan_to_num(run.columns.values["episodes/decisions"])
        x = np.cumsum(made * np.diff(steps, prepend=0))
    known = np.isfinite(values)
    curve = _ScoreCurve(
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


# --------------------------------------------------------------------------------------------------- differing settings


ABSENT = "-"
"""Text for a key that a configuration does not have."""
MAX_CHARACTERS = 48
"""Longest text of a value."""


def differing_settings(configs: Sequence[Mapping[str, Json]], *, shared_only: bool) -> list[dict[str, str]]:
    """For each configuration (dotted key -> value) the texts of the keys in which some differ, the same keys in each.

    A table that some configuration lacks is one key with all of its leaves: `rewards.functions.1` instead of its five
    keys. With `shared_only`, only keys that all have: configurations of different recipes have little else in common.
    """
    every = list(dict.fromkeys(key for config in configs for key in config))
    if shared_only:
        every = [key for key in every if all(key in config for config in configs)]
    differing = [key for key in every if len({json.dumps(config.get(key)) for config in configs}) > 1]
    keys = list(dict.fromkeys(_common_table(key, configs) for key in differing))
    return [{key: _value_text(config, key) for key in keys} for config in configs]


def _value_text(config: Mapping[str, Json], key: str) -> str:
    """The value of a key, or the leaves of a table, in at most 48 characters; `-` where there is none."""
    if key in config:
        return shorten(_plain(config[key]))
    inside = {name[len(key) + 1 :]: value for name, value in config.items() if name.startswith(f"{key}.")}
    leaves = [f"{name} = {_plain(value)}" for name, value in inside.items() if value not in (None, {}, [])]
    return shorten(", ".join(leaves)) if inside else ABSENT


def shorten(text: str) -> str:
    """Text of at most 48 characters, its beginning and its end kept."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = MAX_CHARACTERS - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def _plain(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _common_table(key: str, configs: Sequence[Mapping[str, Json]]) -> str:
    """The key, or the outermost table around it that some configuration does not have at all."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        table = ".".join(parts[:length])
        if any(not any(name == table or name.startswith(f"{table}.") for name in config) for config in configs):
            return table
    return key


# ----------------------------------------------------------------------------------------------------------- comparison


CURVE_POINTS = 100
"""Points of a curve or a profile."""
EXTENSION_SHARE = 0.03
"""Fraction of its length by which a curve is extended at its last value."""
MAX_NAME_CHARACTERS = 60
"""Longest name of a group that is made of its settings."""
MIN_RUNS = 5
"""Fewest runs for a reliable interval."""
IGNORED_KEYS = re.compile(
    r"^(recipe|name|seed|steps|run\..*|judge\..*|evaluation\.(episodes|every)"
    r"|env\.(id|kwargs.*|max_episode_steps)|finite\.(world\..*|limit))$"
)
"""Keys that may differ between runs of one configuration: seed, bookkeeping and task."""
SEED_ENDING = re.compile(r"[-_.]?(seed)?[-_.]?\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunGroup:
    """Named group of runs with one configuration."""

    name: str
    runs: Sequence[_LoadedRun]

    def strata(self, tasks: Sequence[str], scale: Mapping[str, tuple[float, float]]) -> list[Floats]:
        """Known scores of each task, scaled to 0..1 if `scale` has the task's extremes."""
        result: list[Floats] = []
        for task in tasks:
            low, high = scale.get(task, (0.0, 1.0))
            scores = np.array([run.score for run in self.runs if run.task == task], np.float64)
            scores = (scores - low) / ((high - low) or 1.0)
            result.append(scores[np.isfinite(scores)])
        return [scores for scores in result if len(scores)]


def compare(asked: Sequence[str], *, root: Path, metric: str = "", threshold: float | None = None) -> Comparison:
    """Compare the runs that `asked` names (`read_runs`) by their final score, or by `metric`.

    `threshold`: score for the time-to-threshold; by default the one that Gymnasium registers for a task.
    Raises DataError for runs that are missing, unreadable, or without any score.
    """
    runs = read_runs(asked, root, metric=metric)
    if all(np.isnan(run.score) for run in runs):
        raise DataError(f"none of {len(runs)} runs has a score yet: {', '.join(run.name for run in runs)}")
    groups = _group_runs(runs)
    tasks = list(dict.fromkeys(run.task for run in runs))
    scale: dict[str, tuple[float, float]] = {}  # lowest and highest score of each of several tasks
    for task in tasks if len(tasks) > 1 else ():
        known = [run.score for run in runs if run.task == task and np.isfinite(run.score)]
        scale |= {task: (min(known), max(known))} if known else {}
    curves = dict(zip((run.path for run in runs), score_curves(runs, metric), strict=False))
    some = next(iter(curves.values()), None)
    settings = _settings(groups)
    # thresholds of a profile: from just below the lowest score to the highest
    scores = np.concatenate([task for group in groups for task in group.strata(tasks, scale)])
    room = 0.02 * ((scores.max() - scores.min()) or 1.0)
    span = np.linspace(scores.min() - room, scores.max() + room, CURVE_POINTS)
    # probability of improvement of each group over the first, on common tasks; needs no common unit
    first, *others = groups
    result: list[ProbabilityOfImprovement] = []
    for other in others:
        common = [task for task in tasks if first.strata([task], {}) and other.strata([task], {})]
        if common:
            estimate = improvement_probability(other.strata(common, {}), first.strata(common, {}))
            result.append(
                ProbabilityOfImprovement(before=first.name, after=other.name, probability=_score_interval(estimate))
            )
    return Comparison(
        metric=" / ".join(dict.fromkeys(run.score_description for run in runs if np.isfinite(run.score))),
        tasks=tuple(tasks),
        normalised=bool(scale),
        curve_metric="" if some is None else some.metric,
        curve_unit="" if some is None else some.unit,
        groups=tuple(
            GroupSummary(
                name=group.name,
                recipe=group.runs[0].recipe,
                settings=texts,
                runs=tuple(
                    RunScore(name=run.name, task=run.task, score=run.score, seconds=run.seconds) for run in group.runs
                ),
                **_figures(group.strata(tasks, scale)),
                curves=_lines(group, tasks, curves, runs),
                profile=_profile(group.strata(tasks, scale), span),
                reached=_times_to_threshold(group, tasks, curves, threshold),
            )
            for group, texts in counted(zip(groups, settings, strict=True), "groups compared", len(groups))
        ),
        improvements=tuple(result),
        paired=tuple(_paired(groups)),
        notes=tuple(_notes(groups, tasks, runs)),
    )


# ------------------------------------------------------------------------------------------ grouping


def _group_runs(runs: Sequence[_LoadedRun]) -> list[_RunGroup]:
    """Group runs that differ in seed, bookkeeping and task only, in the order of the arguments."""
    kinds: dict[str, list[_LoadedRun]] = {}
    for run in runs:
        kept = {key: value for key, value in sorted(run.settings.items()) if not IGNORED_KEYS.match(key)}
        kinds.setdefault(json.dumps([run.recipe, kept], sort_keys=True), []).append(run)
    names = [_name(members) for members in kinds.values()]
    twice = {name for name, count in Counter(names).items() if count > 1}
    groups = [_RunGroup(name=name, runs=members) for name, members in zip(names, kinds.values(), strict=True)]
    if not twice:
        return groups
    return [
        replace(group, name=_distinct_name(group.name, texts, number) if group.name in twice else group.name)
        for number, (group, texts) in enumerate(zip(groups, _settings(groups), strict=True), start=1)
    ]


def _name(runs: Sequence[_LoadedRun]) -> str:
    """Name of a group: its folder, if no other requested run is in it, or else the run names without their seeds."""
    if len(runs) == 1:
        return runs[0].name
    parents = {run.path.resolve().parent for run in runs}
    stems = {SEED_ENDING.sub("", run.name) for run in runs}
    if len(stems) == 1 and (stem := stems.pop()):
        return stem
    return parents.pop().name if len(parents) == 1 else runs[0].recipe


def _distinct_name(name: str, settings: Mapping[str, str], number: int) -> str:
    """`name lr=0.1`, with the group's number where more settings differ than a name can hold."""
    texts = [f"{key}={text}" for key, text in settings.items()]
    whole = " ".join([name, *texts])
    return whole if len(whole) <= MAX_NAME_CHARACTERS else shorten(f"{name} #{number} {texts[0]}")


def _settings(groups: Sequence[_RunGroup]) -> list[dict[str, str]]:
    """Texts of the settings in which groups differ, for each group: those that all have if the recipes differ."""
    heads = [
        {key: value for key, value in group.runs[0].settings.items() if not IGNORED_KEYS.match(key)} for group in groups
    ]
    recipes = [group.runs[0].recipe for group in groups]
    several = len(set(recipes)) > 1
    texts = differing_settings(heads, shared_only=several)
    return [{"recipe": recipe, **text} if several else text for recipe, text in zip(recipes, texts, strict=True)]


# ------------------------------------------------------------------------------------------ statistics


def _figures(strata: Sequence[Floats]) -> dict[str, ScoreInterval]:
    statistics: dict[str, Statistic] = {"iqm": interquartile_mean, "median": pooled_median, "mean": pooled_mean}
    if not strata:
        return {name: ScoreInterval(mean=float("nan"), low=float("nan"), high=float("nan")) for name in statistics}
    return {name: _score_interval(stratified_bootstrap(strata, statistic)) for name, statistic in statistics.items()}


def _score_interval(estimate: Estimate) -> ScoreInterval:
    return ScoreInterval(mean=estimate.mean, low=estimate.low, high=estimate.high)


def _lines(
    group: _RunGroup, tasks: Sequence[str], curves: Mapping[Path, _ScoreCurve], runs: Sequence[_LoadedRun]
) -> dict[str, RunCurveBand]:
    """Interquartile mean of the runs' curves at common positions, per task."""
    result: dict[str, RunCurveBand] = {}
    for task in tasks:
        own = [curves[run.path] for run in group.runs if run.task == task and run.path in curves]
        every = [curves[run.path] for run in runs if run.task == task and run.path in curves]
        own = [curve for curve in own if len(curve.x)]
        if not own:
            continue
        first = min(float(curve.x[0]) for curve in every if len(curve.x))
        last = max(float(curve.x[-1]) for curve in every if len(curve.x))
        places = np.linspace(first, last, CURVE_POINTS)
        known = np.array([_last_known_values(curve, places) for curve in own])
        known[:, np.isnan(known).any(axis=0)] = np.nan  # a mean over a changing set of runs would jump
        band = curve_band(known)
        result[task] = RunCurveBand(x=places, middle=band.middle, low=band.low, high=band.high)
    return result


def _last_known_values(curve: _ScoreCurve, places: Floats) -> Floats:
    """Latest known value at each position; NaN before the first and from a little after the end, because runs with
    equal steps differ slightly in environment steps."""
    before = np.searchsorted(curve.x, places, side="right") - 1
    values = np.where(before >= 0, curve.y[np.maximum(before, 0)], np.nan)
    return np.where(places > curve.x[-1] * (1 + EXTENSION_SHARE), np.nan, values)


def _profile(strata: Sequence[Floats], span: Floats) -> RunCurveBand | None:
    if not strata:
        return None
    profile = performance_profile(strata, span)
    return RunCurveBand(x=span, middle=profile.share, low=profile.low, high=profile.high)


def _times_to_threshold(
    group: _RunGroup, tasks: Sequence[str], curves: Mapping[Path, _ScoreCurve], threshold: float | None
) -> dict[str, TimeToThreshold]:
    result: dict[str, TimeToThreshold] = {}
    for task in tasks:
        wanted = threshold if threshold is not None else registered_threshold(task)
        own = [curves[run.path] for run in group.runs if run.task == task and run.path in curves]
        own = [curve for curve in own if len(curve.x)]
        if wanted is None or not own:
            continue
        there = [np.flatnonzero(curve.y >= wanted) for curve in own]
        times = np.array(
            [curve.x[first[0]] if len(first) else curve.x[-1] for curve, first in zip(own, there, strict=True)]
        )
        taken = time_to_threshold(times.astype(np.float64), np.array([len(first) > 0 for first in there]))
        result[task] = TimeToThreshold(threshold=wanted, **asdict(taken))
    return result


def registered_threshold(task: str) -> float | None:
    """Score at which Gymnasium calls a task solved; None if there is none."""
    spec = gymnasium.registry.get(task)
    return None if spec is None else spec.reward_threshold


def _paired(groups: Sequence[_RunGroup]) -> list[PairedDifference]:
    """Paired differences of each group from the first per question, means over seeds; only for saved answers."""
    first, *others = groups
    before, result = _answers(first), list[PairedDifference]()
    for other in others:
        after = _answers(other)
        common = [question for question in before if question in after]
        if len(common) < 2:
            continue
        one, two = (np.array([scores[question] for question in common], np.float64) for scores in (before, after))
        difference = paired_difference(one, two)
        result.append(
            PairedDifference(
                before=first.name,
                after=other.name,
                difference=difference.difference,
                low=difference.low,
                high=difference.high,
                p_value=difference.p_value,
                n=difference.n,
            )
        )
    return result


def _answers(group: _RunGroup) -> dict[str, float]:
    """Mean score of each question (id and text) over the runs that answered it."""
    scores: dict[str, list[float]] = {}
    for run in group.runs:
        for row in run.answers:
            if row.score is not None:
                scores.setdefault(f"{row.id}\n{row.prompt}", []).append(row.score)
    return {question: float(np.mean(values)) for question, values in scores.items()}


def _notes(groups: Sequence[_RunGroup], tasks: Sequence[str], runs: Sequence[_LoadedRun]) -> list[str]:
    """Limits of the comparison, for the reader."""
    notes: list[str] = []
    kinds = dict.fromkeys(run.score_description for run in runs if np.isfinite(run.score))
    if len(kinds) > 1:
        notes.append(f"the scores are of different kinds: {'; '.join(kinds)}")
    for group in groups:
        unknown = [run.name for run in group.runs if np.isnan(run.score)]
        if unknown:
            notes.append(f"{group.name}: no score of {', '.join(unknown)}, which are left out")
        seeds = Counter((run.task, json.dumps(run.settings.get("seed"))) for run in group.runs)
        twice = [f"seed {seed} of {task}" for (task, seed), count in seeds.items() if count > 1]
        if twice:
            notes.append(
                f"{group.name}: {', '.join(twice)} occurs more than once; the same seed twice is one run, not two"
            )
        lengths = {json.dumps(run.settings.get("steps")) for run in group.runs}
        if len(lengths) > 1:
            notes.append(f"{group.name}: its runs differ in steps ({', '.join(sorted(lengths))})")
        missing = [task for task in tasks if not any(run.task == task for run in group.runs)]
        if missing:
            notes.append(f"{group.name}: no run of {', '.join(missing)}, so its summary covers other tasks")
        notes += [
            f"{run.name}: {one.change} after step {one.after_step}, so not all of it is of this configuration"
            for run in group.runs
            for one in run.changes
            if not IGNORED_KEYS.match(one.change.partition(":")[0])
        ]
        notes += [f"{fault}: left out" for run in group.runs for fault in run.columns.faults]
        if len(group.runs) < MIN_RUNS:
            problem = (
                "1 run, and no interval" if len(group.runs) == 1 else f"{len(group.runs)} runs, and a rough interval"
            )
            notes.append(f"{group.name}: {problem}; hone train --seeds makes more")
    return notes
