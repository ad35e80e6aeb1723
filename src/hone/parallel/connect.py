"""The connection of this process to Ray.

Commands of hone as tasks of a Ray cluster: a `hone.process.commands.CommandRunner`.

A task runs its command as a child process, as `LocalCommands` does, in the driver's folder, which every machine must
see.
"""

import contextlib
import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.process.commands import LOST, CommandEnd, HoneCommand, LocalCommands
from hone.process.session_guard import SessionGuard

if TYPE_CHECKING:
    from ray import ObjectRef

LOOPBACK = "127.0.0.1"
_GUARDS: list[SessionGuard] = []
"""Guard of the local cluster of this process, if it has one."""
LISTENER_S = 5.0
"""Seconds in which a cluster's port must answer."""


def connect_to_ray(address: str, *, cpus: int = 0, store_bytes: int | None = None) -> bool:
    """Connect this process to a cluster, unless it is connected; returns whether it was not. `local` starts one on this
    machine, for at least `cpus` cores and with an object store of `store_bytes` (None: Ray's choice).

    Raises ResourceError without Ray, without the cluster, and for a cluster of another version.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ResourceError(f'Ray cannot be imported ({error}): pip install "hone-rl[ray]"') from error
    if ray.is_initialized():
        return False
    _require_listener(address)
    start: Any = partial(ray.init, address, logging_level=logging.ERROR, log_to_driver=False)
    with contextlib.ExitStack() as guarded:
        guarded.enter_context(_own_signal_handlers())
        if address == "local":
            guard = _guard_local_cluster()
            guarded.enter_context(guard.marking())
            cores = max(cpus, os.cpu_count() or 1)
            start = partial(start, include_dashboard=False, num_cpus=cores, object_store_memory=store_bytes)
            start = partial(start, _temp_dir=str(guard.folder))
        _start_ray(start, address)
    return True


def disconnect_from_ray() -> None:
    """End the connection. Of a cluster that `connect_to_ray` started, no process and no file is left."""
    import ray  # noqa: PLC0415 - an extra

    with _own_signal_handlers():
        ray.shutdown()
    while _GUARDS:
        _GUARDS.pop().close()


def _guard_local_cluster() -> SessionGuard:
    """The guard of a cluster on this machine, whose folder holds Ray's sessions: sockets, which need a short path, and
    logs. Raises ResourceError."""
    base = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    try:
        guard = SessionGuard.start("hone_ray_", base=base)
    except OSError as error:
        raise ResourceError(f"no folder for Ray's session in {base}: {error}; set RAY_TMPDIR to a short path") from None
    _GUARDS.append(guard)
    return guard


def _start_ray(start: Callable[[], object], address: str) -> None:
    """Call `start`. Raises ResourceError where it does not connect."""
    import ray  # noqa: PLC0415 - an extra

    try:
        start()
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ResourceError(
            f"no Ray cluster at {address!r}: {' '.join(str(error).split()) or type(error).__name__}; start one with "
            f"`ray start --head`, or name its host:port. This process has Ray {ray.__version__}, and a cluster needs "
            "one version everywhere"
        ) from None


def last_line(error: Exception) -> str:
    """The last line of an error of Ray that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].partition(" Some common causes")[0][:300] if lines else type(error).__name__


def _require_listener(address: str) -> None:
    """Raise ResourceError for an address `host:port` where nothing listens: Ray would try for minutes, and end this
    process. Ray Client's addresses are refused."""
    if address.startswith("ray://"):
        raise ResourceError(
            f"{address!r} is an address of Ray Client, which is not used: run the command on the cluster, with "
            "`ray job submit --address http://HEAD:8265 --working-dir . -- hone ...`"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        with socket.create_connection((host, int(port)), timeout=LISTENER_S) as link:
            link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            if link.recv(9)[3:4] != b"\x04" and os.environ.get("RAY_USE_TLS", "0") == "0":
                raise OSError("something else than Ray listens there")  # a head answers by HTTP/2 settings
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"no Ray cluster at {address!r}: {error}; check the host and the port, which is that of `ray start --head` "
            "(6379), and not the dashboard's"
        ) from None


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the handlers of this process: Ray sets its own for SIGTERM, and a run's would no longer save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------ commands on a cluster


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
