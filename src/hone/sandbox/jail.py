"""Confinement of one program, by itself and for good: limits, user, files, system calls."""

import functools
import os
import resource
import signal
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.process import landlock
from hone.process.linux import CAP_DAC_READ_SEARCH, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl, set_capabilities
from hone.process.seccomp import install_filter
from hone.sandbox.system_calls import allowed_calls

DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_SYSTEM_PATHS = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/random",
)
_OPEN_FILES = 64
_THREADS = 64
_PR_SET_KEEPCAPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """Limits of a program as the sandbox's own processes take them."""

    cpu_s: float
    wall_s: float
    memory_bytes: int
    processes: int
    file_bytes: int
    output_bytes: int
    readable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramUser:
    """User of programs, and how its processes are counted."""

    number: int | None
    """A user that nobody else is; None: the caller's own."""
    counted: bool
    """Only processes of this sandbox count towards the limit of processes."""
    others: int = 0
    """Processes of the sandbox itself among them."""
    reads_all: bool = False
    """It may pass folders that are closed to others: Landlock alone decides what it reads."""


@functools.cache
def library_paths() -> tuple[str, ...]:
    """Folders of Python's and the system's libraries."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = (sysconfig.get_path(name) for name in names)
    return tuple(dict.fromkeys([*own, *_SYSTEM_PATHS]))


def open_to_all(paths: Sequence[str]) -> bool:
    """True if every user may pass the folders that lead to these paths."""
    folders = {folder for path in paths for folder in Path(path).resolve().parents}
    return all(folder.stat().st_mode & 0o001 for folder in folders if folder.exists())


def set_limits(limits: ProgramLimits, user: ProgramUser) -> None:
    """Set the limits of resources that the kernel counts for each process."""
    seconds = int(limits.cpu_s) + 2  # the supervisor counts closer; this holds if it cannot
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if user.counted:
        wanted[resource.RLIMIT_NPROC] = user.others + (_THREADS if limits.processes == 1 else limits.processes)
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))


def signals_allowed(version: int) -> int | None:
    """The only process that may be signalled: the caller; None where Landlock of this version keeps signals inside."""
    return None if version >= landlock.SIGNALS_ABI else os.getpid()


def prepare_filter(limits: ProgramLimits) -> None:
    """Assemble the filter before programs are forked. Raises OSError for an unknown processor."""
    allowed_calls(programs=limits.processes > 1, signals_to=signals_allowed(landlock.abi()))


def confine_program(limits: ProgramLimits, user: ProgramUser, folder: str, read: Sequence[str]) -> None:
    """Confine this process to files below `read` and `folder`; it can neither leave nor raise a limit.

    Raises OSError: it is not confined.
    """
    set_limits(limits, user)
    if user.number is not None:
        prctl(_PR_SET_KEEPCAPS, int(user.reads_all))
        os.setgroups([])
        os.setresgid(user.number, user.number, user.number)
        os.setresuid(user.number, user.number, user.number)
    set_capabilities(1 << CAP_DAC_READ_SEARCH if user.reads_all else 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no program outlives its supervisor; a change of the user clears it
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    version, programs = landlock.abi(), limits.processes > 1
    if version:
        landlock.restrict_files(read=read, write=(*([folder] if folder else []), *DEVICES), programs=programs)
    install_filter(allowed_calls(programs=programs, signals_to=signals_allowed(version)))
