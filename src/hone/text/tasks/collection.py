"""Collected answers on disk: parquet files of a folder, one row per answer, with the tokens that were drawn.

| column | content |
|---|---|
| `id`, `prompt`, `columns` | the prompt's id, its text or messages (JSON), the data set's other columns (JSON) |
| `group`, `sample` | answers of one group were drawn together; number in the group |
| `completion` | text of the answer |
| `tokens`, `at` | tokens of question and answer; positions of those that were drawn |
| `logp`, `version` | of each drawn token: nats under the policy that drew it; that policy's version |
| `score`, `status`, `rewards` | the score, null where it is missing; why; the score of each reward function by name |
| `truncated` | a limit ended the answer |
| `labels` | of each drawn token: label of the step that it ends, NaN where it ends none; null without steps |
| `steps` | text of each labelled step; null without steps |

The metadata hold a hash of the vocabulary: tokens are used as they are, and by policies with these tokens only.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow has no type information)

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.row_checks import PromptContent
from hone.text.tasks.scored_rows import AnswerTokens, ScoredAnswer

FOLDER: Final = "collected"
"""Folder of the files in a run's folder."""
_METADATA: Final = b"hone.collection"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedAnswer:
    """One answer, as a row of a collection."""

    id: str
    prompt: str
    """Text or messages, as JSON."""
    columns: str
    """As JSON."""
    group: int
    sample: int
    completion: str
    tokens: Sequence[int]
    at: Sequence[int]
    logp: Sequence[float]
    version: Sequence[int]
    score: float | None
    status: str
    rewards: Mapping[str, float | None]
    truncated: bool
    labels: Sequence[float] | None
    steps: Sequence[str] | None


def collection_bytes(rows: Sequence[CollectedAnswer], *, vocabulary: str) -> bytes:
    """A parquet file of these rows; `vocabulary` is a hash of the tokens."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {
        "id": pa.string(), "prompt": pa.string(), "columns": pa.string(), "group": pa.int64(), "sample": pa.int64(),
        "completion": pa.string(), "tokens": pa.list_(pa.int32()), "at": pa.list_(pa.int64()),
        "logp": pa.list_(pa.float32()), "version": pa.list_(pa.int32()), "score": pa.float64(), "status": pa.string(),
        "rewards": pa.map_(pa.string(), pa.float64()), "truncated": pa.bool_(), "labels": pa.list_(pa.float64()),
        "steps": pa.list_(pa.string()),
    }  # fmt: skip
    schema = pa.schema(
        list(types.items()), metadata={_METADATA: json.dumps({"format": _FORMAT, "vocabulary": vocabulary})}
    )
    written = [
        {
            **asdict(row),
            "rewards": list(row.rewards.items()),
            "completion": _clean(row.completion),
            "steps": None if row.steps is None else list(map(_clean, row.steps)),
        }
        for row in rows
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(written, schema=schema), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def is_collection(source: str) -> bool:
    """True if `source` names a folder: a run that collected, or its files."""
    return Path(source).is_dir()


def read_collection(source: str) -> ExampleDataset:
    """Read the answers of a run that collected, or of a folder with such files: one example for each prompt that was
    asked, with all its answers in the order of their collection.

    Raises DataError for a folder without them, a damaged file, and files with different vocabularies.
    """
    files = _files(Path(source))
    rows: list[dict[str, Any]] = []
    vocabularies: dict[str, Path] = {}
    for path in files:
        table, vocabulary = _table(path)
        vocabularies.setdefault(vocabulary, path)
        rows += table
    if len(vocabularies) > 1:
        one, other, *_ = vocabularies.values()
        raise DataError(f"{one} and {other} hold tokens of different vocabularies; collect with one policy's")
    if not rows:
        raise DataError(f"{source}: holds no answers")
    return replace(_examples(rows, source), vocabulary=next(iter(vocabularies)))


def _files(folder: Path) -> list[Path]:
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    files = sorted(inside.glob("step_*.parquet"))
    if not files:
        raise DataError(
            f'{folder}: no collected answers; name the folder of a run with recipe = "collect", or a file of examples'
        )
    return files


def _table(path: Path) -> tuple[list[dict[str, Any]], str]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: damaged parquet: {error}; collect again, or delete it") from error
    notes = (table.schema.metadata or {}).get(_METADATA)
    if notes is None:
        raise DataError(f"{path}: no collected answers: its metadata lack {_METADATA.decode()}")
    found = json.loads(notes)
    if found["format"] != _FORMAT:
        raise DataError(f"{path}: format {found['format']}, this hone reads {_FORMAT}")
    return table.to_pylist(), str(found["vocabulary"])


def _examples(rows: Sequence[Mapping[str, Any]], source: str) -> ExampleDataset:
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(row["id"], []).append(row)
    names = dict.fromkeys(name for asked in by_prompt.values() for name in json.loads(asked[0]["columns"]))
    drafts = [_example(asked, names, source, place) for place, asked in enumerate(by_prompt.values(), start=1)]
    return build_examples(drafts, source=source)


def _example(rows: Sequence[Mapping[str, Any]], names: Mapping[str, object], source: str, place: int) -> Example:
    first = rows[0]
    prompt, columns = json.loads(first["prompt"]), json.loads(first["columns"])
    return Example(
        id=first["id"],
        prompt=prompt,
        completion=None,
        columns={name: columns.get(name) for name in names},
        row=place,
        source=source,
        answers=tuple(_answer(row, prompt) for row in rows),
    )


def _answer(row: Mapping[str, Any], prompt: PromptContent) -> ScoredAnswer:
    count, text = len(row["at"]), row["completion"]
    labels = np.full(count, np.nan) if row["labels"] is None else np.array(row["labels"], np.float64)
    return ScoredAnswer(
        content=text if isinstance(prompt, str) else [{"role": "assistant", "content": text}],
        score=float("nan") if row["score"] is None else row["score"],
        steps=tuple(row["steps"] or ()),
        labels=_step_labels(labels, row["steps"]),
        tokens=AnswerTokens(
            tokens=np.array(row["tokens"], np.int32),
            at=np.array(row["at"], np.int64),
            logp=np.array(row["logp"], np.float32),
            labels=labels,
            truncated=row["truncated"],
        ),
    )


def _step_labels(labels: NDArray[np.float64], steps: Sequence[str] | None) -> tuple[float, ...]:
    """Labels of the steps that have a text; the end of sequence after the last separator has none."""
    return () if steps is None else tuple(labels[~np.isnan(labels)].tolist()[: len(steps)])


def _clean(text: str) -> str:
    """Text that can be written: half of a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace").decode()
