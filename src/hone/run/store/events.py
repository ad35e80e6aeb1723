"""Events of a run, `events.jsonl`: what happened at which step, appended line by line.

| key | content |
|---|---|
| `step` | last step that was complete, 0 before the first |
| `at_s` | wall clock in seconds since 1970 |
| `kind` | one of `Kind` |
| `words` | a sentence for a person |
| `data` | numbers and names that belong to it, by kind; absent where there are none |

| kind | when | `data` |
|---|---|---|
| `start` | a new run begins | `steps`, `recipe`, `seed` |
| `resume` | a run goes on from a checkpoint, or starts again after a lost rank | `steps`, `notes` |
| `checkpoint` | a checkpoint is whole | `folder`, `score` |
| `evaluation` | the policy was evaluated | `score`, `low`, `high`, `n` |
| `alarm` | an alarm was raised, became red, or ended | see below |
| `diagnosis` | the raised alarms have another cause | `alarm`, `cause`, `follows`, `try`; none if no alarm is raised |
| `finding` | steps that taught nothing | |
| `notice` | a warning of the job: an environment or a replica that was started again, missing scores | |
| `refused_update` | an update that was not a finite number, and was not taken | `capsule` |
| `failure` | user code or a resource failed; the run ends | `error`, `capsule` |
| `stop` | a callback or a signal ended the run early | `reason` |
| `finish` | the last step is done | |

Data of an alarm: `alarm` (its name), `state` (`raised` or `cleared`), `level` (`amber` or `red`), `evidence` and `try`
(sentences), `metrics` (names to look at).

A resume takes the lines of steps away that are done again; those about the life of the process stay (`LIFE`), so that
an interrupted run has the events of an uninterrupted one, and these beside them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from hone.core.clock import Clock
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import from_json, replace_file, to_json, writing

EVENTS_FILE: Final = "events.jsonl"
Kind = Literal[
    "start", "resume", "checkpoint", "evaluation", "alarm", "finding", "notice", "refused_update", "failure", "stop",
    "finish", "diagnosis",
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
LIFE: Final = frozenset({"start", "resume", "refused_update", "failure", "stop", "finish"})
"""Kinds about the life of the process: they happened, whatever is done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One line of the file."""

    step: int
    at_s: float
    kind: Kind
    words: str
    data: Mapping[str, Json] = field(default_factory=dict[str, Json])


class _ReadEvents(NamedTuple):
    """Events in their order, and a message for each damaged line."""

    events: list[RunEvent]
    faults: list[str]


@dataclass(frozen=True, slots=True)
class EventLog:
    """Events of a run that is under way."""

    path: Path
    clock: Clock

    def append(self, step: int, kind: Kind, words: str, data: Mapping[str, Json] | None = None) -> None:
        """Append a line. Raises ResourceError."""
        line: dict[str, Json] = {"step": step, "at_s": self.clock.now_s(), "kind": kind, "words": words}
        if data:
            line["data"] = {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in data.items()
            }
        with writing(self.path), self.path.open("ab") as file:
            file.write(to_json(line))

    def cut_after(self, step: int) -> int:
        """Take the lines of steps after `step` away, but for those about the life of the process, and an incomplete
        last one; returns their number. Raises ResourceError."""
        if not self.path.exists():
            return 0
        data = self.path.read_bytes()
        lines = data.splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and _stays(line, step)]
        if len(kept) < len(lines):
            replace_file(self.path, b"".join(kept))
        return len(lines) - len(kept)


def _stays(line: bytes, step: int) -> bool:
    try:
        event = parse_event(line, EVENTS_FILE)
    except DataError:
        return False
    return event.step <= step or event.kind in LIFE


def parse_event(line: bytes | str, where: str) -> RunEvent:
    """Read a line; `where` names it in errors. Raises DataError. A kind of a later version is a `notice`."""
    parsed = from_json(line if isinstance(line, bytes) else line.encode(), where)
    match parsed:
        case {"step": int(step), "at_s": float() | int() as at_s, "kind": str(kind), "words": str(words)}:
            data = parsed.get("data")
            return RunEvent(
                step=step,
                at_s=float(at_s),
                kind=kind if kind in KINDS else "notice",
                words=words,
                data=data if isinstance(data, dict) else {},
            )
        case _:
            raise DataError(f"{where} is no event: step, at_s, kind and words are missing or of another type")


def read_events(run: Path) -> _ReadEvents:
    """Read the events of a run's folder; none for a run of an earlier version. An incomplete last line is ignored."""
    path = run / EVENTS_FILE
    data = path.read_bytes() if path.exists() else b""
    events: list[RunEvent] = []
    faults: list[str] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            events.append(parse_event(line, f"{path}:{number}"))
        except DataError as error:
            faults.append(str(error))
    return _ReadEvents(events, faults)
