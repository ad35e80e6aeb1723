"""Durable writes, and named failpoints at which a test can end the process; faults at counted writes, for `hone chaos`.

Belongs here: writing, flushing, renaming and hashing of files; an OSError becomes a ResourceError that names the path
and the bytes; the count of writes, step by step. Does not: file formats.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias, cast

from safetensors import SafetensorError

from hone.core.errors import DataError, ResourceError
from hone.core.strict_json import Json
from hone.process.child import descendants

FAILPOINT_VARIABLE = "HONE_FAILPOINT"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(ResourceError):
    """No space left; existing files are intact, and the write may be tried again."""


# ------------------------------------------------------------------------------------------- faults at counted events
# An event is a write, its preparation, or a failpoint. The n-th event of a step is the same in every attempt of a
# reproducible run, so a fault that is planned for step and number needs no clock. Only the process that was armed
# counts: `HONE_CHAOS` is taken out of the environment before a child could inherit it.


CHAOS_VARIABLE: Final = "HONE_CHAOS"
"""Environment variable with the events' file and the planned faults: `PATH;kill@3.12;disk@5.1`."""
FaultKind: TypeAlias = Literal["kill", "disk", "replica", "stall"]
ENDING_FAULTS: Final = ("kill", "disk")
"""Faults that end the process."""
_REPLICA: Final = b"ray::ReplicaActor"
"""Title of a replica's process."""
_SIGNALS: Final = {"replica": signal.SIGKILL, "stall": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """An event of a run."""

    step: int
    number: int
    """Number of the event within the step, counted from 1."""
    name: str = field(default="", compare=False)
    """The file that is written, or the failpoint."""

    def __str__(self) -> str:
        return f"step {self.step}, event {self.number}{f' ({self.name})' if self.name else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault, and the first event at which it may come."""

    kind: FaultKind
    at: Moment

    def __str__(self) -> str:
        return f"{self.kind}@{self.at.step}.{self.at.number}"

    @classmethod
    def parse(cls, text: str) -> "PlannedFault":
        """The inverse of `str`."""
        kind, _, place = text.partition("@")
        step, _, number = place.partition(".")
        return cls(kind=cast("FaultKind", kind), at=Moment(int(step), int(number)))


@dataclass(slots=True, kw_only=True)
class EventCounter:
    """Counts the events of this process once it is armed, and brings the planned faults about."""

    step: int = 0
    number: int = 0
    record: int = -1
    """Descriptor of the events' file; -1: not armed."""
    plan: deque[PlannedFault] = field(default_factory=deque[PlannedFault])
    is_full: bool = False
    """Writes fail as on a full disk."""
    process: int = 0

    def arm(self, text: str) -> None:
        """Count from here on, as `CHAOS_VARIABLE` says; nothing for an empty text."""
        if not text:
            return
        path, *faults = text.split(";")
        self.record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.plan = deque(map(PlannedFault.parse, faults))
        self.process = os.getpid()

    def reach(self, step: int) -> None:
        """The run is at a step; its events are counted from 1."""
        if self.record >= 0 and step != self.step:
            self.step, self.number = step, 0

    def announce(self, name: str, *, writes: bool, tear: Callable[[], object] | None = None) -> None:
        """An event: nothing in most processes. `writes`: it would fail on a full disk; `tear` writes a part of what is
        to be written. Raises OSError where the disk is planned to be full."""
        if self.record < 0 or os.getpid() != self.process:
            return
        self.number += 1
        here = Moment(self.step, self.number, name)
        os.write(self.record, f"event {here.step} {here.number} {name}\n".encode())
        while self.plan and here >= self.plan[0].at and (writes or self.plan[0].kind != "disk"):
            replicas = _replicas() if self.plan[0].kind in _SIGNALS else []
            if self.plan[0].kind in _SIGNALS and not replicas:
                break  # it waits for one
            self._bring_about(self.plan.popleft(), here, tear, replicas)
        if writes and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _bring_about(
        self, fault: PlannedFault, here: Moment, tear: Callable[[], object] | None, replicas: Sequence[int]
    ) -> None:
        os.write(self.record, f"fault {fault.kind} {here.step} {here.number} {here.name}\n".encode())
        match fault.kind:
            case "kill":
                if tear is not None:
                    tear()
                os.kill(os.getpid(), signal.SIGKILL)
            case "disk":
                self.is_full = True
            case "replica" | "stall":
                os.kill(min(replicas), _SIGNALS[fault.kind])


EVENTS: Final = EventCounter()
"""The events of this process."""


def _replicas() -> list[int]:
    """Replicas of this process on this machine."""
    pids: list[int] = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_REPLICA):
                pids.append(pid)
    return pids


def read_events(path: Path) -> tuple[list[Moment], list[tuple[str, Moment]]]:
    """All events of a file, and the faults that came with their kinds."""
    moments: list[Moment] = []
    came: list[tuple[str, Moment]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        kind, *words = line.split(" ")
        if kind == "event":
            moments.append(_moment(words))
        else:
            came.append((words[0], _moment(words[1:])))
    return moments, came


def _moment(words: Iterable[str]) -> Moment:
    step, number, *name = words
    return Moment(int(step), int(number), " ".join(name))


# ------------------------------------------------------------------------------------------------------------- writes


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


def write_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write and fsync a file; without `sync` a power cut may lose it. Raises ResourceError."""
    with writing(path, len(data)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            if sync:
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


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace `path` by `data` atomically: a reader sees the old file or the new one; without `sync` a power cut may
    lose both. Raises ResourceError."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_file(temporary, data, sync=sync)
    failpoint(f"replace.{path.name}")
    with writing(path, len(data)):
        temporary.replace(path)
    if sync:
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
