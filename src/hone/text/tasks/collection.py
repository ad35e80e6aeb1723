"""Collected answers: their files, the examples that recipes make of them, and their export to TRL's formats.

A collection is parquet files in a folder, one row per answer, with the tokens that were drawn.

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

Scored answers as rows of TRL's formats, written as JSON Lines or parquet.

`read_examples` reads the rows back. Text is decoded: other programs encode it in their own way, so that their tokens
may not be those that were drawn; hone itself reads a collection's tokens.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow has no type information)

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (pyarrow has no type information)
from hone.core.errors import ConfigError, DataError
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.scored_rows import AnswerTokens, PromptContent, ScoredAnswer

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
    metadata = json.loads(notes)
    if metadata["format"] != _FORMAT:
        raise DataError(f"{path}: format {metadata['format']}, this hone reads {_FORMAT}")
    return table.to_pylist(), str(metadata["vocabulary"])


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
        # The end of sequence after the last separator has a label and no text.
        labels=() if row["steps"] is None else tuple(labels[~np.isnan(labels)].tolist()[: len(row["steps"])]),
        tokens=AnswerTokens(
            tokens=np.array(row["tokens"], np.int32),
            at=np.array(row["at"], np.int64),
            logp=np.array(row["logp"], np.float32),
            labels=labels,
            truncated=row["truncated"],
        ),
    )


def _clean(text: str) -> str:
    """Text that can be written: half of a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace").decode()


# -------------------------------------------------------------------------------------------- uses of collected answers
# Uses of collected answers: pairs, labelled answers, outcomes, answers with labelled steps, examples to imitate.
#
# All of them choose among the answers of each prompt, in the order of their collection, and tell what they left out.


AnswerKind: TypeAlias = Literal["preference", "unpaired", "outcome", "stepwise", "imitation", "experience"]
"""Pairs; answers labelled 1 or 0; answers with any score; answers with labelled steps; good answers to imitate; all
answers, each once, whatever their score."""
PairRule: TypeAlias = Literal["best_worst", "all"]
"""Pairs of a prompt's answers: the best with the worst, or every two with different scores."""


def select_answers(
    collected: ExampleDataset,
    kind: AnswerKind,
    *,
    min_score: float,
    pairs: PairRule = "best_worst",
    max_per_prompt: int | None = None,
) -> ExampleDataset:
    """Examples of one kind from all collected answers.

    An answer is right from `min_score` on (`unpaired`, `imitation`). `imitation` takes right answers that ended by
    themselves, each once, and at most `max_per_prompt` for a prompt. Raises DataError when nothing is left.
    """
    scored = [replace(one, answers=_scored(one)) for one in collected]
    total, missing = _count(collected), _count(collected) - _count(scored)

    def is_right(answer: ScoredAnswer) -> bool:
        return answer.score >= min_score

    choose: dict[AnswerKind, Callable[[Example], Iterator[Example]]] = {
        "preference": lambda example: _pairs(example, pairs),
        "unpaired": lambda example: _one_each(
            example, [replace(one, score=float(is_right(one))) for one in example.answers]
        ),
        "outcome": lambda example: _one_each(example, example.answers),
        "stepwise": lambda example: _one_each(
            example,
            [one for one in example.answers if one.tokens is not None and not np.isnan(one.tokens.labels).all()],
        ),
        "imitation": lambda example: _one_each(
            example, _distinct([one for one in example.answers if is_right(one) and not _is_cut(one)])[:max_per_prompt]
        ),
        "experience": lambda example: _one_each(example, _distinct(example.answers)[:max_per_prompt]),
    }
    chosen = [one for example in scored for one in choose[kind](example)]
    notes = [f"{collected.source}: {missing} of {total} answers have no score and are left out"] if missing else []
    left = sum(1 for example in scored if not any(choose[kind](example)))
    if left:
        notes.append(f"{collected.source}: {left} of {len(collected)} prompts have {_LACKING[kind]}")
    if not chosen:
        raise DataError(*notes, f"{collected.source}: no {_WANTED[kind]} in {total} answers")
    note = f"{collected.source}: {len(chosen)} {_WANTED[kind]} from {total} answers to {len(collected)} prompts"
    if kind == "imitation":
        right = [one for example in scored for one in example.answers if is_right(one)]
        cut = sum(map(_is_cut, right))
        rest = len(right) - cut - len(chosen)
        note += f" ({len(right)} are right; {cut} of them were cut off, {rest} are repeated or beyond the cap)"
    notes.append(note)
    dataset = build_examples(chosen, source=collected.source, warnings=[*collected.warnings, *notes])
    return replace(dataset, vocabulary=collected.vocabulary)


_WANTED: dict[AnswerKind, str] = {
    "preference": "pairs",
    "unpaired": "labelled answers",
    "outcome": "scored answers",
    "stepwise": "answers with labelled steps",
    "imitation": "answers to imitate",
    "experience": "different answers",
}
_LACKING: dict[AnswerKind, str] = {
    "preference": "one score for all answers: no pair",
    "unpaired": "no scored answer",
    "outcome": "no scored answer",
    "stepwise": "no labelled step",
    "imitation": "no right answer: unsolved",
    "experience": "no scored answer",
}


def _count(examples: "Sequence[Example] | ExampleDataset") -> int:
    return sum(len(example.answers) for example in examples)


def _scored(example: Example) -> tuple[ScoredAnswer, ...]:
    return tuple(answer for answer in example.answers if not np.isnan(answer.score))


def _numbered(example: Example, answers: Sequence[tuple[ScoredAnswer, ...]]) -> Iterator[Example]:
    """One example for each of `answers`, with ids of their own from the second on."""
    for number, chosen in enumerate(answers, start=1):
        yield replace(example, id=example.id if number == 1 else f"{example.id}#{number}", answers=chosen)


def _pairs(example: Example, rule: PairRule) -> Iterator[Example]:
    answers = example.answers
    if not answers:
        return
    if rule == "best_worst":
        best, worst = max(answers, key=lambda one: one.score), min(answers, key=lambda one: one.score)
        pairs = [(best, worst)]
    else:
        pairs = list(product(answers, answers))
    yield from _numbered(example, [pair for pair in pairs if pair[0].score > pair[1].score])


def _one_each(example: Example, answers: Sequence[ScoredAnswer]) -> Iterator[Example]:
    yield from _numbered(example, [(one,) for one in answers])


def _is_cut(answer: ScoredAnswer) -> bool:
    return answer.tokens is None or answer.tokens.truncated


def _distinct(answers: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Answers that were collected as tokens, each once, in the order of their first time."""
    distinct: dict[bytes, ScoredAnswer] = {}
    for one in answers:
        if one.tokens is not None:
            distinct.setdefault(one.tokens.tokens.tobytes(), one)
    return list(distinct.values())


# -------------------------------------------------------------------------------------------------------- TRL's formats


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
            {"prompt": example.prompt, "completion": content}
            for content in ([one.content for one in example.answers] or [example.completion])
            if content is not None
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
    note = f"{examples.source}: {len(empty)} rows have an answer that is empty as text, to the prompts {shown}"
    if not rows:
        raise DataError(f"{note}; no format of text can hold them")
    return rows, [f"{note} (left out)"]


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


def _has_text(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return bool(value) and all(_has_text(one["content"] if isinstance(one, dict) else one) for one in value)
    return True
