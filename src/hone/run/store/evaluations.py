"""Evaluations of a policy and the stages of a pipeline, as JSON files.

Belongs here: `evaluations.json` (means with 95% intervals, and paired comparisons), `side_by_side.json` (answers before
and after) and `pipeline.json` (the stages of a pipeline, in order). A run folder may contain the first two, a
pipeline's folder all three.

Answers: `evaluation/step_00000010.json`, for paired comparisons of two policies; those of training are in
`rollouts.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.conversation import Turn
from hone.core.strict_json import Json
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import read_json, read_json_object, replace_file, to_json
from hone.run.store.records import Number, RecordFile, parse_record, record_json

EVALUATIONS = "evaluations.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Mean over `n` problems with its 95% interval; `stage` names the policy, `warnings` what speaks against it."""

    stage: str
    metric: str
    mean: Number
    low: Number
    high: Number
    n: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference `after - before` on the same `n` problems, with its 95% interval and paired p-value."""

    before: str
    after: str
    difference: Number
    low: Number
    high: Number
    p_value: Number
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """One prompt with the policy's answers before and after; a score is None if missing."""

    prompt: str
    reference: str
    before: str
    after: str
    before_score: float | None
    after_score: float | None


SIDE_BY_SIDE = RecordFile("side_by_side.json", list[SideBySide])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """Description of a pipeline's folder, which contains the run folders of the stages, in this order."""

    name: str
    stages: tuple[str, ...]


PIPELINE = RecordFile("pipeline.json", PipelineRecord, indent=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """Where a pipeline ended, and how its stages compare."""

    folder: Path
    evaluations: Sequence[EvaluationScore] = ()
    """Evaluations of a pipeline's stages, or of a run, oldest first."""
    comparisons: Sequence[PairedDifference] = ()
    """Paired comparisons of a pipeline's stages."""
    side_by_side: Sequence[SideBySide] = ()
    """Ten answers of a pipeline's first and last stage."""
    seconds: float = 0.0
    """Time that the training took; 0 of a result that is read again."""


def step_scores(evaluations: Sequence[EvaluationScore]) -> dict[int, float]:
    """Scores of a run's evaluations by step; those without one are left out."""
    steps = {one.stage.removeprefix("step "): one.mean for one in evaluations if one.stage.startswith("step ")}
    return {int(step): mean for step, mean in steps.items() if step.isdecimal() and math.isfinite(mean)}


def best_step(scores: Mapping[int, float]) -> int:
    """Step of the highest score, the latest of equal ones: the checkpoint that `run.keep_best` keeps."""
    return max(scores, key=lambda step: (scores[step], step))


def write_evaluations(
    folder: Path, evaluations: Sequence[EvaluationScore], paired: Sequence[PairedDifference] = ()
) -> None:
    """Write `evaluations.json` atomically. Raises ResourceError."""
    document: dict[str, Json] = {
        "evaluations": [
            {name: value for name, value in record_json(row).items() if value or name != "warnings"}
            for row in evaluations
        ],
        "paired": [record_json(row) for row in paired],
    }
    replace_file(folder / EVALUATIONS, to_json(document, indent=1))


def read_evaluations(folder: Path) -> tuple[list[EvaluationScore], list[PairedDifference]]:
    """Read `evaluations.json`; empty without the file. Raises DataError for a damaged one."""
    path = folder / EVALUATIONS
    if not path.exists():
        return [], []
    document = read_json_object(path)
    return (
        parse_record(list[EvaluationScore], document.get("evaluations"), path),
        parse_record(list[PairedDifference], document.get("paired"), path),
    )


# -------------------------------------------------------------------------------------------------------------- answers


FOLDER = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One question with the policy's answer; `score` is None if it could not be scored."""

    id: str
    prompt: str
    reference: str
    answer: str
    score: float | None
    turns: tuple[Turn, ...] = ()
    """Texts of a conversation of several turns, the environment's among them; empty for a single answer."""
    stop: str = ""
    """Reason why a dialogue ended; empty for an answer."""
    fault: str = ""
    """Reason why a dialogue has no score."""
    tag: str = ""
    """Kind of the question, the column `tag` or `data_source` of its row; empty without one."""


def write_answers(run: Path, step: int, rows: Sequence[AnswerRow]) -> Path:
    """Write the answers of the evaluation after `step` atomically. Raises ResourceError."""
    document: list[Json] = []
    for row in rows:
        entry = record_json(row)
        for name in ("turns", "stop", "fault", "tag"):
            if not entry[name]:
                del entry[name]
        document.append(entry)
    path = run / FOLDER / f"{step_name(step)}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, to_json(document, indent=1))
    return path


def latest_answers(run: Path) -> list[AnswerRow]:
    """Answers of the newest evaluation of a run; empty without an evaluation. Raises DataError."""
    files = sorted((run / FOLDER).glob("step_*.json"))
    if not files:
        return []
    return parse_record(list[AnswerRow], read_json(files[-1]), files[-1])
