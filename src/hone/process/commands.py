"""Commands of hone run several at a time, each in a process that ends with this one.

Belongs here: the interface of what runs commands, the local one, and the loop over many commands.
`hone.parallel.connect` runs them on other machines.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from hone.core.clock import Clock, long_work
from hone.process.child import ChildLostError, ChildProcess, LineParser, pump_children

CHILD = "hone.process.command_child"
LOST = -1
"""Exit code of a command whose process was killed, or whose machine was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoneCommand:
    """A command line after `hone`, and the name that tells it from others."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """End of a command: exit code (negative: killed by a signal, or lost), and its errors if it failed."""

    name: str
    code: int
    lines: tuple[str, ...] = ()
    core_us: int = 0
    """Microseconds of processor time; 0 where its process was lost."""


def ended_core_us() -> int:
    """Processor time of all child processes of this one that have ended, microseconds; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - Windows has none

    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((spent.ru_utime + spent.ru_stime) * 1e6)


class CommandRunner(Protocol):
    """What runs commands, at most `slots` at a time."""

    slots: int

    def start(self, command: HoneCommand) -> None:
        """Start a command. Raises ResourceError where none can be started."""

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        """Commands that ended since the last call; waits at most `timeout_s` for one."""
        ...

    def stop(self) -> None:
        """Request every running command to save and stop."""

    def close(self) -> None:
        """Kill what still runs."""


class LocalCommands:
    """Commands as child processes of this one. They are killed, with all that they started, when this process ends."""

    def __init__(self, slots: int, *, clock: Clock) -> None:
        self.slots = slots
        self._clock = clock
        self._children: dict[str, ChildProcess[bytes]] = {}

    def start(self, command: HoneCommand) -> None:
        child = ChildProcess(CHILD, LineParser(), clock=self._clock, arguments=command.arguments)
        self._children[command.name] = child
        child.start()

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        pump_children(self._children.values(), timeout_s)
        ends: list[CommandEnd] = []
        for name, child in list(self._children.items()):
            if (reply := child.take_reply()) is not None:
                del self._children[name]
                child.kill()
                ends.append(_end(name, reply))
        return ends

    def stop(self) -> None:
        for child in self._children.values():
            child.send(b"stop\n")

    def close(self) -> None:
        children, self._children = self._children, {}
        for child in children.values():
            child.kill()


def _end(name: str, reply: bytes | ChildLostError) -> CommandEnd:
    if isinstance(reply, ChildLostError):
        return CommandEnd(name=name, code=LOST, lines=(str(reply),))
    answer = json.loads(reply)
    return CommandEnd(name=name, code=answer["code"], lines=tuple(answer["lines"]), core_us=answer["core_us"])


def run_commands(
    commands: Sequence[HoneCommand],
    runner: CommandRunner,
    *,
    stopping: Callable[[], bool] = lambda: False,
    started: Callable[[HoneCommand], None] = lambda _: None,
    ended: Callable[[CommandEnd], None] = lambda _: None,
    tick_s: float = 0.1,
) -> dict[str, CommandEnd]:
    """Run all commands, `runner.slots` at a time; returns their ends by name.

    Once `stopping` is true no other command starts, and those that run are requested once to save and stop. Kills what
    still runs if anything is raised.
    """
    waiting, running, ends = deque(commands), set[str](), dict[str, CommandEnd]()
    requested = False
    with long_work("runs ended", len(commands)) as work, closing(runner):
        while running or (waiting and not stopping()):
            while waiting and len(running) < runner.slots and not stopping():
                command = waiting.popleft()
                running.add(command.name)
                runner.start(command)
                started(command)
            if stopping() and not requested:
                requested = True
                runner.stop()
            for end in runner.wait(tick_s):
                running.discard(end.name)
                ends[end.name] = end
                ended(end)
            work.advance(len(ends) - work.done)
    return ends
