"""The end of all processes that a child started, daemons included.

A descendant is found in `/proc` by any of four marks: its process group, its session, its parents, its environment.
A child is the subreaper of its descendants (`parent.py`): while it lives, even an orphan is found by its parents.
A daemon escapes only if it left the session *and* cleared its environment *and* the child ended before it was killed.
Without `/proc` (macOS) only the process group is killed.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "HONE_CHILD_PROCESS"
"""Environment variable that holds a child's token, which its descendants inherit."""
_PROC = Path("/proc")
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _Relation:
    parent: int
    group: int
    session: int


def kill_family(child: int, token: str) -> None:
    """Kill (SIGKILL) a child that has not been waited for, and its descendants, until none is found."""
    _send(signal.SIGSTOP, child)  # it starts nothing more while its descendants are listed
    for _ in range(_ROUNDS):
        members = list(_living_descendants(child, token))
        if not members:
            break
        for pid in members:
            _send(signal.SIGKILL, pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # a zombie keeps the number of its group, so this can hit no other
    _send(signal.SIGKILL, child)


def _send(number: signal.Signals, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _living_descendants(child: int, token: str) -> Iterator[int]:
    entries = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []
    known = {pid: relation for pid in entries if (relation := _relation(pid)) is not None}
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    for pid, relation in known.items():
        if pid not in (child, os.getpid()) and (
            child in (relation.group, relation.session) or _descends(pid, child, known) or mark in _environment(pid)
        ):
            yield pid


def _relation(pid: int) -> _Relation | None:
    """Parent, group and session of a living process; None for a zombie and for one that is gone."""
    try:
        state, *numbers = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else _Relation(*map(int, numbers))


def _descends(pid: int, ancestor: int, known: dict[int, _Relation]) -> bool:
    while pid in known and pid > 1:
        pid = known[pid].parent
        if pid == ancestor:
            return True
    return False


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""  # another user's, or gone
