"""Durable writes, and named failpoints at which a test can end the process.

Belongs here: writing, flushing, renaming and hashing of files; an OSError becomes a ResourceError that names the path
and the bytes. Does not: file formats.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, cast

from safetensors import SafetensorError

from hone.core.errors import DataError, ResourceError
from hone.core.strict_json import Json
from hone.run.store.faults import EVENTS

FAILPOINT_VARIABLE = "HONE_FAILPOINT"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(ResourceError):
    """No space left; existing files are intact, and the write may be tried again."""


def failpoint(name: str) -> None:
    """Exit, stop or fail here if the environment demands it: `HONE_FAILPOINT=ckpt.before_rename:exit`.

    Actions: `exit` (at once, code 86, nothing flushed), `kill` (SIGKILL to itself), `raise` (OSError, as a broken
    disk would), `sleep` (an hour, so that a test can look). Several are separated by commas. Costs nothing when unset.
    """
    EVENTS.announce(name, writes=False)
    wanted = os.environ.get(FAILPOINT_VARIABLE)
    if not wanted:
        return
    for entry in wanted.split(","):
        place, _, action = entry.partition(":")
        if place == name:
            _fail(name, action)


def _fail(name: str, action: str) -> None:
    match action:
        case "exit":
            os._exit(86)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise OSError(errno.EIO, f"failpoint {name}")
        case "sleep":
            time.sleep(3600)
        case _:
            raise ValueError(
                f"{FAILPOINT_VARIABLE}: unknown action {action!r} at {name}; known: exit, kill, raise, sleep"
            )


def human_bytes(count: int) -> str:
    """Format bytes: `1536 -> '1.5 KiB'`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def raise_write_error(path: Path, error: OSError, size_bytes: int | None = None) -> NoReturn:
    """Raise the ResourceError for an OSError at `path`, or at the file that the error names."""
    path = Path(error.filename) if isinstance(error.filename, str) else path
    size = "" if size_bytes is None else f" ({human_bytes(size_bytes)} to write)"
    if error.errno in _FULL:
        raise DiskFullError(
            f"no space left for {path}{size}: {error.strerror}; free some space or choose another folder"
        ) from error
    raise ResourceError(f"cannot write {path}{size}: {error.strerror or error}") from error


@contextmanager
def writing(path: Path, size_bytes: int | None = None) -> Generator[None]:
    """Convert an OSError of the block to a ResourceError that names `path` and the bytes."""
    try:
        EVENTS.announce(path.name, writes=True)
        yield
    except OSError as error:
        raise_write_error(path, error, size_bytes)


@contextmanager
def writing_tensors(path: Path, size_bytes: int | None = None) -> Generator[None]:
    """Convert errors as `writing` does for a block that calls safetensors, which has its own error type."""
    try:
        with writing(path, size_bytes):
            yield
    except SafetensorError as error:
        size = "" if size_bytes is None else f" ({human_bytes(size_bytes)} to write)"
        raise ResourceError(f"cannot write {path}{size}: {error}; free some space or choose another folder") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; the only function of this package that writes bytes to a file."""
    view = memoryview(data)
    EVENTS.announce("half of a write", writes=True, tear=lambda: os.write(descriptor, view[: len(view) // 2]))
    while view:
        view = view[os.write(descriptor, view) :]


def write_file(path: Path, data: bytes) -> None:
    """Write and fsync a file. Raises ResourceError."""
    with writing(path, len(data)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_path(path: Path) -> None:
    """Fsync an existing file, or a folder (to make its entries durable). Raises ResourceError."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data` atomically: a reader sees the old file or the new one. Raises ResourceError."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_file(temporary, data)
    failpoint(f"replace.{path.name}")
    with writing(path, len(data)):
        temporary.replace(path)
    sync_path(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a folder and its contents. Raises ResourceError."""
    with writing(path):
        shutil.rmtree(path)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_space(folder: Path, need_bytes: int) -> None:
    """Raise ResourceError, naming both figures, if the disk of `folder` has less than `need_bytes` free."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with writing(folder):
        free = shutil.disk_usage(existing).free
    if free < need_bytes:
        raise ResourceError(
            f"not enough space for {folder}: {human_bytes(need_bytes)} needed, {human_bytes(free)} free; "
            "free some space, choose another folder, or keep fewer checkpoints"
        )


def to_json(value: Json, *, indent: int | None = None) -> bytes:
    """Format strict JSON (no NaN) with a final newline; floats use repr, so that reading restores the same bits."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def from_json(data: bytes, where: str) -> Json:
    """Parse strict JSON. Raises DataError naming `where` (a file, or file and line)."""
    try:
        return cast("Json", json.loads(data, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def read_json(path: Path) -> Json:
    """Read a JSON file. Raises DataError if it is missing, unreadable or not JSON."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return from_json(data, str(path))


def read_json_object(path: Path) -> dict[str, Json]:
    """Read a JSON file with an object. Raises DataError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} must contain a JSON object, got {type(value).__name__}")
    return value


def finite_or_none(value: float | None) -> float | None:
    """Replace a non-finite number by None, because JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None
