"""Blocks of control environments as actors of a Ray cluster: a transport of `hone.control.environments.subprocess_env`.

An actor keeps the block's process on its machine, in the driver's folder, and has a second thread that answers how many
calls the environments have made: so a slow environment is told from a hung machine.
"""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hone.control.environments.make import GymConfig
from hone.control.environments.remote_block import BlockHandle, BlockHost, BlockReply, BlockRequest, RemoteBlocks
from hone.control.environments.worker_process import EnvProcess
from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.parallel.connect import connect_to_ray, last_line
from hone.process.child import ChildLostError

if TYPE_CHECKING:
    from ray import ObjectRef

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
"""Environment variable with the cluster's address, as Ray's own programs read it; without it one is started here."""
_PROBE_S = 1.0
_RETRY_S = 0.5


def block_transport(config: GymConfig) -> RemoteBlocks | None:
    """The transport of `env.isolation = "ray"`, connected; None for environments on this machine.

    Raises ResourceError without Ray, without the cluster, and for more actors than it has cores.
    """
    if config.isolation != "ray":
        return None
    actors = min(config.workers, config.num_envs)
    connect_to_ray(os.environ.get(ADDRESS_VARIABLE) or "local", cpus=actors)
    import ray  # noqa: PLC0415 - an extra

    cores = float(ray.cluster_resources().get("CPU", 0.0))
    if actors > cores:  # an actor takes one core: some would wait for ever
        raise ResourceError(
            f"env.workers: {actors} actors need a CPU core each, and the Ray cluster has {cores:g}; lower env.workers, "
            "or add machines"
        )
    return RemoteBlocks(
        open_handle=partial(RayBlockHandle.open, Path.cwd()),
        wait_handles=_wait_for_handles,
        call_s=config.step_timeout_s,
    )


class _BlockActor:
    """The actor: a `BlockHost`, and the number of its environments' calls from another thread."""

    def __init__(self, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)  # files of the user's are named relative to it
        clock = SystemClock()
        self._host = BlockHost(EnvProcess(clock), clock)
        self._host.process.start()

    def exchange(self, request: BlockRequest) -> BlockReply:
        """Answer a request."""
        return self._host.exchange(request)

    def calls(self) -> int:
        """Calls of environments so far."""
        return int(self._host.process.calls[0])

    def pids(self) -> tuple[int, int]:
        """Process numbers of the actor and of the block's process."""
        process = self._host.process
        return os.getpid(), process.pid if isinstance(process, EnvProcess) else 0


class RayBlockHandle:
    """The driver's end of an actor."""

    def __init__(self, actor: Any) -> None:  # noqa: ANN401 - Ray's handle has the actor's methods as attributes
        self.actor = actor
        self.pending: ObjectRef[BlockReply] | None = None
        self._request: BlockRequest | None = None
        self._probe: ObjectRef[int] | None = None
        self._probe_s = 0.0
        self._calls = 0

    @classmethod
    def open(cls, folder: Path) -> "RayBlockHandle":
        """Start an actor; Ray chooses the machine."""
        import ray  # noqa: PLC0415 - an extra

        kind = ray.remote(_BlockActor).options(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=2)
        return cls(kind.remote(str(folder)))

    def submit(self, request: BlockRequest) -> None:
        self._request = request
        self.pending = self.actor.exchange.remote(request)

    def reply(self) -> BlockReply | ChildLostError | None:
        import ray  # noqa: PLC0415 - an extra
        from ray import exceptions  # noqa: PLC0415 - an extra

        if self.pending is None or not ray.wait([self.pending], timeout=0)[0]:
            return None
        pending, self.pending = self.pending, None
        try:
            return ray.get(pending)
        except exceptions.ActorUnavailableError:
            # The connection fluttered: the request may have arrived, and its number keeps it from being done twice.
            assert self._request is not None
            time.sleep(_RETRY_S)
            self.submit(self._request)
            return None
        except exceptions.RayError as error:
            return ChildLostError(f"its actor was lost ({type(error).__name__}: {last_line(error)})")

    def calls(self) -> int:
        """Calls so far; asks the actor once a second while a reply is awaited, and never waits for the answer."""
        import ray  # noqa: PLC0415 - an extra
        from ray import exceptions  # noqa: PLC0415 - an extra

        now_s = time.monotonic()
        if self._probe is None:
            if now_s - self._probe_s > _PROBE_S:
                self._probe, self._probe_s = self.actor.calls.remote(), now_s
        elif ray.wait([self._probe], timeout=0)[0]:
            probe, self._probe = self._probe, None
            try:
                self._calls = ray.get(probe)
            except exceptions.RayError:
                return self._calls  # `reply` tells
        return self._calls

    def end(self) -> None:
        import ray  # noqa: PLC0415 - an extra

        if ray.is_initialized():
            ray.kill(self.actor)


def _wait_for_handles(handles: Sequence[BlockHandle], timeout_s: float) -> None:
    """Wait until an actor has a reply, at most `timeout_s` seconds."""
    import ray  # noqa: PLC0415 - an extra

    pending = [one.pending for one in handles if isinstance(one, RayBlockHandle) and one.pending is not None]
    if pending:
        ray.wait(pending, num_returns=1, timeout=timeout_s)
