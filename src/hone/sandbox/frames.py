"""Requests to the sandbox: a length of four bytes, then so many bytes of JSON; the limits of a program; work folders.

A reader takes exactly one request from the pipe, so that the next one is never in its memory.
"""

import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field

from hone.core.config import Config

_LENGTH = struct.Struct("!I")
MAX_REQUEST_BYTES = 1 << 26


def frame(data: bytes) -> bytes:
    """A request as it is sent. Raises ValueError for one of more than 64 MiB."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than the {MAX_REQUEST_BYTES} of a request")
    return _LENGTH.pack(len(data)) + data


def read_frame(descriptor: int) -> bytes | None:
    """The next request; None at the end of the channel."""
    head = _read(descriptor, _LENGTH.size)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0])


def _read(descriptor: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# -------------------------------------------------------------------------------------------------------------- folders


_PREFIX = "hone-sandbox"


def new_folder() -> str:
    """Make a folder among the temporary ones, named after this process."""
    return tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-")


def delete_folder(folder: str) -> None:
    """Delete a folder with all in it, also where a program closed it to itself."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


def remove_folders(process: int) -> None:
    """Delete what a process left that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{process}-*"):
        delete_folder(str(folder))


# --------------------------------------------------------------------------------------------------------------- policy


UNSAFE_WORDS = "code written by a model may do everything on this machine that I can do"
"""The consent without which nothing runs where no safe rung exists."""
RungName = Literal["best", "namespaces", "landlock"]


class SandboxPolicy(Config):
    """Limits of one call. A program never has a network, other processes, or files but these and Python's own."""

    cpu_s: float = Field(default=5.0, gt=0, le=3600)
    """Seconds of processor time, all threads together."""
    wall_s: float = Field(default=10.0, gt=0, le=3600)
    """Seconds of wall time."""
    memory_bytes: int = Field(default=2**29, ge=2**27)
    """Address space of each process."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes at a time. With 1 a program may use threads, and starts no other program."""
    file_bytes: int = Field(default=2**24, ge=2**12)
    """Size of the work folder, the only place where it can write; it is empty at first, and deleted after the call."""
    output_bytes: int = Field(default=2**20, ge=2**10)
    """Bytes of standard output and standard error together, and of the result."""
    readable: list[str] = []
    """Files and folders that it may read, besides Python's libraries."""
    rung: RungName = "best"
    """Means of confinement: the strongest that this machine has, or the named one or nothing."""
    if_no_rung: Literal["refuse", "code written by a model may do everything on this machine that I can do"] = "refuse"
    """What happens on a machine that cannot confine programs: nothing is run, or programs run as you."""
