"""New lines of a growing `metrics.jsonl`, as columns.

Belongs here: reading whole lines after a byte offset, noticing that the file was cut or replaced, and turning lines
into columns. Nothing is kept between calls; `columns` keeps.

Lines of one run name the same metrics in the same order, so a chunk is read as a table: a reader of CSV splits it at
the commas, each column must begin with the name that the first line has there, and the rest is a number. Lines that
are laid out otherwise (a step with an evaluation, a NaN with its list) are taken in further passes, and what no pass
takes is read as JSON, line by line.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow has no type information of its functions)
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hone.run.store.metrics import NON_FINITE, STEP

CHUNK_BYTES: Final = 16 << 20
"""Most bytes that one call reads."""
_TABLE_LINES: Final = 400
"""Fewer lines than this are read as JSON: a table costs milliseconds to set up."""
_PASSES: Final = 6
"""Layouts that are read as tables; lines of rarer ones are read as JSON."""
_MARK_BYTES: Final = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRows:
    """Rows of metrics: `steps` `[N]`, strictly increasing, and each metric `[N]` with NaN where a row lacks it."""

    steps: NDArray[np.int64]
    values: dict[str, Floats]
    damaged: int = 0
    """Lines left out: not JSON, without a step, or with one that does not increase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """Place in a file: `offset` bytes are read. `mark` is the sha256 of the bytes before it; a file that was cut and
    has grown again has others there."""

    offset: int = 0
    inode: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLines:
    """Whole lines after a place, and the place after them. `restarted`: they begin at the start of the file, because
    it was cut or replaced since."""

    data: bytes
    place: FilePlace
    restarted: bool
    more: bool
    """True if whole lines may follow beyond the chunk."""


def read_new_lines(path: Path, place: FilePlace, *, limit: int = CHUNK_BYTES) -> NewLines | None:
    """Whole lines after `place`, about `limit` bytes of them; None if there are none.

    A half line at the end waits. A missing file is an empty one.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        changed = place.offset > 0
        return NewLines(data=b"", place=FilePlace(), restarted=True, more=False) if changed else None
    with file:
        status = os.fstat(file.fileno())
        restarted = place.offset > 0 and (
            status.st_size < place.offset or status.st_ino != place.inode or _mark(file, place.offset) != place.mark
        )
        begin = 0 if restarted else place.offset
        if status.st_size == begin and not restarted:
            return None
        file.seek(begin)
        data = file.read(limit)
        whole = data.rfind(b"\n") + 1
        while not whole and len(data) == limit:  # one line that is longer than a chunk
            limit *= 2
            data += file.read(limit - len(data))
            whole = data.rfind(b"\n") + 1
        if not whole and not restarted:
            return None
        end = begin + whole
        after = FilePlace(offset=end, inode=status.st_ino, mark=_mark(file, end))
    return NewLines(data=data[:whole], place=after, restarted=restarted, more=len(data) == limit)


def _mark(file: Any, offset: int) -> str:  # noqa: ANN401 - a binary file
    """sha256 of the bytes before an offset."""
    file.seek(max(0, offset - _MARK_BYTES))
    return hashlib.sha256(file.read(min(offset, _MARK_BYTES))).hexdigest()


# -------------------------------------------------------------------------------------------------------------- parsing


def parse_lines(data: bytes, *, after_step: int = 0) -> MetricRows:
    """Columns of whole lines, of steps after `after_step`."""
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    parts: list[tuple[NDArray[np.int64], dict[str, Floats]]] = []
    left = np.arange(len(lines))
    for _ in range(_PASSES if len(lines) >= _TABLE_LINES else 0):
        if len(left) < _TABLE_LINES:
            break
        took = _read_table(lines, left)
        if took is None:
            break
        parts.append(took)
        left = np.setdiff1d(left, took[0], assume_unique=True)
    parsed = [(number, line) for number in left.tolist() if (line := _read_line(lines[number])) is not None]
    if parsed:
        places = np.array([number for number, _ in parsed], np.int64)
        parts.append((places, _columns([line for _, line in parsed])))
    return _in_order(parts, len(lines), after_step)


def _in_order(parts: Sequence[tuple[NDArray[np.int64], dict[str, Floats]]], count: int, after_step: int) -> MetricRows:
    """Put rows of several layouts back in the order of the file, and leave out steps that do not increase."""
    steps = np.full(count, np.nan)
    values: dict[str, Floats] = {}
    for places, columns in parts:
        for name, column in columns.items():
            if name != STEP and name not in values:
                values[name] = np.full(count, np.nan)
            (steps if name == STEP else values[name])[places] = column
    numbers = np.where(np.isfinite(steps), steps, -1.0)
    highest = np.maximum.accumulate(np.concatenate([[float(after_step)], numbers]))[:-1]
    kept = numbers > highest
    return MetricRows(
        steps=steps[kept].astype(np.int64),
        values={name: column[kept] for name, column in values.items()},
        damaged=count - int(kept.sum()),
    )


def _read_line(line: bytes) -> dict[str, float] | None:
    """Numbers of a line by name, the step among them; None for a damaged line."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    step = parsed.get(STEP)
    if not isinstance(step, int) or isinstance(step, bool) or step <= 0:
        return None
    return {
        name: float(value) if isinstance(value, int | float) else np.nan
        for name, value in parsed.items()
        if name != NON_FINITE
    }


