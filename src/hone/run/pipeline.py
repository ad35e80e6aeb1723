"""Several runs one after another, each from where the one before arrived; and what the whole way was worth.

A pipeline's folder holds its stages' run folders. When the stages have answered the same held-out questions, their
scores are compared pair by pair, and ten questions are shown with the answers before and after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, DataError
from hone.core.random import permutation
from hone.estimators.means import mean_interval, paired_difference
from hone.run.callbacks import ProgressDisplay
from hone.run.job import RunConfig
from hone.run.report.run_page import write_report
from hone.run.resume import allowed_changes, code_fingerprints, refuse_fewer_steps
from hone.run.run import RunRequest, run
from hone.run.store.evaluations import (
    PIPELINE,
    SIDE_BY_SIDE,
    AnswerRow,
    EvaluationScore,
    PairedDifference,
    PipelineRecord,
    PipelineResult,
    SideBySide,
    latest_answers,
    write_evaluations,
)
from hone.run.store.folder import check_name, open_run
from hone.run.store.manifest import refuse_differences, resume_differences

SHOWN_QUESTIONS = 10
"""Questions shown side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One run of a pipeline; its order is made when its turn comes, because it may start from an earlier stage."""

    name: str
    make_request: Callable[[], RunRequest]


def run_pipeline(
    name: str,
    stages: Sequence[PipelineStage],
    *,
    root: Path,
    resume: bool,
    progress: ProgressDisplay,
    clock: Clock | None = None,
) -> PipelineResult:
    """Run the stages into `root/name` and compare them. With `resume`, stages that are done are passed over.

    Raises ConfigError when the pipeline was run before and is not to be resumed, or is to be resumed with other
    settings than it has; DataError when there is none to resume; and whatever a stage raises.
    """
    clock = clock or SystemClock()
    check_name(name)
    folder = root / name
    if folder.exists() and not resume:
        raise ConfigError(f"{folder} exists already: --resume continues it, --name NAME starts another")
    if resume and not folder.exists():
        raise DataError(f"no pipeline {name} in {root} to resume: leave out --resume to start it")
    folder.mkdir(parents=True, exist_ok=True)
    PIPELINE.write(folder, PipelineRecord(name=name, stages=tuple(stage.name for stage in stages)))
    began_s = clock.monotonic_s()
    for place, stage in enumerate(stages):
        request = stage.make_request()
        if _is_finished(folder / stage.name, request.config.steps, clock):
            _refuse_changes(folder / stage.name, request, clock)
            progress.note(f"stage {stage.name} is done: passed over")
            continue
        _refuse_successors(folder, request.config, stages[place + 1 :])
        run(request, progress=progress, clock=clock)
    answers = {stage.name: latest_answers(folder / stage.name) for stage in stages}
    seconds = clock.monotonic_s() - began_s
    names = [name for name, rows in answers.items() if any(row.score is not None for row in rows)]
    evaluations = [_evaluation(name, answers[name]) for name in names]
    comparisons: list[PairedDifference] = []
    shown: list[SideBySide] = []
    for before, after in pairwise(names):
        later = {row.id: row for row in answers[after] if row.score is not None}
        pairs = [(row, later[row.id]) for row in answers[before] if row.score is not None and row.id in later]
        if pairs:
            comparisons.append(_comparison(before, after, pairs))
            shown = _side_by_side(pairs)
    outcome = PipelineResult(
        folder=folder, evaluations=evaluations, comparisons=comparisons, side_by_side=shown, seconds=seconds
    )
    write_evaluations(folder, outcome.evaluations, outcome.comparisons)
    SIDE_BY_SIDE.write(folder, shown)
    write_report(folder)
    return outcome


def _is_finished(folder: Path, steps: int, clock: Clock) -> bool:
    if not (folder / "manifest.json").is_file():
        return False
    saved = open_run(folder, clock=clock).checkpoints().steps()
    return bool(saved) and saved[-1] >= steps


def _refuse_changes(folder: Path, request: RunRequest, clock: Clock) -> None:
    """A stage that is passed over must be the one that the file describes."""
    done, name = open_run(folder, clock=clock), request.config.name
    refuse_fewer_steps(done.checkpoints(), request.config.steps, f"stage {name}")
    before = done.manifest().metadata
    differences = resume_differences(
        done.config(), request.settings, before, replace(before, code=code_fingerprints(request.settings))
    )
    allowed = replace(allowed_changes(request.consent, request.settings), config=False, otherwise="")
    refuse_differences(f"stage {name} is done, and cannot be passed over", differences, allowed)


def _refuse_successors(folder: Path, stage: RunConfig, later: Sequence[PipelineStage]) -> None:
    """Raise ConfigError if later stages started from this one: it cannot continue, because they depend on its
    result."""
    begun = [one.name for one in later if (folder / one.name / "manifest.json").is_file()]
    if begun:
        raise ConfigError(
            f"stage {stage.name} is to go on to step {stage.steps}, but {', '.join(begun)} began after it stopped; "
            "give it the steps that it had, or give the pipeline a new --name"
        )


def _evaluation(stage: str, rows: Sequence[AnswerRow]) -> EvaluationScore:
    estimate = mean_interval(np.array([row.score for row in rows if row.score is not None], dtype=np.float64))
    return EvaluationScore(
        stage=stage, metric="score", mean=estimate.mean, low=estimate.low, high=estimate.high, n=estimate.n
    )


def _comparison(before: str, after: str, pairs: Sequence[tuple[AnswerRow, AnswerRow]]) -> PairedDifference:
    scores = np.array(
        [(one.score, other.score) for one, other in pairs if one.score is not None and other.score is not None]
    ).reshape(-1, 2)
    difference = paired_difference(scores[:, 0], scores[:, 1])
    return PairedDifference(
        before=before,
        after=after,
        difference=difference.difference,
        low=difference.low,
        high=difference.high,
        p_value=difference.p_value,
        n=difference.n,
    )


def _side_by_side(pairs: Sequence[tuple[AnswerRow, AnswerRow]]) -> list[SideBySide]:
    """Ten questions picked by a fixed draw, so that nobody picked the pretty ones."""
    order = permutation(0, "side by side", count=len(pairs))[:SHOWN_QUESTIONS]
    return [
        SideBySide(
            prompt=pairs[place][0].prompt,
            reference=pairs[place][0].reference,
            before=pairs[place][0].answer,
            after=pairs[place][1].answer,
            before_score=pairs[place][0].score,
            after_score=pairs[place][1].score,
        )
        for place in order
    ]
