"""Limits of a program in the sandbox."""

from typing import Literal

from pydantic import Field

from hone.core.config import Config

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
