"""Hosts of worlds: one zygote, from which a process is forked for each dialogue; or threads, for worlds of hone's own.

A thread talks to the zygote. A world that hangs, dies or floods its channel costs its own dialogue; if the zygote
itself is lost, the dialogues that are open are, and the next one starts another.
"""

import asyncio
import contextlib
import itertools
import os
import select
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from hone.core.clock import Clock, SystemClock
from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.episodes import ScoreStatus
from hone.core.errors import HoneError, ResourceError, UserCodeError
from hone.process.child import ChildLostError, ChildProcess, LineParser
from hone.process.user_files import describe_error, user_traceback
from hone.process.wire import decode, encode, unpack
from hone.rewards.config import UserCodeConfig
from hone.text.dialogues.hosted import (
    HostedDialogue,
    Json,
    LoadedWorld,
    WorldContractError,
    WorldDescription,
    WorldFaultError,
    WorldSpec,
    checked,
    load_world,
    turn_from_json,
)

_WAIT_S: Final = 0.5
"""Longest sleep of the thread when no deadline is near."""


@dataclass(slots=True)
class _Pending:
    """An answer that is awaited."""

    future: "Future[Any]"
    limit_s: float
    deadline_s: float
    verb: str


class ProcessHost:
    """Implements `WorldHost` for user code. Starts with `describe`, or with the first dialogue."""

    def __init__(self, spec: WorldSpec, limits: UserCodeConfig, *, clock: Clock | None = None) -> None:
        self._spec, self._limits, self._clock = spec, limits, clock or SystemClock()
        self._description = WorldDescription()
        self.warnings: list[str] = []
        """Limits that the system cannot hold."""
        self._child: ChildProcess[bytes] | None = None
        self._refusal: UserCodeError | None = None
        self._pending: dict[int, _Pending] = {}
        self._living: set[int] = set()
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._late, self._closing = 0, False
        self._read_only: list[str] = []
        self._wake_fd = self._woken_fd = -1
        self._numbers = itertools.count()

    def describe(self) -> WorldDescription:
        """Import the world in its process, and tell what it is like. Raises UserCodeError with the user's part of the
        traceback, the same at every call, and ResourceError."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._child is None:
                try:
                    self._start()
                except UserCodeError as refusal:
                    self._refusal = refusal
                    raise
        return self._description

    def write_protect(self, folder: Path) -> None:
        """Keep worlds from writing into a folder; call it before the first dialogue."""
        with self._lock:
            self._read_only = [str(folder.absolute())]
        self._stop()

    def rows(self, size: int, seed: int) -> list[dict[str, object]] | None:
        """The rows that the world brings, or None. Raises UserCodeError."""
        number = self.number()
        future = self._ask(number, "rows", {"size": size, "seed": seed}, self._limits.start_deadline_s)
        try:
            return cast("list[dict[str, object]] | None", future.result())
        except WorldFaultError as fault:
            raise UserCodeError(f"{self._spec.name}: {fault.reason}", *filter(None, [fault.traceback])) from None
        finally:
            self.end(number)

    def number(self) -> int:
        return next(self._numbers)

    def begin(self, dialogue: int, columns: Mapping[str, object], seed: int) -> "Future[WorldTurn]":
        return self._ask(dialogue, "begin", {"columns": columns, "seed": seed}, self._limits.deadline_s)

    def answer(self, dialogue: int, said: PolicyTurn) -> "Future[WorldTurn]":
        first = not self._description.begins and dialogue not in self._living
        return self._ask(dialogue, "first" if first else "answer", asdict(said), self._limits.deadline_s)

    def end(self, dialogue: int) -> None:
        with self._lock:
            if dialogue in self._living:
                self._living.discard(dialogue)
                self._lines.append(b"%d close {}\n" % dialogue)
                self._wake()

    def late_answers(self) -> int:
        with self._lock:
            late, self._late = self._late, 0
        return late

    def close(self) -> None:
        self._closing = True
        self._stop()

    def _stop(self) -> None:
        """End the zygote and the thread; the next dialogue starts others."""
        with self._lock:
            thread, self._thread = self._thread, None
            child, self._child = self._child, None
            self._wake()
        if thread is not None:
            thread.join()
        if child is not None:
            child.kill()
        for pending in self._take_pending():
            _fail(pending.future, WorldFaultError("its process was ended"))
        for fd in (self._wake_fd, self._woken_fd):
            if fd >= 0:
                os.close(fd)
        self._wake_fd = self._woken_fd = -1

    def _take_pending(self) -> list[_Pending]:
        with self._lock:
            taken, self._pending = list(self._pending.values()), {}
            self._living.clear()
        return taken

    # -------------------------------------------------------------------------------------------- asking

    def _ask(self, number: int, verb: str, request: Mapping[str, object], deadline_s: float) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            line = b"%d %s " % (number, verb.encode()) + encode(request)
        except TypeError as error:
            future.set_exception(WorldFaultError(str(error)))
            return future
        with self._lock:
            if self._closing:
                future.set_exception(WorldFaultError("its process was ended"))
                return future
            if self._child is None:
                try:
                    self._start()
                except HoneError as error:
                    future.set_exception(error)
                    return future
            if verb == "answer" and number not in self._living:
                future.set_exception(WorldFaultError("its process is gone"))
                return future
            self._living.add(number)
            limit_s = self._clock.monotonic_s() + deadline_s
            self._pending[number] = _Pending(future, limit_s, deadline_s, verb)
            self._lines.append(line)
            self._wake()
        return future

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.write(self._wake_fd, b".")

    def _start(self) -> None:
        """Start the zygote and the thread; the caller holds the lock. Raises UserCodeError, ResourceError."""
        limits = self._limits
        child = ChildProcess("hone.text.dialogues.zygote", LineParser(), clock=self._clock)
        child.start()
        hello = {
            "world": self._spec.to_json(),
            "confined": limits.confined,
            "read_only": self._read_only,
            "memory_bytes": limits.memory_bytes,
        }
        child.send(encode(hello))
        try:
            reply = cast("Json", decode(child.receive(limits.start_deadline_s)))
        except ChildLostError as lost:
            child.kill()
            slow = f"took longer than user_code.start_deadline_s = {limits.start_deadline_s:g} s"
            raise ResourceError(f"importing {self._spec.name}: {slow if lost.timeout else lost}") from None
        if "refused" in reply:
            child.kill()
            raise UserCodeError(*reply["refused"])
        self._child = child
        self._description = WorldDescription.from_json(reply["ready"])
        self.warnings = [
            f"worlds are not fully confined: {gap}; user_code.confined = false silences this" for gap in reply["gaps"]
        ]
        if self._wake_fd < 0:
            self._woken_fd, self._wake_fd = os.pipe()
            os.set_blocking(self._woken_fd, False)
        self._thread = threading.Thread(target=self._run, args=[self._child], name="worlds", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------------- the thread

    def _run(self, child: ChildProcess[bytes]) -> None:
        try:
            self._serve(child)
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it, and all answers would be awaited
            self._lost(child, f"the process of all worlds cannot be understood: {describe_error(error)}")

    def _serve(self, child: ChildProcess[bytes]) -> None:
        while self._child is child:
            ready = self._sleep(child)
            with self._lock:
                lines, self._lines = self._lines, []
            if lines:
                child.send(b"".join(lines))
            child.pump(ready)
            while (reply := child.take_reply()) is not None:
                if isinstance(reply, ChildLostError):
                    self._lost(child, f"the process of all worlds ended: {reply}")
                    return
                self._settle(reply)
            now = self._clock.monotonic_s()
            with self._lock:
                late = {number: one for number, one in self._pending.items() if one.limit_s <= now}
                for number in late:
                    del self._pending[number]
                    self._living.discard(number)
                    self._lines.append(b"%d kill {}\n" % number)
                if late:
                    self._wake()
            for one in late.values():
                reason = f"{one.verb} gave no answer within {one.deadline_s:g} s, and its process was killed"
                _fail(one.future, WorldFaultError(reason, status=ScoreStatus.TIMEOUT))

    def _sleep(self, child: ChildProcess[bytes]) -> set[int]:
        """Wait for something to read or to send, or for a deadline; the descriptors that are ready."""
        with self._lock:
            nearest = min((one.limit_s for one in self._pending.values()), default=float("inf"))
        poll = select.poll()
        child.register_with(poll)
        poll.register(self._woken_fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(1000 * max(0.0, min(_WAIT_S, nearest - self._clock.monotonic_s())))}
        if self._woken_fd in ready:
            os.read(self._woken_fd, 1 << 16)
        return ready

    def _settle(self, reply: bytes) -> None:
        head, _, body = reply.partition(b" ")
        with self._lock:
            pending = self._pending.pop(int(head), None)
        message = _message(body)
        if "died" in message:
            self._living.discard(int(head))
        if pending is None:
            self._late += "turn" in message
            return
        try:
            result = _result(message)
        except WorldFaultError as fault:
            _fail(pending.future, fault)
        else:
            pending.future.set_result(result)

    def _lost(self, child: ChildProcess[bytes], reason: str) -> None:
        with self._lock:
            self._child = self._thread = None
            self._lines = []
        child.kill()
        for pending in self._take_pending():
            _fail(pending.future, WorldFaultError(reason))


def _message(body: bytes) -> Json:
    """A line of a dialogue's process; its world may have written it."""
    try:
        message = decode(body)
    except (ValueError, TypeError, KeyError, RecursionError):
        message = None
    if not isinstance(message, dict):
        return {"error": f"its process sent an answer that is none: {body[:80]!r}"}
    return cast("Json", message)


