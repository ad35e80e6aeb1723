"""Scored answers as rows of TRL's formats, written as JSON Lines or parquet.

`read_examples` reads the rows back. Text is decoded: other programs encode it in their own way, so that their tokens
may not be those that were drawn; hone itself reads a collection's tokens.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (pyarrow has no type information)

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hone.core.errors import ConfigError, DataError
from hone.text.tasks.collected_answers import AnswerKind
from hone.text.tasks.dataset import Example, ExampleDataset
from hone.text.tasks.row_checks import PromptContent
from hone.text.tasks.scored_rows import ScoredAnswer

EXPORTED_KINDS: Final = ("preference", "unpaired", "stepwise", "imitation")
_SUFFIXES: Final = (".jsonl", ".parquet")


def trl_rows(examples: ExampleDataset, kind: AnswerKind) -> tuple[list[dict[str, object]], list[str]]:
    """Rows of TRL's preference, unpaired, stepwise or prompt-completion format with the other columns, and notes.

    Labels of steps keep their shares, and are true and false where all of them are 1 or 0. Scores of pairs are written
    where not all of them are 1 and 0. Rows with an answer that is empty as text are left out and counted. Raises
    DataError when no row is left.
    """
    answers = [one for example in examples for one in example.answers]
    scored = {one.score for one in answers} != {0.0, 1.0}
    hard = {label for one in answers for label in one.labels} <= {0.0, 1.0}
    makers: dict[str, Callable[[Example], list[Mapping[str, object]]]] = {
        "preference": lambda example: [_pair(example, with_scores=scored)],
        "unpaired": lambda example: [
            {"prompt": example.prompt, "completion": one.content, "label": one.score == 1} for one in example.answers
        ],
        "stepwise": lambda example: [_steps(example.prompt, one, hard=hard) for one in example.answers],
        "imitation": lambda example: [
            {"prompt": example.prompt, "completion": content} for content in _completions(example)
        ],
    }
    rows: list[dict[str, object]] = []
    empty: list[str] = []
    for example in examples:
        for number, made in enumerate(makers[kind](example), start=1):
            if not all(_has_text(value) for value in made.values()):
                empty.append(example.id)
                continue
            own = example.id if number == 1 else f"{example.id}/{number}"
            rest = {name: value for name, value in example.columns.items() if name not in made}
            rows.append({"id": own, **made, **rest})
    if not empty:
        return rows, []
    shown = f"{', '.join(empty[:5])}{', ...' if len(empty) > 5 else ''}"
    said = f"{examples.source}: {len(empty)} rows have an answer that is empty as text, to the prompts {shown}"
    if not rows:
        raise DataError(f"{said}; no format of text can hold them")
    return rows, [f"{said} (left out)"]


def check_export_path(path: Path) -> None:
    """Raise ConfigError for a file that cannot be written, or that is there already."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path}: unknown kind of file {path.suffix!r}; known: {', '.join(_SUFFIXES)}")
    if path.exists():
        raise ConfigError(f"{path} exists already; delete it, or name another file")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def dataset_bytes(rows: Sequence[Mapping[str, object]], suffix: str) -> bytes:
    """A file of the rows: JSON Lines for `.jsonl`, otherwise parquet. Raises DataError for columns of mixed types."""
    if suffix == ".jsonl":
        return "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    except pa.ArrowException as error:
        raise DataError(f"parquet cannot hold these columns: {error}; write a .jsonl file") from error
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _pair(example: Example, *, with_scores: bool) -> Mapping[str, object]:
    chosen, rejected = sorted(example.answers, key=lambda one: -one.score)
    scores = {"score_chosen": chosen.score, "score_rejected": rejected.score} if with_scores else {}
    return {"prompt": example.prompt, "chosen": chosen.content, "rejected": rejected.content, **scores}


def _steps(prompt: PromptContent, answer: ScoredAnswer, *, hard: bool) -> Mapping[str, object]:
    labels: list[object] = [bool(label) if hard else label for label in answer.labels]
    return {"prompt": prompt, "completions": list(answer.steps), "labels": labels}


def _completions(example: Example) -> list[PromptContent]:
    if example.answers:
        return [one.content for one in example.answers]
    return [] if example.completion is None else [example.completion]


def _has_text(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return bool(value) and all(_has_text(one["content"] if isinstance(one, dict) else one) for one in value)
    return True
