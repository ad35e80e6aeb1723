"""Faults at counted events of a run, for `hone chaos`: the same seed harms the same place, on any machine.

Belongs here: the count of a run's writes, step by step, and what happens at a planned one. An event is a write, its
preparation, or a named failpoint (`store.durable` announces them). The n-th event of a step is the same in every
attempt of a reproducible run, so a fault that is planned for step and number needs no clock. Only the process that
was armed counts: `HONE_CHAOS` is taken out of the environment before a child could inherit it.
"""

import errno
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from hone.process.child import descendants

VARIABLE: Final = "HONE_CHAOS"
"""Environment variable with the events' file and the planned faults: `PATH;kill@3.12;disk@5.1`."""
FaultKind: TypeAlias = Literal["kill", "disk", "replica", "stall"]
ENDING: Final = ("kill", "disk")
"""Faults that end the process."""
_REPLICA: Final = b"ray::ReplicaActor"
"""Title of a replica's process."""
_SIGNALS: Final = {"replica": signal.SIGKILL, "stall": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """An event of a run."""

    step: int
    number: int
    """Number of the event within the step, counted from 1."""
    name: str = field(default="", compare=False)
    """The file that is written, or the failpoint."""

    def __str__(self) -> str:
        return f"step {self.step}, event {self.number}{f' ({self.name})' if self.name else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault, and the first event at which it may come."""

    kind: FaultKind
    at: Moment

    def __str__(self) -> str:
        return f"{self.kind}@{self.at.step}.{self.at.number}"

    @classmethod
    def parse(cls, text: str) -> "PlannedFault":
        """The inverse of `str`."""
        kind, _, place = text.partition("@")
        step, _, number = place.partition(".")
        return cls(kind=cast("FaultKind", kind), at=Moment(int(step), int(number)))


@dataclass(slots=True, kw_only=True)
class EventCounter:
    """Counts the events of this process once it is armed, and brings the planned faults about."""

    step: int = 0
    number: int = 0
    record: int = -1
    """Descriptor of the events' file; -1: not armed."""
    plan: deque[PlannedFault] = field(default_factory=deque[PlannedFault])
    is_full: bool = False
    """Writes fail as on a full disk."""
    process: int = 0

    def arm(self, text: str) -> None:
        """Count from here on, as `VARIABLE` says; nothing for an empty text."""
        if not text:
            return
        path, *faults = text.split(";")
        self.record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.plan = deque(map(PlannedFault.parse, faults))
        self.process = os.getpid()

    def reach(self, step: int) -> None:
        """The run is at a step; its events are counted from 1."""
        if self.record >= 0 and step != self.step:
            self.step, self.number = step, 0

    def announce(self, name: str, *, writes: bool, tear: Callable[[], object] | None = None) -> None:
        """An event: nothing in most processes. `writes`: it would fail on a full disk; `tear` writes a part of what is
        to be written. Raises OSError where the disk is planned to be full."""
        if self.record < 0 or os.getpid() != self.process:
            return
        self.number += 1
        here = Moment(self.step, self.number, name)
        os.write(self.record, f"event {here.step} {here.number} {name}\n".encode())
        while self.plan and here >= self.plan[0].at and (writes or self.plan[0].kind != "disk"):
            self._bring_about(self.plan.popleft(), here, tear)
        if writes and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _bring_about(self, fault: PlannedFault, here: Moment, tear: Callable[[], object] | None) -> None:
        os.write(self.record, f"fault {fault.kind} {here.step} {here.number} {here.name}\n".encode())
        match fault.kind:
            case "kill":
                if tear is not None:
                    tear()
                os.kill(os.getpid(), signal.SIGKILL)
            case "disk":
                self.is_full = True
            case "replica" | "stall":
                replicas = sorted(pid for pid in descendants(os.getpid()) if _title(pid).startswith(_REPLICA))
                for pid in replicas[:1]:
                    os.kill(pid, _SIGNALS[fault.kind])


EVENTS: Final = EventCounter()
"""The events of this process."""


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def read_events(path: Path) -> tuple[list[Moment], list[tuple[str, Moment]]]:
    """All events of a file, and the faults that came with their kinds."""
    moments: list[Moment] = []
    came: list[tuple[str, Moment]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        kind, *words = line.split(" ")
        if kind == "event":
            moments.append(_moment(words))
        else:
            came.append((words[0], _moment(words[1:])))
    return moments, came


def _moment(words: Iterable[str]) -> Moment:
    step, number, *name = words
    return Moment(int(step), int(number), " ".join(name))
