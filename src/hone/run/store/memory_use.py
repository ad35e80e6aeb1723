"""Memory that a run took, beside its plan: `memory.json`.

Belongs here: the figures, their file, and the sentence about them. `hone.run` measures, `hone.planner` plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.core.errors import DataError
from hone.run.store.durable import human_bytes, replace_file, to_json
from hone.run.store.records import read_record, record_json

MEMORY: Final = "memory.json"
MEMORY_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Most memory of a run's process on its device."""

    device: str
    before_bytes: int
    """Held before the run was built: the interpreter and its libraries, on a GPU usually nothing."""
    peak_bytes: int
    """Most at once, `before_bytes` included."""
    planned_bytes: int
    """Planned peak of networks, activations and pages; 0: not planned."""
    components: Mapping[str, int]
    """Planned bytes by component."""
    phases: Mapping[str, int]
    """Planned bytes of each phase."""

    @property
    def taken_bytes(self) -> int:
        """Most bytes beyond those held before."""
        return self.peak_bytes - self.before_bytes


def write_memory_use(folder: Path, use: MemoryUse) -> None:
    """Write `memory.json` atomically. Raises ResourceError."""
    replace_file(folder / MEMORY, to_json({"format": MEMORY_FORMAT, **record_json(use)}, indent=1))


def read_memory_use(folder: Path) -> MemoryUse | None:
    """Read `memory.json`; None without the file. Raises DataError for a damaged one."""
    try:
        return read_record(MemoryUse, folder / MEMORY)
    except DataError as error:
        raise DataError(*error.messages, "remove the file: the end of a run writes a new one") from None


def memory_line(use: MemoryUse) -> str:
    """Sentence about the memory of a run, and its plan where there was one."""
    taken, before = human_bytes(use.taken_bytes), human_bytes(use.before_bytes)
    line = f"memory of {use.device}: at most {taken} beyond {before} at the start"
    if not use.planned_bytes:
        return line
    phase = max(use.phases, key=lambda name: use.phases[name])
    return f"{line}; planned {human_bytes(use.planned_bytes)} (in {phase}) for networks, activations and pages"
