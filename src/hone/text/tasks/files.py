"""Rows out of a JSONL, JSON or parquet file, with every fault placed: file, line, byte.

Belongs here: bytes -> rows (one mapping of columns each). Does not: what the columns mean, see `dataset.py`.
A row that cannot be read is a fault of the file and is never dropped silently.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hone.core.errors import DataError, ErrorCollector, did_you_mean
from hone.core.strict_json import JsonFault, parse_json
from hone.process.user_files import file_fault

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".json", ".parquet")
MAX_FAULTS_SHOWN = 5
"""Faults of one kind that are spelled out; the rest are counted."""
_BATCH_ROWS = 256
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """Row of a file of tasks."""

    number: int
    """Counted from 1; the line in a JSONL file."""
    columns: dict[str, object]


class _FileFaults:
    """Collects faults of a file; those beyond the first few are counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.faults = ErrorCollector(DataError)

    def add(self, place: str, message: str) -> None:
        self.count += 1
        if self.count <= MAX_FAULTS_SHOWN:
            self.faults.add(f"{self.path}{place}: {message}")

    def raise_if_any(self) -> None:
        if self.count > MAX_FAULTS_SHOWN:
            self.faults.add(f"{self.path}: ... and {self.count - MAX_FAULTS_SHOWN} more rows that cannot be read")
        self.faults.raise_if_any()


def read_rows(path: Path, *, max_row_bytes: int) -> list[FileRow]:
    """All rows of a file, in order.

    Raises DataError with all faults at once: no such file, unknown suffix, empty file, bytes that are not UTF-8,
    broken JSON (a last line that was cut off is told apart), a row that is not an object or is larger than
    `max_row_bytes`, parquet without its footer.
    """
    _check_path(path)
    readers: dict[str, Callable[[Path, _FileFaults, int], Iterator[FileRow]]] = {
        ".jsonl": _read_jsonl,
        ".json": _read_json,
        ".parquet": _read_parquet,
    }
    places = _FileFaults(path)
    rows = list(readers[path.suffix.lower()](path, places, max_row_bytes))
    places.raise_if_any()
    if not rows:
        raise DataError(f"{path}: has no rows; a dataset needs at least one")
    return rows


def _check_path(path: Path) -> None:
    if fault := file_fault(path):
        raise DataError(fault)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = did_you_mean(path.name, [name for name in siblings if Path(name).suffix.lower() in SUFFIXES])
        raise DataError(f"{path}: no such file{near}")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name one file in it ({', '.join(SUFFIXES)})")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; readable: {', '.join(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes)")


def _read_jsonl(path: Path, places: _FileFaults, max_row_bytes: int) -> Iterator[FileRow]:
    number = 0
    for start, raw in _lines(path, max_row_bytes):
        offset = start
        # A lone carriage return can only stand between rows: JSON does not allow it inside a string.
        for part in raw.splitlines(keepends=True):
            number += 1
            if row := _jsonl_row(part, number=number, offset=offset, places=places, max_row_bytes=max_row_bytes):
                yield row
            offset += len(part)


def _lines(path: Path, limit: int) -> Iterator[tuple[int, bytes]]:
    """Each line with the byte at which it begins; of a line that is too long only the first `limit` + 2 bytes."""
    whole = True
    with path.open("rb") as file:
        while True:
            start = file.tell()
            line = file.readline(limit + 2)
            if not line:
                return
            if whole:
                yield start, line
            whole = line.endswith(b"\n")


def _jsonl_row(part: bytes, *, number: int, offset: int, places: _FileFaults, max_row_bytes: int) -> FileRow | None:
    body = part.rstrip(b"\r\n")
    if len(body) > max_row_bytes:
        places.add(f":{number}:{offset}", f"the row is larger than max_row_bytes = {max_row_bytes}")
        return None
    try:
        text = body.decode("utf-8-sig" if offset == 0 else "utf-8")
        if not text.strip():
            return None
        value, faults = parse_json(text)
        for fault in faults:
            places.add(f":{number}:{offset}", str(fault))
        return None if faults else _as_row(value, number=number, place=f":{number}:{offset}", places=places)
    except UnicodeDecodeError as error:
        places.add(f":{number}:{offset + error.start}", f"not UTF-8: byte 0x{body[error.start]:02x}; save it as UTF-8")
    except json.JSONDecodeError as error:
        at = offset + len(error.doc[: error.pos].encode())
        if part == body:  # only the last line of a file has no end
            places.add(f":{number}:{at}", "the last line is cut off: the file is truncated or still being written")
        else:
            places.add(f":{number}:{at}", f"not JSON: {error.msg}")
    except RecursionError:
        places.add(f":{number}:{offset}", "the JSON is nested too deep to be read")
    return None