def _result(message: Json) -> object:
    """What a dialogue's process answered. Raises WorldFaultError."""
    if "rows" in message:
        return unpack(message["rows"])
    if "turn" in message:
        try:
            return turn_from_json(message["turn"])
        except WorldContractError as error:
            raise WorldFaultError(str(error)) from None
    raise WorldFaultError(str(message.get("error") or message.get("died")), traceback=str(message.get("traceback", "")))


def _fail(future: "Future[Any]", error: Exception) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        return  # it was answered meanwhile


# ---------------------------------------------------------------------------------------------------------- thread host

_THREADS: Final = 256
"""Worlds that answer at the same time; threads start as they are needed."""


class ThreadHost:
    """Implements `WorldHost`: plain methods run in a pool of threads, coroutines in one event loop. A thread cannot be
    killed: an answer after its deadline is ignored, and counted."""

    def __init__(self, spec: WorldSpec, limits: UserCodeConfig) -> None:
        self._spec, self._limits = spec, limits
        self.warnings: list[str] = []
        self._world: LoadedWorld | None = None
        self._dialogues: dict[int, HostedDialogue] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._late, self._numbers = 0, itertools.count()

    def describe(self) -> WorldDescription:
        """Import the world, and tell what it is like. Raises UserCodeError."""
        return self._loaded().describe()

    def write_protect(self, folder: Path) -> None:
        """Nothing: the code is hone's own."""
        del folder

    def rows(self, size: int, seed: int) -> list[dict[str, object]] | None:
        """The rows that the world brings, or None. Raises UserCodeError."""
        return self._loaded().rows(size, seed)

    def number(self) -> int:
        return next(self._numbers)

    def begin(self, dialogue: int, columns: Mapping[str, object], seed: int) -> "Future[WorldTurn]":
        hosted = HostedDialogue(self._loaded().new)
        self._dialogues[dialogue] = hosted
        return self._call(lambda: hosted.begin(dict(columns), seed), "begin")

    def answer(self, dialogue: int, said: PolicyTurn) -> "Future[WorldTurn]":
        hosted = self._dialogues.setdefault(dialogue, HostedDialogue(self._loaded().new))
        return self._call(lambda: hosted.answer(said), "answer")

    def end(self, dialogue: int) -> None:
        hosted = self._dialogues.pop(dialogue, None)
        if hosted is not None and self._pool is not None:
            with contextlib.suppress(RuntimeError):  # the pool ended
                self._pool.submit(hosted.close)

    def late_answers(self) -> int:
        late, self._late = self._late, 0
        return late

    def close(self) -> None:
        loop, self._loop = self._loop, None
        pool, self._pool = self._pool, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _loaded(self) -> LoadedWorld:
        if self._world is None:
            self._world = load_world(self._spec)
        return self._world

    def _call(self, method: Callable[[], Json | Awaitable[object]], name: str) -> "Future[WorldTurn]":
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="world")
            self._thread = threading.Thread(target=self._loop.run_forever, name="worlds", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._turn(method, name), self._loop)

    async def _turn(self, method: Callable[[], Json | Awaitable[object]], name: str) -> WorldTurn:
        """The world's turn. Raises WorldFaultError."""
        given_up = threading.Event()

        def call() -> Json | Awaitable[object]:
            result = method()
            self._late += given_up.is_set()
            return result

        try:
            async with asyncio.timeout(self._limits.deadline_s):
                result = await asyncio.get_running_loop().run_in_executor(self._pool, call)
                turn = result if isinstance(result, dict) else checked(await result, name)
                return turn_from_json(cast("Json", turn))
        except TimeoutError:
            given_up.set()
            reason = f"{name} gave no answer within {self._limits.deadline_s:g} s"
            raise WorldFaultError(reason, status=ScoreStatus.TIMEOUT) from None
        except WorldContractError as error:
            raise WorldFaultError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever the world raises
            raise WorldFaultError(describe_error(error), traceback=user_traceback(error)) from None
