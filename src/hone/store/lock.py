"""The lock of a run: one writer, and a second one is told who the first is.

Belongs here: flock on the file `lock`, which also names its holder. The kernel gives the lock back when the holder
dies, however it dies, so that there are no stale locks to remove by hand.
"""

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError, ResourceError
from hone.store.durable import read_json_object, to_json, write_all, writing


@dataclass(slots=True)
class RunLock:
    """A held lock."""

    path: Path
    descriptor: int | None

    @classmethod
    def acquire(cls, path: Path, run: str) -> "RunLock":
        """Take the lock, changing nothing in the file. Raises ResourceError naming pid, host and time of the holder."""
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise ResourceError(f"cannot lock {path}: {error.strerror}; is it on a disk without locks?") from error
            raise ResourceError(f"run {run} is in use by {_holder(path)}; wait for it, or give a new --name") from error
        lock = cls(path, descriptor)
        # A forked worker that outlives a killed trainer would hold on to the run: it lets go as soon as it is born.
        os.register_at_fork(after_in_child=lock.close)
        return lock

    def write_holder(self, since: str) -> None:
        """Say in the file who holds the lock. Raises ResourceError."""
        if self.descriptor is None:
            raise ValueError("the lock was given back")
        data = to_json({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with writing(self.path, len(data)):
            os.ftruncate(self.descriptor, 0)
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            write_all(self.descriptor, data)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close this process's handle; the lock stays with whoever else has it open."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _holder(path: Path) -> str:
    try:
        holder = read_json_object(path)
    except DataError:  # it has just been taken, and not signed yet
        return "another process"
    return f"pid {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
