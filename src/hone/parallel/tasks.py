"""Commands of hone as tasks of a Ray cluster: a `hone.process.commands.CommandRunner`.

A task runs its command as a child process, as `LocalCommands` does, in the driver's folder, which every machine must
see.
"""

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hone.core.clock import SystemClock
from hone.parallel.connect import connect_to_ray, last_line
from hone.process.commands import LOST, CommandEnd, HoneCommand, LocalCommands

if TYPE_CHECKING:
    from ray import ObjectRef

TICK_S = 0.2
NO_FOLDER = 5
"""Exit code of a command on a machine without the driver's folder."""


def _run_task(command: HoneCommand, folder: str) -> CommandEnd:
    """Run a command on this machine, in `folder`. A KeyboardInterrupt, which is Ray's request to cancel, asks it to
    save and stop."""
    if not Path(folder).is_dir():
        line = f"{platform.node()} has no folder {folder}: a sweep on Ray needs its folder on every machine"
        return CommandEnd(name=command.name, code=NO_FOLDER, lines=(line,))
    os.chdir(folder)
    runner = LocalCommands(1, clock=SystemClock())
    runner.start(command)
    ends: list[CommandEnd] = []
    while not ends:
        try:
            ends = runner.wait(TICK_S)
        except KeyboardInterrupt:
            runner.stop()
    return ends[0]


class RayCommands:
    """Commands as tasks, `slots` at a time, each with its own cores and GPUs. Connects at the first start."""

    def __init__(self, slots: int, *, address: str, folder: Path, cpus: int = 1, gpus: float = 0) -> None:
        self.slots = slots
        self._address, self._folder = address, folder
        self._cpus, self._gpus = cpus, gpus
        self._running: dict[ObjectRef[CommandEnd], HoneCommand] = {}

    def start(self, command: HoneCommand) -> None:
        """Submit a command; Ray starts it when a machine has room. Raises ResourceError without the cluster."""
        connect_to_ray(self._address)
        import ray  # noqa: PLC0415 - an extra

        task = ray.remote(_run_task).options(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0)
        self._running[task.remote(command, str(self._folder))] = command

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        """Commands that ended since the last call."""
        if not self._running:
            time.sleep(timeout_s)
            return []
        import ray  # noqa: PLC0415 - an extra

        done, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        return [self._end(one) for one in done]

    def stop(self) -> None:
        """Request every command to save and stop."""
        self._cancel(force=False)

    def close(self) -> None:
        """Kill what still runs."""
        self._cancel(force=True)
        self._running.clear()

    def _cancel(self, *, force: bool) -> None:
        if self._running:
            import ray  # noqa: PLC0415 - an extra

            for one in self._running:
                ray.cancel(one, force=force)

    def _end(self, one: "ObjectRef[CommandEnd]") -> CommandEnd:
        """The end of a task; lost if its worker or its machine is."""
        import ray  # noqa: PLC0415 - an extra
        from ray.exceptions import RayError  # noqa: PLC0415 - an extra

        command = self._running.pop(one)
        try:
            return ray.get(one)
        except RayError as error:
            return CommandEnd(name=command.name, code=LOST, lines=(f"{type(error).__name__}: {last_line(error)}",))
