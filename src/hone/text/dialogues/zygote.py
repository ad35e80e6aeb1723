"""The process that the worlds of a run are forked from: `python -m hone.text.dialogues.zygote`.

It imports the user's code once and forks a process for each dialogue; so a world may do what it likes to its process,
and a kill costs one dialogue. It runs no user code itself after the import, passes requests and answers on without
reading them, and never waits for a world.

A request is a line `NUMBER VERB JSON`, an answer `NUMBER JSON`. Verbs: `begin`, `first` (an answer without a
beginning), `answer`, `close`, `kill`, `rows`.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import random
import resource
import selectors
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np

from hone.core.dialogue import PolicyTurn, ToolCall
from hone.core.errors import UserCodeError
from hone.process.child import kill_family
from hone.process.confine import confine
from hone.process.parent import FORKED_EXIT, READ_BYTES, ParentChannel, connect_to_parent
from hone.process.user_files import describe_error, user_traceback
from hone.process.wire import decode, pack
from hone.text.dialogues.hosted import (
    HostedDialogue,
    Json,
    LoadedWorld,
    WorldContractError,
    WorldSpec,
    checked,
    load_world,
)

# ----------------------------------------------------------------------------------------------------- dialogue process


def _serve_dialogue(world: LoadedWorld, request_fd: int, answer_fd: int) -> None:
    """Serve one dialogue until it is closed; then the process ends."""
    dialogue, pid = HostedDialogue(world.new), os.getpid()
    with asyncio.Runner() as runner, os.fdopen(request_fd, "rb") as requests:
        for line in requests:
            verb, _, body = line.partition(b" ")
            request = cast("Json", decode(body))
            if verb == b"rows":
                reply = _attempt(lambda request=request: {"rows": pack(world.rows(request["size"], request["seed"]))})
            elif verb == b"begin":
                random.seed(request["seed"])  # forked processes would all draw the same
                np.random.seed(request["seed"] % 2**32)  # noqa: NPY002 - worlds of the user's use it
                reply = _attempt(
                    lambda request=request: _awaited(
                        dialogue.begin(request["columns"], request["seed"]), "begin", runner
                    )
                )
            elif verb in (b"answer", b"first"):
                calls = tuple(ToolCall(**call) for call in request["calls"])
                turn = PolicyTurn(**{**request, "calls": calls})
                reply = _attempt(lambda turn=turn: _awaited(dialogue.answer(turn), "answer", runner))
            else:
                dialogue.close()
                break
            if os.getpid() != pid:  # the world forked, and its copy came back too
                os._exit(FORKED_EXIT)
            _write(answer_fd, json.dumps(reply).encode() + b"\n")
    os._exit(0)


def _attempt(call: Callable[[], Json]) -> Json:
    """What a call returned, or what it raised, as an answer."""
    try:
        return call()
    except WorldContractError as error:
        return {"error": str(error), "traceback": ""}
    except BaseException as error:  # noqa: BLE001 - sys.exit in a world is an answer, too
        return {"error": describe_error(error), "traceback": user_traceback(error)}


def _awaited(turn: Json | Awaitable[object], method: str, runner: asyncio.Runner) -> Json:
    if isinstance(turn, dict):
        return {"turn": turn}

    async def wait() -> object:
        return await cast("Awaitable[Any]", turn)

    return {"turn": checked(runner.run(wait()), method)}


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


# --------------------------------------------------------------------------------------------------------------- zygote

MAX_ANSWER_BYTES: Final = 1 << 26
"""Longest line of a world's process. A world's own messages are cut long before; this is one that writes into its
channel itself."""
_CLOSE_GRACE_S: Final = 2.0
_TICK_S: Final = 0.25
_PR_SET_PDEATHSIG: Final = 1
_NO_TOKEN: Final = "no process has this mark"


@dataclass(slots=True, eq=False)
class _Dialogue:
    """The process of one dialogue, seen from the zygote."""

    number: bytes
    pid: int
    request_fd: int
    answer_fd: int
    out: bytearray = field(default_factory=bytearray)
    answer: bytearray = field(default_factory=bytearray)
    closing_s: float | None = None
    """Time after which it is killed; None before it was asked to close."""


class _WorldZygote:
    """Forks dialogues, and passes lines between them and the trainer."""

    def __init__(self, channel: ParentChannel, world: LoadedWorld, memory_bytes: int | None) -> None:
        self._channel, self._world, self._memory_bytes = channel, world, memory_bytes
        self._dialogues: dict[bytes, _Dialogue] = {}
        self._selector = selectors.DefaultSelector()
        self._requests = bytearray()
        self._open = True

    def run(self, first: bytes) -> None:
        """Serve until the trainer closes its end. `first` was read already."""
        os.set_blocking(self._channel.request_fd, False)
        self._selector.register(self._channel.request_fd, selectors.EVENT_READ, None)
        self._take(first)
        while self._open:
            for key, events in self._selector.select(_TICK_S):
                dialogue = cast("_Dialogue | None", key.data)
                if dialogue is None:
                    data = os.read(self._channel.request_fd, READ_BYTES)
                    self._open = bool(data)
                    self._take(data)
                elif self._dialogues.get(dialogue.number) is dialogue:
                    self._serve(dialogue, key.fd, events)
            self._kill_overdue()
        for dialogue in list(self._dialogues.values()):
            self._bury(dialogue)

    def _take(self, data: bytes) -> None:
        self._requests += data
        *lines, rest = bytes(self._requests).split(b"\n")
        self._requests = bytearray(rest)
        for line in lines:
            number, verb, body = line.split(b" ", 2)
            dialogue = self._dialogues.get(number)
            if verb in (b"begin", b"first", b"rows") and dialogue is None:
                request_read, request_fd = os.pipe()
                answer_fd, answer_write = os.pipe()
                zygote, pid = os.getpid(), os.fork()
                if pid == 0:
                    self._become_dialogue(zygote, request_read, answer_write)
                os.close(request_read)
                os.close(answer_write)
                os.set_blocking(request_fd, False)
                os.set_blocking(answer_fd, False)
                dialogue = _Dialogue(number, pid, request_fd, answer_fd)
                self._dialogues[number] = dialogue
                self._selector.register(answer_fd, selectors.EVENT_READ, dialogue)
            if dialogue is None:
                continue  # it died, which was told
            if verb == b"kill":
                self._bury(dialogue)
                continue
            if verb == b"close":
                dialogue.closing_s = time.monotonic() + _CLOSE_GRACE_S
            dialogue.out += verb + b" " + body + b"\n"
            self._write(dialogue)

    def _become_dialogue(self, zygote: int, request_fd: int, answer_fd: int) -> None:
        """Go on as the process of a dialogue; does not return."""
        try:
            os.setsid()
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != zygote:
                    os._exit(1)
            # Ends of others' pipes would keep these open, and the trainer's channel is not for user code.
            for dialogue in self._dialogues.values():
                os.close(dialogue.request_fd)
                os.close(dialogue.answer_fd)
            self._selector.close()
            os.close(self._channel.request_fd)
            os.close(self._channel.reply_fd)
            if self._memory_bytes is not None:
                resource.setrlimit(resource.RLIMIT_AS, (self._memory_bytes, self._memory_bytes))
            _serve_dialogue(self._world, request_fd, answer_fd)
        finally:
            os._exit(1)

    def _serve(self, dialogue: _Dialogue, fd: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write(dialogue)
        if fd == dialogue.answer_fd:
            data = os.read(fd, READ_BYTES)
            if not data:
                closing = dialogue.closing_s is not None
                code = self._bury(dialogue)
                if not closing:
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
                    self._tell(dialogue, f"its process {how}")
                return
            *lines, rest = bytes(dialogue.answer + data).split(b"\n")
            dialogue.answer = bytearray(rest)
            for line in lines:
                self._channel.reply(dialogue.number + b" " + line + b"\n")
            if len(rest) > MAX_ANSWER_BYTES:
                self._tell(dialogue, f"its process sent more than {MAX_ANSWER_BYTES} bytes, and was killed")
                self._bury(dialogue)

    def _write(self, dialogue: _Dialogue) -> None:
        """Write as much as the process takes; the rest when it takes more."""
        waiting = dialogue.request_fd in self._selector.get_map()
        try:
            del dialogue.out[: os.write(dialogue.request_fd, dialogue.out)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            dialogue.out.clear()
        if dialogue.out and not waiting:
            self._selector.register(dialogue.request_fd, selectors.EVENT_WRITE, dialogue)
        elif waiting and not dialogue.out:
            self._selector.unregister(dialogue.request_fd)

    def _tell(self, dialogue: _Dialogue, died: str) -> None:
        self._channel.reply(dialogue.number + b" " + json.dumps({"died": died}).encode() + b"\n")

    def _bury(self, dialogue: _Dialogue) -> int:
        """End the process and all that it started, and forget it; its exit code, negative for a signal."""
        del self._dialogues[dialogue.number]
        self._selector.unregister(dialogue.answer_fd)
        if dialogue.request_fd in self._selector.get_map():
            self._selector.unregister(dialogue.request_fd)
        os.close(dialogue.answer_fd)
        os.close(dialogue.request_fd)
        if os.waitid(os.P_PID, dialogue.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            kill_family(dialogue.pid, _NO_TOKEN)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(dialogue.pid, signal.SIGKILL)  # what it left behind; a zombie keeps the number of its group
        return os.waitstatus_to_exitcode(os.waitpid(dialogue.pid, 0)[1])

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for dialogue in list(self._dialogues.values()):
            if dialogue.closing_s is not None and dialogue.closing_s < now:
                self._bury(dialogue)


def main() -> None:
    """Entry point: import the world, tell what it is, and serve."""
    channel = connect_to_parent()
    data = b""
    while b"\n" not in data:
        piece = os.read(channel.request_fd, READ_BYTES)
        if not piece:
            return
        data += piece
    line, _, rest = data.partition(b"\n")
    hello = cast("dict[str, Any]", decode(line))
    confinement = confine(os.getppid()) if hello["confined"] else None
    try:
        world = load_world(WorldSpec.from_json(hello["world"]))
    except UserCodeError as error:
        _reply(channel, {"refused": list(error.messages)})
        return
    gaps: list[str] = []
    if confinement is not None:
        gaps = [*confinement.gaps, *(confinement.protect(hello["read_only"]) if hello["read_only"] else [])]
    _reply(channel, {"ready": world.describe().to_json(), "gaps": gaps})
    _WorldZygote(channel, world, hello["memory_bytes"]).run(rest)


def _reply(channel: ParentChannel, message: Mapping[str, object]) -> None:
    channel.reply(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