def _columns(lines: Sequence[dict[str, float]]) -> dict[str, Floats]:
    values: dict[str, Floats] = {}
    for row, line in enumerate(lines):
        for name, value in line.items():
            if name not in values:
                values[name] = np.full(len(lines), np.nan)
            values[name][row] = value
    return values


def _read_table(lines: Sequence[bytes], left: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[str, Floats]] | None:
    """Lines of `left` that are laid out as its first one: their numbers, and their columns; None where that cannot be
    read so."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.csv as pc_csv  # noqa: PLC0415

    first = _read_line(lines[left[0]])
    if first is None or NON_FINITE.encode() in lines[left[0]] or any("," in name for name in first):
        return None
    commas = lines[left[0]].count(b",")
    if commas != len(first) - 1:
        return None
    chosen = left if len(left) == len(lines) else None
    text = b"\n".join(lines if chosen is not None else [lines[number] for number in left.tolist()])
    skipped: list[int] = []

    def skip(row: Any) -> str:  # noqa: ANN401 - pyarrow's own
        skipped.append(row.number - 1)
        return "skip"

    names = [f"c{place}" for place in range(len(first))]
    table = pc_csv.read_csv(
        pa.BufferReader(text),
        read_options=pc_csv.ReadOptions(column_names=names, use_threads=False, block_size=max(1 << 16, len(text) + 1)),
        parse_options=pc_csv.ParseOptions(
            delimiter=",", quote_char=False, escape_char=False, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        convert_options=pc_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, null_values=[], strings_can_be_null=False
        ),
    )
    fits = np.ones(len(table), bool)
    sliced: dict[str, Any] = {}
    for place, name in enumerate(first):
        column = table.column(place)
        prefix = f"{'{' if place == 0 else ' '}{json.dumps(name)}: "
        fits &= pc.starts_with(column, pattern=prefix).to_numpy()
        last = place == len(first) - 1
        if last:
            fits &= pc.ends_with(column, pattern="}").to_numpy()
        value = pc.utf8_slice_codeunits(column, start=len(prefix))
        sliced[name] = pc.ascii_rtrim(value, characters="}") if last else value
    numbers = np.delete(left, skipped) if skipped else left
    if not fits.all():
        sliced = {name: column.filter(pa.array(fits)) for name, column in sliced.items()}
        numbers = numbers[fits]
    try:
        return numbers, {name: _numbers(column) for name, column in sliced.items()}
    except (pa.ArrowInvalid, ValueError):
        return None


def _numbers(column: Any) -> Floats:  # noqa: ANN401 - pyarrow's own
    """Floats of texts; null is NaN. Raises ValueError or ArrowInvalid for anything else."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return pc.if_else(pc.equal(column, "null"), "nan", column).cast(pa.float64()).to_numpy()
