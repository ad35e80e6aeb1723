"""A guard of processes that would outlive their starter: servers that a library starts, whose own ends take minutes or
leave folders behind.

A guard is a small process in a session of its own. It holds a folder, and an environment variable names the folder to
whatever is started inside `SessionGuard.marking`. When the starter ends, however it ends, or closes the guard, all
processes with that variable, or with an open file of the folder, are killed, and the folder is removed. The lock of a
folder is held by its guard, so that a later guard finds the folders of guards that were killed themselves, and removes
them. Without `/proc` (macOS) only the folder is removed.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "HONE_GUARDED_FOLDER"
"""Environment variable of guarded processes."""
_PROC = Path("/proc")
_LOCK = "guard.lock"
_TICK_S = 0.1
_ROUNDS = 200
_QUIET_ROUNDS = 3
"""Looks in a row without a process, after which none is left: one that was just forked may not be seen at once."""
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class SessionGuard:
    """The starter's end of a guard."""

    folder: Path
    """Folder of the guarded processes; it goes with them."""
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, prefix: str, *, base: Path) -> "SessionGuard":
        """Make a folder `prefix...` in `base`, and start its guard; folders of dead guards are removed. Raises OSError
        where nothing can be written there."""
        for stale in base.glob(f"{prefix}*"):
            with contextlib.suppress(OSError), (stale / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a guard that lives holds it
                _end_session(stale)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        (folder / _LOCK).touch()
        command = [sys.executable, "-I", __file__, str(folder), str(os.getpid())]
        variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=variables
        )
        assert process.stdout is not None
        process.stdout.readline()  # it holds the lock
        process.stdout.close()
        return cls(folder, process)

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """What is started inside is guarded, with all that it starts."""
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before

    def close(self) -> None:
        """Kill the guarded processes, remove the folder, and end the guard."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_S)


# ----------------------------------------------------------------------------------------------------------- the guard


def main(folder: Path, starter: int) -> None:
    """Wait for the starter's end, then kill and remove."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever sends them to all means the starter
    with (folder / _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(1, b"\n")
        os.close(1)
        # A child that the starter forked holds the pipe's other end as well: the starter's end is seen by its number.
        while os.getppid() == starter and not select.select([0], [], [], _TICK_S)[0]:
            pass
        _end_session(folder)


def _end_session(folder: Path) -> None:
    """Kill the processes that the folder marks until none is found, and remove it."""
    quiet = 0
    for _ in range(_ROUNDS):
        members = list(_members(folder))
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if members else quiet + 1
        if quiet == _QUIET_ROUNDS:
            break
        time.sleep(_TICK_S / 2)
    shutil.rmtree(folder, ignore_errors=True)


def _members(folder: Path) -> Iterator[int]:
    """Living processes of a folder, but for this one and its parent: those whose environment names it, or that hold a
    file in it open. A process that changes its title may overwrite its environment."""
    mark = f"{VARIABLE}={folder}".encode()
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdecimal() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        with contextlib.suppress(OSError):  # another user's, or gone
            is_named = mark in (entry / "environ").read_bytes().split(b"\0")
            if is_named or any(str(link.readlink()).startswith(f"{folder}/") for link in (entry / "fd").iterdir()):
                yield int(entry.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
