"""Prompt and example datasets: the formats that users have, normalised to one `Example`.

Belongs here: which columns make which kind of dataset, what each row must hold, ids, fingerprint, overlap.
Formats: TRL's (text, messages, prompt, prompt-completion, plain or conversational), those with scored answers
(`scored_rows`), the parquet schema of verl (`data_source`, `prompt`, `reward_model.ground_truth`, `extra_info`), and
those that `shapes` converts to these.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from hone.core.errors import DataError, did_you_mean
from hone.text.tasks.files import MAX_FAULTS_SHOWN, FileRow, read_rows
from hone.text.tasks.scored_rows import (
    SCORED_COLUMNS,
    SCORED_ROW_READERS,
    BadRowError,
    PromptContent,
    ScoredAnswer,
    checked_content,
)
from hone.text.tasks.shapes import SHAPES, RowShape, fitting_shapes, renamed_columns

T = TypeVar("T")
DatasetKind: TypeAlias = Literal["prompt", "prompt-completion", "preference", "unpaired", "stepwise"]
MAX_ROW_BYTES = 16 * 2**20

_NEEDS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "prompt-completion", "verl", "messages"),
    "prompt-completion": ("prompt-completion", "messages", "text"),
    "preference": ("preference",),
    "unpaired": ("unpaired", "preference"),
    "stepwise": ("stepwise",),
}
_MAIN_COLUMNS = {
    "prompt": ("prompt",),
    "prompt-completion": ("completion",),
    "preference": ("chosen", "rejected"),
    "unpaired": ("prompt", "completion", "label"),
    "stepwise": ("prompt", "completions", "labels"),
}
_WANTED = {
    "prompt": "prompts",
    "prompt-completion": "prompts with completions",
    "preference": "pairs of answers",
    "unpaired": "labelled answers",
    "stepwise": "answers with labelled steps",
}
_USED = {"text": {"text"}, "messages": {"messages"}}
_SCORED: Final = ("preference", "stepwise", "unpaired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row of a dataset, in hone's common form."""

    id: str
    """The row's own `id`, else a hash of its content; keys random streams and joins, so unique in a dataset."""
    prompt: PromptContent
    """Text, or messages `{"role", "content", ...}`."""
    completion: PromptContent | None
    """Reference answer, in the prompt's form; None if the dataset has prompts only."""
    columns: Mapping[str, object]
    """All other columns, the same names in every example (None where a row lacks one); rewards get them by name."""
    row: int
    """Row in the file, counted from 1 (the line of a JSONL file)."""
    source: str
    """The file or task that it came from."""
    answers: tuple[ScoredAnswer, ...] = ()
    """Scored answers; none in a dataset of prompts or of reference answers."""

    @property
    def is_conversation(self) -> bool:
        """True if the prompt or an answer is messages, which a chat template renders."""
        contents = [self.prompt, self.completion, *(answer.content for answer in self.answers)]
        return any(isinstance(content, list) for content in contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDataset:
    """A dataset in memory, in file order."""

    rows: tuple[Example, ...]
    source: str
    fingerprint: str
    """sha256 of all examples' ids and content, in order: two equal fingerprints are the same dataset."""
    warnings: tuple[str, ...] = ()
    vocabulary: str | None = None
    """Hash of the vocabulary of answers that were collected as tokens; None for text."""
    shape: str = ""
    """How the rows of a file were read, in words; empty where they were made."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        return self.rows[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.rows)

    def apply(self, function: Callable[[Example], T]) -> list[T]:
        """Results of `function` for all examples. Raises DataError with the rows and ids of each fault."""
        results: list[T] = []
        faults: dict[str, list[str]] = {}
        for example in self.rows:
            try:
                results.append(function(example))
            except DataError as error:
                faults.setdefault(str(error), []).append(f"{example.row} (id {example.id})")
        messages = [
            f"{self.source}: {fault}; in {len(rows)} of {len(self)} rows: {', '.join(rows[:MAX_FAULTS_SHOWN])}"
            f"{', ...' if len(rows) > MAX_FAULTS_SHOWN else ''}"
            for fault, rows in faults.items()
        ]
        if len(messages) > MAX_FAULTS_SHOWN:
            messages[MAX_FAULTS_SHOWN:] = [f"{self.source}: ... and {len(messages) - MAX_FAULTS_SHOWN} more faults"]
        if messages:
            raise DataError(*messages)
        return results

    def column_names(self) -> tuple[str, ...]:
        return tuple(self.rows[0].columns) if self.rows else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOverlap:
    """Prompts that are in both of two datasets, as ids of the second one."""

    count: int
    ids: tuple[str, ...]


def read_examples(
    path: str | Path,
    *,
    need: DatasetKind,
    columns: Mapping[str, str] | None = None,
    on_bad_row: Literal["error", "drop"] = "error",
    max_row_bytes: int = MAX_ROW_BYTES,
) -> ExampleDataset:
    """Read a `.jsonl`, `.json` or `.parquet` dataset of any known shape.

    `columns`: names of the file's columns by hone's names for them, `{"prompt": "question"}`. `preference`, `unpaired`
    and `stepwise` give `answers`. Pairs with equal scores are left out, with a warning that counts them.
    `on_bad_row="drop"` leaves out rows whose content is unusable (null, empty, wrong type), and all but the first row
    of each id, with warnings that count them; a file that is damaged is an error all the same.

    Raises DataError, with all faults at once.
    """
    path, named = Path(path), columns or {}
    rows, names = renamed_columns(read_rows(path, max_row_bytes=max_row_bytes), named, str(path))
    shape = _shape(path, rows, names, need=need, named=named)
    drafts: list[Example] = []
    bad = _BadRowTally(path)
    for row in rows:
        try:
            drafts.append(_example(row, shape.columns_of(row, names), kind=shape.kind, need=need, source=str(path)))
        except BadRowError as fault:
            bad.add(str(fault), row.number)
    warnings = bad.settle(on_bad_row=on_bad_row, total=len(rows))
    drafts = _without_ties(drafts, str(path), warnings)
    has_ids = "id" in names
    if has_ids and on_bad_row == "drop":
        kept = list({draft.id: draft for draft in reversed(drafts)}.values())[::-1]
        if len(kept) < len(drafts):
            warnings.append(f"{path}: {len(drafts) - len(kept)} of {len(drafts)} rows repeat an id and were dropped")
        drafts = kept
    renamed = "".join(f", {name} = {column}" for name, column in named.items() if name != column)
    words = f"{path}: {len(rows):,} rows read as {shape.words}{renamed}"
    return replace(build_examples(drafts, source=str(path), warnings=warnings, ids_given=has_ids), shape=words)


def dataset_kind(path: str | Path, columns: Mapping[str, str] | None = None) -> DatasetKind:
    """The kind of a file by its columns, prompts to be answered where it has no answers. Raises DataError."""
    path, named = Path(path), columns or {}
    rows, names = renamed_columns(read_rows(path, max_row_bytes=MAX_ROW_BYTES), named, str(path))
    kinds = {shape.kind for shape in fitting_shapes(rows, names, named)}
    for scored in _SCORED:
        if scored in kinds:
            return scored
    if not kinds.intersection(_NEEDS["prompt-completion"]):
        return "prompt"
    shape = _shape(path, rows, names, need="prompt-completion", named=named)
    ends = [shape.columns_of(row, names).get("messages") for row in rows] if shape.kind == "messages" else []
    spoken = [turns[-1] for turns in ends if isinstance(turns, list) and turns]
    answered = all(isinstance(one, dict) and one.get("role") == "assistant" for one in spoken)
    return "prompt-completion" if answered else "prompt"


def _shape(
    path: Path, rows: Sequence[FileRow], names: Sequence[str], *, need: DatasetKind, named: Mapping[str, str]
) -> RowShape:
    """The one shape of a file that gives what is needed. Raises DataError where none does, or more than one."""
    if need == "unpaired" and set(_MAIN_COLUMNS[need]) <= set(names):  # its labels are checked row by row
        return next(shape for shape in SHAPES if shape.kind == need)
    fits = fitting_shapes(rows, names, named)
    useful = [shape for shape in fits if shape.kind in _NEEDS[need]]
    if not useful:
        kinds = [shape.kind for shape in fits]
        scored = next((kind for kind in _SCORED if kind in kinds), None)
        message = _wrong_kind(path, kind=scored or next(iter(kinds), ""), need=need, names=names)
        if scored is None and {"instruction", "completions"} <= set(names):
            message += (
                "; these look like UltraFeedback's raw rows, of which nothing says which two completions make a pair: "
                "write the better one as `chosen` and the other as `rejected`"
            )
        elif scored is None:
            main = ("prompt", "completion") if need == "prompt-completion" else _MAIN_COLUMNS[need]
            shown = ", ".join(f'{name} = "..."' for name in main)
            message += f"; where other columns hold that, name them: task.columns = {{ {shown} }}"
        raise DataError(message)
    if len(useful) > 1:
        everywhere = frozenset.intersection(*(shape.uses for shape in useful))
        telling = [next(name for name in shape.columns if name not in everywhere) for shape in useful]
        raise DataError(
            f"{path}: the rows can be read as {', or as '.join(shape.words for shape in useful)} (columns found: "
            f"{', '.join(names)}); say which by naming a column of it: "
            + " or ".join(f'task.columns = {{ {name} = "{name}" }}' for name in telling)
        )
    return useful[0]


def build_examples(
    drafts: Sequence[Example], *, source: str, warnings: Iterable[str] = (), ids_given: bool = True
) -> ExampleDataset:
    """Assign ids and compute the fingerprint. Without given ids, an example's id is a hash of its content.

    Raises DataError when given ids repeat: ids key random streams and joins.
    """
    contents = [_content(draft) for draft in drafts]
    notes = list(warnings)
    if ids_given:
        _check_ids(drafts, source)
        rows = tuple(drafts)
    else:
        rows, repeats = _hashed(drafts, contents)
        if repeats:
            notes.append(f"{source}: {repeats} rows repeat an earlier row word for word; kept, with ids of their own")
    whole = hashlib.sha256()
    for row, content in zip(rows, contents, strict=True):
        whole.update(json.dumps([row.id, content]).encode())
    return ExampleDataset(rows=rows, source=source, fingerprint=whole.hexdigest(), warnings=tuple(notes))


def _without_ties(drafts: Sequence[Example], source: str, warnings: list[str]) -> list[Example]:
    """Examples whose answers differ in score; a count of the others is appended to `warnings`. Raises DataError when
    none is left."""
    kept = [draft for draft in drafts if len(draft.answers) < 2 or len({one.score for one in draft.answers}) > 1]
    if len(kept) < len(drafts):
        ties = f"{source}: {len(drafts) - len(kept)} of {len(drafts)} rows are ties: their answers have one score"
        if not kept:
            raise DataError(f"{ties}; no answer is preferred")
        warnings.append(f"{ties} (left out)")
    return kept


def find_overlap(train: ExampleDataset, evaluation: ExampleDataset) -> DatasetOverlap:
    """Find prompts of `evaluation` that are also in `train` (compared as text without surrounding whitespace)."""
    seen = {_asked_key(example) for example in train}
    ids = tuple(example.id for example in evaluation if _asked_key(example) in seen)
    return DatasetOverlap(count=len(ids), ids=ids)


def _asked_key(example: Example) -> str:
    """`prompt_key` of everything before the last answer."""
    prompt, completion = example.prompt, example.completion
    earlier = completion[:-1] if isinstance(prompt, list) and isinstance(completion, list) else []
    return prompt_key([*prompt, *earlier] if earlier and isinstance(prompt, list) else prompt)


def prompt_key(prompt: PromptContent) -> str:
    """Return the key by which prompts are compared: their text without surrounding whitespace."""
    return prompt.strip() if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def _wrong_kind(path: Path, *, kind: str, need: str, names: Sequence[str]) -> str:
    wanted, columns = _WANTED[need], f"columns found: {', '.join(names)}"
    if kind in SCORED_COLUMNS:
        return f"{path}: this is a dataset of the {kind} kind, the recipe needs {wanted} ({columns})"
    main = ("prompt",) if need == "prompt-completion" and "prompt" not in names else _MAIN_COLUMNS[need]
    what = f", a dataset of {kind} rows" if kind else ""
    absent = [column for column in main if column not in names]
    first = f"{path}: no column {absent[0]!r}{what}; the recipe needs {wanted} ({columns}){_near(absent[0], names)}"
    return "; ".join([first, *(f"no column {column!r}{_near(column, names)}" for column in absent[1:])])


def _near(column: str, names: Sequence[str]) -> str:
    """A hint at the column that was meant: chosen_response for chosen."""
    longer = next((name for name in names if column in name), None)
    return did_you_mean(column, names).split("; known")[0] if longer is None else f"; did you mean {longer}?"


class _BadRowTally:
    """Rows by their fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_reason: dict[str, list[int]] = {}

    def add(self, reason: str, number: int) -> None:
        self.by_reason.setdefault(reason, []).append(number)

    def settle(self, *, on_bad_row: str, total: int) -> list[str]:
        """Warnings for dropped rows. Raises DataError if bad rows may not be dropped, or none is left."""
        lines: list[str] = []
        for reason, numbers in self.by_reason.items():
            shown = ", ".join(map(str, numbers[:MAX_FAULTS_SHOWN])) + (
                ", ..." if len(numbers) > MAX_FAULTS_SHOWN else ""
            )
            lines.append(f"{self.path}: {reason} in {len(numbers)} of {total} rows: {shown}")
        dropped = sum(map(len, self.by_reason.values()))
        if dropped and on_bad_row == "error":
            raise DataError(*lines, f'{self.path}: fix these rows, or drop them with task.on_bad_row = "drop"')
        if dropped == total:
            raise DataError(*lines, f"{self.path}: all {total} rows were dropped, none is left")
        return [f"{line} (dropped)" for line in lines]


def _example(row: FileRow, columns: Mapping[str, object], *, kind: str, need: str, source: str) -> Example:
    answers: tuple[ScoredAnswer, ...] = ()
    if kind in SCORED_COLUMNS:
        prompt, answers = SCORED_ROW_READERS[kind](columns)
        completion = None
    else:
        prompt, completion = _turns(columns, kind, need)
    if need == "prompt-completion" and completion is None:
        raise BadRowError("`messages` do not end with the assistant's turn")
    used = SCORED_COLUMNS[kind] if answers else _USED.get(kind, {"prompt", "completion"})
    rest = {name: value for name, value in columns.items() if name not in used}
    if kind == "verl":
        reward_model = columns["reward_model"]
        if not isinstance(reward_model, dict) or reward_model.get("ground_truth") is None:
            raise BadRowError("`reward_model.ground_truth` is null or missing")
        rest["ground_truth"] = reward_model["ground_truth"]
    return Example(
        id=_identity(columns) if "id" in columns else "",
        prompt=prompt,
        completion=completion,
        columns=rest,
        row=row.number,
        source=source,
        answers=answers,
    )


def _turns(columns: Mapping[str, object], kind: str, need: str) -> tuple[PromptContent, PromptContent | None]:
    """Prompt and completion of a row. A conversation to imitate is cut before the assistant's first turn, for all of
    its turns are answers; one to be answered before its last."""
    if kind == "text":
        return "", checked_content(columns["text"], "text")
    if kind == "messages":
        turns = checked_content(columns["messages"], "messages")
        if isinstance(turns, str):
            raise BadRowError("`messages` is a str, expected a list of messages")
        if turns[-1]["role"] != "assistant":
            return turns, None
        if len(turns) == 1:
            raise BadRowError("`messages` holds an answer and no prompt")
        roles = [turn["role"] for turn in turns]
        place = roles.index("assistant", 1) if need == "prompt-completion" else len(turns) - 1
        return turns[:place], turns[place:]
    prompt = checked_content(columns["prompt"], "prompt")
    return prompt, checked_content(columns["completion"], "completion") if kind == "prompt-completion" else None


def _identity(columns: Mapping[str, object]) -> str:
    value = columns["id"]
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise BadRowError("`id` is missing or neither text nor a whole number")
    return str(value)


def _check_ids(drafts: Sequence[Example], source: str) -> None:
    first: dict[str, int] = {}
    twice: list[str] = []
    for draft in drafts:
        if draft.id in first:
            twice.append(f"{draft.id!r} in rows {first[draft.id]} and {draft.row}")
        first.setdefault(draft.id, draft.row)
    if twice:
        more = f" (and {len(twice) - MAX_FAULTS_SHOWN} more)" if len(twice) > MAX_FAULTS_SHOWN else ""
        raise DataError(
            f"{source}: {len(twice)} ids repeat: {'; '.join(twice[:MAX_FAULTS_SHOWN])}{more}; "
            'ids must be unique: fix them, keep the first of each with task.on_bad_row = "drop", or remove the '
            "column `id` to have the content hashed"
        )


def _content(draft: Example) -> str:
    content: list[object] = [draft.prompt, draft.completion, draft.columns]
    if draft.answers:
        content.append([one.identity() for one in draft.answers])
    return json.dumps(content, sort_keys=True, default=str)


def _hashed(drafts: Sequence[Example], contents: Sequence[str]) -> tuple[tuple[Example, ...], int]:
    """Examples with the hash of their content as id (`#2`, `#3` ... for repeats), and how many repeat another."""
    times: dict[str, int] = {}
    rows: list[Example] = []
    for draft, content in zip(drafts, contents, strict=True):
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        times[digest] = times.get(digest, 0) + 1
        identity = digest if times[digest] == 1 else f"{digest}#{times[digest]}"
        rows.append(replace(draft, id=identity))
    return tuple(rows), len(rows) - len(times)
