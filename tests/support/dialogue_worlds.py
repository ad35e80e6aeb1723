"""Worlds of dialogues that do what no world should do, and a few that behave."""

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.random import uniforms


class Counting:
    """Answers every turn with the number of `a` in it, in letters; pays it; ends after `turns` turns."""

    def __init__(self, turns: int = 3, longest_s: float = 0.0) -> None:
        self.turns, self.longest_s, self.heard, self.seed, self.letters = turns, longest_s, 0, 0, "a"

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        self.seed, self.letters = seed, "ab"[seed % 2]
        self._wait()
        return WorldTurn(messages=[{"role": "user", "content": str(columns["start"])}])

    def answer(self, said: PolicyTurn) -> WorldTurn:
        self.heard += 1
        assert said.turn == self.heard - 1
        self._wait()
        count = said.text.count("a")
        said_back = [{"role": "user", "content": self.letters * (1 + count % 3)}]
        done = self.heard >= self.turns
        return WorldTurn(messages=said_back, reward=float(count), done=done, facts={"heard": self.heard})

    def close(self) -> None: ...

    def _wait(self) -> None:
        if self.longest_s:
            time.sleep(float(uniforms(self.seed, "wait", self.heard, count=1)[0]) * self.longest_s)

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        return [{"id": f"row {seed}.{k}", "start": "ab"[k % 2]} for k in range(size)]


class Together(Counting):
    """The same, but no world begins before `count` worlds have been asked to; they meet in a folder."""

    def __init__(self, folder: str, count: int) -> None:
        super().__init__()
        self.folder, self.count = Path(folder), count

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        (self.folder / str(uuid.uuid4())).touch()
        while len(list(self.folder.iterdir())) < self.count:
            time.sleep(0.05)
        return super().begin(columns, seed)


class Lenient(Counting):
    """The same, whatever turns others have answered."""

    def answer(self, said: PolicyTurn) -> WorldTurn:
        return super().answer(replace(said, turn=self.heard))


class AsyncCounting(Counting):
    """The same, by coroutines."""

    async def answer(self, said: PolicyTurn) -> WorldTurn:  # type: ignore[override]
        await asyncio.sleep(0.001)
        return super().answer(said)


class Failing:
    """Begins well, and fails in the second answer in the way of its name."""

    def __init__(self, kind: str = "raises", mark: str = "") -> None:
        self.kind, self.mark, self.heard = kind, mark, 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        if self.kind == "begins with nothing":
            return WorldTurn()
        if self.kind == "ends at once":
            return WorldTurn(messages=[{"role": "user", "content": "a"}], done=True)
        return WorldTurn(messages=[{"role": "user", "content": "a"}])

    def answer(self, said: PolicyTurn) -> Any:
        self.heard += 1
        if self.heard < 2:
            return WorldTurn(messages=[{"role": "user", "content": "b"}], reward=1.0)
        return WAYS[self.kind](self)

    def close(self) -> None:
        if self.kind == "raises in close":
            raise OSError("close")
        if self.kind == "hangs in close":
            time.sleep(60)


def _raise(world: Failing) -> None:
    raise ValueError("the world has a fault")


def _leave_child(world: Failing) -> WorldTurn:
    child = subprocess.Popen(["sleep", "600"])
    Path(world.mark).write_text(str(child.pid))
    time.sleep(60)
    return WorldTurn(done=True)


def _fork(world: Failing) -> WorldTurn:
    copy = os.fork()
    if copy == 0:  # it comes back too, and before this process
        return WorldTurn(done=True, reward=100.0)
    os.waitpid(copy, 0)
    return WorldTurn(done=True, reward=1.0)


def _flood(world: Failing) -> WorldTurn:
    return WorldTurn(messages=[{"role": "user", "content": "ab" * 50_000_000}], reward=1.0)


def _print_much(world: Failing) -> WorldTurn:
    for _ in range(200):
        print("x" * 100_000)
    return WorldTurn(done=True, reward=1.0)


def _write_into_channels(world: Failing) -> WorldTurn:
    for fd in range(3, 40):
        try:
            os.write(fd, b"7 {}\n")
        except OSError:
            continue
    return WorldTurn(done=True, reward=1.0)


def _write_file(world: Failing) -> WorldTurn:
    Path(world.mark).write_text("the world was here")
    return WorldTurn(done=True, reward=1.0)


WAYS = {
    "writes a file": _write_file,
    "raises": _raise,
    "exits": lambda world: os._exit(3),
    "sys.exit": lambda world: exit(4),
    "is killed": lambda world: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": lambda world: time.sleep(60),
    "leaves a child": _leave_child,
    "says a number": lambda world: WorldTurn(messages=[7]),  # type: ignore[list-item]
    "says a number for text": lambda world: WorldTurn(messages=[{"role": "user", "content": 7}]),
    "speaks as the policy": lambda world: WorldTurn(messages=[{"role": "assistant", "content": "a"}]),
    "returns nothing": lambda world: None,
    "pays a word": lambda world: WorldTurn(reward="much", done=True),  # type: ignore[arg-type]
    "pays NaN": lambda world: WorldTurn(reward=float("nan"), done=True),
    "pays numpy": lambda world: WorldTurn(reward=np.float32(1.0), done=True),  # type: ignore[arg-type]
    "says neither": lambda world: WorldTurn(),
    "tells no number": lambda world: WorldTurn(done=True, facts={"a": "b"}),  # type: ignore[dict-item]
    "takes a name": lambda world: WorldTurn(done=True, facts={"wait_s": 1.0}),
    "floods": _flood,
    "forks and comes back twice": _fork,
    "prints much": _print_much,
    "writes into channels": _write_into_channels,
    "half a surrogate pair": lambda world: WorldTurn(messages=[{"role": "user", "content": "a\ud800"}], done=True),
    "has no reward": lambda world: WorldTurn(reward=None, done=True),
    "raises in close": lambda world: WorldTurn(done=True, reward=1.0),
    "hangs in close": lambda world: WorldTurn(done=True, reward=1.0),
    "needs memory": lambda world: bytearray(1 << 33),
}


class RaisesInBegin(Counting):
    """Raises where the dialogue begins."""

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        raise KeyError("no such column")


class Silent:
    """Has no `close`."""

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        return WorldTurn()

    def answer(self, said: PolicyTurn) -> WorldTurn:
        return WorldTurn(done=True)


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any number
    """
    return 2 * number


def shout(text: str) -> str:
    """Repeat a text 1,000 times.

    Args:
        text: Any text
    """
    return text * 1000