def _as_row(value: object, *, number: int, place: str, places: _FileFaults) -> FileRow | None:
    if not isinstance(value, dict):
        places.add(place, f"row {number} is a {type(value).__name__}; expected an object with named columns")
        return None
    return FileRow(number=number, columns=value)


def _read_json(path: Path, places: _FileFaults, max_row_bytes: int) -> Iterator[FileRow]:
    data = path.read_bytes()
    try:
        rows, faults = parse_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{error.start}: not UTF-8: byte 0x{data[error.start]:02x}; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        hint = "; rows on lines of their own are JSON Lines: name the file .jsonl" if "Extra data" in error.msg else ""
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}{hint}") from None
    except RecursionError:
        raise DataError(f"{path}: the JSON is nested too deep to be read") from None
    for fault in faults:
        row = f"row {int(fault.path[0]) + 1}, " if isinstance(rows, list) and fault.path else ""
        places.add("", f"{row}{JsonFault(fault.path[1:], fault.message) if row else fault}")
    if faults:
        return
    if not isinstance(rows, list):
        raise DataError(f"{path}: holds a {type(rows).__name__}; expected a list of objects, one for each row")
    for number, value in enumerate(rows, start=1):
        if len(data) > max_row_bytes and len(json.dumps(value)) > max_row_bytes:
            places.add("", f"row {number} is larger than max_row_bytes = {max_row_bytes}")
        elif row := _as_row(value, number=number, place="", places=places):
            yield row


def _read_parquet(path: Path, places: _FileFaults, max_row_bytes: int) -> Iterator[FileRow]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    _check_parquet_ends(path)
    number = 0
    try:
        for columns in _parquet_values(path, max_row_bytes):
            number += 1
            if isinstance(columns, str):
                places.add("", f"row {number} {columns}")
            else:
                yield FileRow(number=number, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: damaged parquet after row {number}: {error}") from None


def _parquet_values(path: Path, limit: int) -> Iterator[dict[str, object] | str]:
    """Each row's columns, or what is wrong with it; a row of more than `limit` bytes never becomes Python objects.

    Raises DataError for columns or fields of one name.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    with pq.ParquetFile(path) as file:
        if repeated := list(_repeated_names(file.schema_arrow, ())):
            raise DataError(*(f"{path}: {place} occurs more than once; rename or drop one" for place in repeated))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            yield from _batch_values(batch, limit)


def _batch_values(batch: "pa.RecordBatch", limit: int) -> Sequence[dict[str, object] | str]:
    if batch.nbytes <= limit:
        with contextlib.suppress(UnicodeDecodeError):  # the row that holds it is looked for below
            return batch.to_pylist()
    return [_parquet_row(batch.slice(index, 1), limit) for index in range(batch.num_rows)]


def _parquet_row(row: "pa.RecordBatch", limit: int) -> dict[str, object] | str:
    if row.nbytes > limit:
        return f"is larger than max_row_bytes = {limit}"
    try:
        return row.to_pylist()[0]
    except UnicodeDecodeError as error:
        return f"holds text that is not UTF-8: byte 0x{error.object[error.start]:02x}"


def _repeated_names(fields: "Iterable[pa.Field]", path: tuple[str, ...]) -> Iterator[str]:
    """Columns, and fields of structures at any depth, that share their name with another one."""
    held = list(fields)
    names = [field.name for field in held]
    kind = "field" if path else "column"
    yield from (f"{kind} {'.'.join((*path, name))!r}" for name in dict.fromkeys(names) if names.count(name) > 1)
    for field in held:
        inner = [field.type.field(place) for place in range(field.type.num_fields)]
        yield from _repeated_names(inner, (*path, field.name))


def _check_parquet_ends(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(max(0, path.stat().st_size - len(_MAGIC)))
        tail = file.read(len(_MAGIC))
    if head != _MAGIC:
        raise DataError(f"{path}: not a parquet file: it begins with {head!r} instead of {_MAGIC!r}")
    if tail != _MAGIC:
        raise DataError(f"{path}: footer missing: the file was cut or is still being written; write it again")
