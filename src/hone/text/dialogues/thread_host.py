"""Worlds in threads of the trainer: for worlds that come with hone, which neither hang nor die."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.episodes import ScoreStatus
from hone.process.user_files import describe_error, user_traceback
from hone.text.dialogues.config import DialogueWorldConfig
from hone.text.dialogues.hosted import HostedDialogue, LoadedWorld, WorldDescription, WorldSpec, checked, load_world
from hone.text.dialogues.protocol import Json, WorldContractError, WorldFaultError, turn_from_json

_THREADS: Final = 256
"""Worlds that answer at the same time; threads start as they are needed."""


class ThreadHost:
    """Implements `WorldHost`: plain methods run in a pool of threads, coroutines in one event loop.

    A thread cannot be killed: an answer after its deadline is ignored, and counted.
    """

    def __init__(self, spec: WorldSpec, config: DialogueWorldConfig) -> None:
        self._spec, self._config = spec, config
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
            found = method()
            self._late += given_up.is_set()
            return found

        try:
            async with asyncio.timeout(self._config.deadline_s):
                found = await asyncio.get_running_loop().run_in_executor(self._pool, call)
                turn = found if isinstance(found, dict) else checked(await found, name)
                return turn_from_json(cast("Json", turn))
        except TimeoutError:
            given_up.set()
            reason = f"{name} gave no answer within {self._config.deadline_s:g} s"
            raise WorldFaultError(reason, status=ScoreStatus.TIMEOUT) from None
        except WorldContractError as error:
            raise WorldFaultError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever the world raises
            raise WorldFaultError(describe_error(error), traceback=user_traceback(error)) from None
