"""Lock of a run: one writer; a second one gets an error that names the first.

Belongs here: flock on the file `lock`, which also names its holder. The kernel releases the lock when the holder dies,
so that there are no stale locks to remove by hand.
"""

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError, ResourceError
from hone.run.store.durable import read_json_object, to_json, write_all, writing


@dataclass(slots=True)
class RunLock:
    """Acquired lock."""

    path: Path
    descriptor: int | None

    @classmethod
    def acquire(cls, path: Path, run: str) -> "RunLock":
        """Acquire the lock without changing the file. Raises ResourceError naming pid, host and time of the holder."""
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
        # A forked worker that outlives a killed trainer would keep the lock: it closes its handle at once.
        os.register_at_fork(after_in_child=lock.close)
        return lock

    def write_holder(self, since: str) -> None:
        """Write the holder to the file. Raises ResourceError."""
        if self.descriptor is None:
            raise ValueError("the lock was released")
        data = to_json({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with writing(self.path, len(data)):
            os.ftruncate(self.descriptor, 0)
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            write_all(self.descriptor, data)

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close this process's handle; other processes with the file open keep the lock."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _holder(path: Path) -> str:
    try:
        holder = read_json_object(path)
    except DataError:  # acquired just now, the holder is not written yet
        return "another process"
    return f"pid {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
