"""Processes that start at once: forks of a process that has loaded what they import.

A new interpreter takes 0.4 processor seconds until it has numpy and gymnasium, and tests start hundreds. A fork is what
`process.child` starts: a child of this process in a session of its own, with the environment, paths, descriptors and
folder that were asked for, and random numbers of its own. `/proc/PID/environ` is that of the process that forks.
"""

import array
import contextlib
import importlib
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_commands import StartedCommand, children_of_forks

MODULES = (
    "hone.control.environments.worker",
    "hone.rewards.worker",
    "hone.text.dialogues.zygote",
)
"""Programs that are forked, each by a process that has loaded it and nothing else."""
_FREE = 512
"""Descriptors from here on are free for a moment."""
_MOST_BYTES, _MOST_FDS = 1 << 20, 64


class WarmSubprocess:
    """What `hone.process.child` uses of the module `subprocess`, with forks for `MODULES`."""

    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[tuple[int, str], socket.socket] = {}
        """By this process, whose forks have servers of their own, and module."""

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        """As `subprocess.Popen`."""
        module = command[command.index("-m") + 1] if "-m" in command else ""
        if module not in MODULES:
            return subprocess.Popen(command, **options)
        words = list(command[command.index("-m") + 1 :])
        return self._fork(words, log=options["stdout"], kept=options["pass_fds"], environment=options["env"])

    def close(self) -> None:
        """End the processes that fork."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _fork(
        self, words: Sequence[str], *, log: int, kept: Sequence[int], environment: Mapping[str, str]
    ) -> StartedCommand:
        request = {
            "words": words, "kept": list(kept), "environment": dict(environment), "folder": str(Path.cwd()),
            "parent": os.getpid(),
        }  # fmt: skip
        with self._lock, children_of_forks():
            key = os.getpid(), words[0]
            if key not in self._sockets:
                self._sockets[key] = _start_server(words[0])
            server = self._sockets[key]
            descriptors = array.array("i", [log, *kept])
            sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            server.sendmsg([json.dumps(request).encode()], sent)
            return StartedCommand(int(server.recv(64)))


def _start_server(module: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
        subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", __file__, str(theirs.fileno()), module],
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, env=environment,
        ).returncode = 0  # it ends with this process; nobody waits for it  # fmt: skip
    return ours


# ------------------------------------------------------------------------------------------ the process that forks


def serve(connection: socket.socket, module: str) -> None:
    """Load the module, and fork once for each request, until the tests' process has ended."""
    importlib.import_module(module)
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    paths = [path for path in sys.path if path not in own]
    space = socket.CMSG_LEN(_MOST_FDS * array.array("i").itemsize)
    while True:
        data, ancillary, _, _ = connection.recvmsg(_MOST_BYTES, space)
        if not data:
            return
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        read, write = os.pipe()
        if (first := os.fork()) == 0:
            if (pid := os.fork()) != 0:  # the second fork is a child of the tests' process once the first has ended
                os.write(write, str(pid).encode())
                os._exit(0)
            _become(json.loads(data), list(descriptors), paths)
        os.waitpid(first, 0)
        connection.send(os.read(read, 64))
        for descriptor in (read, write, *descriptors):
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: Sequence[int], paths: Sequence[str]) -> None:
    """A new interpreter's session, descriptors, environment and paths; then its program."""
    code: object = 1
    try:
        os.setsid()
        while os.getppid() != request["parent"]:
            time.sleep(0.0005)
        numbers = [1, 2, *request["kept"]]
        copies = [descriptors[0], descriptors[0], *descriptors[1:]]
        copies = [os.dup2(one, _FREE + place) for place, one in enumerate(copies)]
        os.closerange(3, _FREE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for one, number in zip(copies, numbers, strict=True):
            os.dup2(one, number)
        os.closerange(_FREE, _FREE + len(copies))
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = [*request["environment"]["PYTHONPATH"].split(os.pathsep), *paths]
        sys.argv = list(request["words"])
        sys.modules.pop(sys.argv[0], None)
        random.seed()
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - what an interpreter prints at its end
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
