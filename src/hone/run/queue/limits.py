"""Limits of a run that a worker starts: memory and cores, by a control group where there can be one, or by process.

A run is started through this module, which takes the limits upon itself and then becomes the run. On Linux a run does
not outlive its worker: the kernel kills it.

    python -m hone.run.queue.limits MEMORY_BYTES CORES GROUP COMMAND ...

A control group (Linux, version 2) counts the memory of all of a run's processes, and ends them where they want more.
Without one, each process of the run has the bound for itself (RLIMIT_DATA), and an allocation beyond it fails. Cores
are those that the run may be scheduled on.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.process.linux import PR_SET_PDEATHSIG, prctl

GROUPS: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "hone-queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one run may take; 0: no bound."""

    memory_bytes: int = 0
    cores: int = 0
    groups: Path = GROUPS

    def command(self, command: Sequence[str], group: Path | None) -> list[str]:
        """The command that starts another one within the limits."""
        if sys.platform != "linux":
            return list(command)
        memory = 0 if group is not None else self.memory_bytes
        shim = [sys.executable, "-m", "hone.run.queue.limits", str(memory), str(self.cores)]
        return [*shim, "" if group is None else str(group), *command]

    def environment(self) -> dict[str, str]:
        """Variables of the run: libraries start as many threads as it has cores."""
        return {**os.environ, **({"OMP_NUM_THREADS": str(self.cores)} if self.cores else {})}

    def make_group(self, name: str) -> Path | None:
        """A control group with the bound of memory; None where none can be made."""
        if not self.memory_bytes:
            return None
        group = self.groups / f"{_PREFIX}-{name}"
        try:
            if "memory" not in (self.groups / "cgroup.subtree_control").read_text().split():
                return None
            group.mkdir(exist_ok=True)
            (group / "memory.max").write_text(str(self.memory_bytes))
        except OSError:
            return None
        return group

    def remove_group(self, group: Path | None) -> None:
        """Remove a group whose processes have ended; one that still has some stays."""
        with suppress(OSError):
            if group is not None:
                group.rmdir()

    def describe(self, group: Path | None) -> str:
        """The limits in words."""
        memory = f"{self.memory_bytes / 2**20:.0f} MiB{' in a control group' if group else ' a process'}"
        words = [memory] if self.memory_bytes else []
        words += [f"{self.cores} cores"] if self.cores else []
        return ", ".join(words)


def main(arguments: Sequence[str]) -> None:
    """Take the limits, then become the command."""
    import resource  # noqa: PLC0415 - Windows has none, and no limits

    memory, cores, group, *command = arguments
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    if int(memory):
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    if int(cores):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
