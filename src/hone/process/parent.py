"""Child side of the channel: `python -m module REQUEST_FD REPLY_FD LIFE_FD arguments...`, as `child.ChildProcess`
starts it."""

import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

READ_BYTES = 1 << 18
FORKED_EXIT = 70
"""Exit code of a forked copy that came back from user code, where only the original goes on."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ParentChannel:
    """The pipes to the parent. Standard output and standard error belong to the user's code."""

    request_fd: int
    reply_fd: int
    arguments: tuple[str, ...]
    pid: int
    """The process that may answer: a copy of it that user code forked, and that came back from there, may not."""

    def chunks(self) -> Iterator[bytes]:
        """Bytes of requests as they come, until the parent closes its end."""
        while data := os.read(self.request_fd, READ_BYTES):
            yield data

    def lines(self) -> Iterator[bytes]:
        """Requests of one line each, until the parent closes its end."""
        with os.fdopen(self.request_fd, "rb", closefd=False) as requests:
            yield from requests

    def reply(self, data: bytes) -> None:
        """Write an answer in full. Ends a forked copy of the process, whose answer would be taken for another one's."""
        if os.getpid() != self.pid:
            os.write(2, b"a forked copy of the process came back from the user's code; it was ended\n")
            os._exit(FORKED_EXIT)
        left = memoryview(data)
        while left:
            left = left[os.write(self.reply_fd, left) :]


def connect_to_parent() -> ParentChannel:
    """The channel named on the command line. From here on the process group dies with the parent, however that ends,
    orphans of descendants become children of this process, and nothing dumps core."""
    request_fd, reply_fd, life_fd = (int(argument) for argument in sys.argv[1:4])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The kernel sends SIGKILL to the group when the other end is closed, even if user code holds the interpreter.
        fcntl.fcntl(life_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life_fd], [], [], 0)[0]:
        os._exit(1)  # the parent was gone before the lines above
    for fd in (request_fd, reply_fd, life_fd):
        os.set_inheritable(fd, False)  # programs that user code starts must not hold the channel open
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return ParentChannel(request_fd, reply_fd, tuple(sys.argv[4:]), os.getpid())
