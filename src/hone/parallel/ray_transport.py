"""Replicas as Ray actors: the `FleetTransport` of clusters."""

import os
import platform
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hone import __version__
from hone.core.errors import ConfigError, DataError, DivergedError, HoneError, ResourceError
from hone.core.fleet import AskAnswers, GenerationAsk, PublishedWeights, RunnerArithmetic
from hone.engine.fleet.replica import (
    AskAnswered,
    AskRefused,
    AskRefusedError,
    FleetEvent,
    GenerationReplica,
    ReplicaAlive,
    ReplicaFailed,
    ReplicaJoined,
    ReplicaLoaded,
    ReplicaLost,
    ReplicaSettings,
    ReplicaUnreachable,
    TakenWeights,
)
from hone.engine.protocol import GenerationModel, UnmergedAdapter
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.parallel.config import ClusterConfig, NodeRoom, needed_store_bytes, placement_faults
from hone.parallel.connect import connect_to_ray, disconnect_from_ray, last_line
from hone.run.store.codec import state_from_bytes

# ------------------------------------------------------------------------------------------------------- replica actors


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """Everything that a replica is made from."""

    model: ModelConfig
    dtype: str
    """Type of the weights."""
    compute: str
    """Type of the trainer's products."""
    bitwise: bool
    """True for the trainer's `exactness = "bitwise"`."""
    device: str
    settings: ReplicaSettings

    def build(self) -> GenerationReplica:
        """A replica without weights. Raises ResourceError without its device, or where no runner can be built."""
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ResourceError(
                f'a replica was placed where there is no CUDA device, and its device is "{self.device}"'
            )
        torch.set_num_threads(self.settings.threads)
        decoder = Decoder(self.model, dtype=self.dtype).to(self.device).requires_grad_(False)
        decoder.set_compute_dtype(self.compute)
        if self.bitwise:
            decoder.use_bitwise_arithmetic()
        return GenerationReplica(decoder, self.settings, _read_adapter)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplicaHello:
    """First word of a replica's process."""

    arithmetic: RunnerArithmetic
    node: str
    node_id: str
    """Ray's name of the machine."""
    pid: int
    start_ticks: int | None
    """Start of the process as the kernel counts it; a process that is given the same number later has another one."""
    hone_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplicaFault:
    """An error of hone's in a replica: Ray drops what it cannot pickle, and plain values stay."""

    kind: str
    """Name of the class."""
    messages: tuple[str, ...]

    def error(self) -> HoneError:
        """The error, to be raised by the driver."""
        kinds = (ConfigError, DataError, DivergedError, ResourceError)
        return next((kind for kind in kinds if kind.__name__ == self.kind), HoneError)(*self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RefusedAsk:
    """Answer of a replica that cannot do an ask now."""

    reason: str


class ReplicaActor:
    """A `GenerationReplica` in a process of its own. Nothing here raises an error of hone's: it returns it."""

    def __init__(self) -> None:
        self._replica: GenerationReplica | None = None

    def open(self, spec: ReplicaSpec, token: str) -> _ReplicaHello | _ReplicaFault:
        """Build the engine. `token`: file that this machine must see; empty: none."""
        node = platform.node()
        if token and not Path(token).is_file():
            return _ReplicaFault(
                kind=ResourceError.__name__,
                messages=(
                    f"cluster.rollout.weights_folder = {str(Path(token).parent)!r} is not shared with {node}: it does "
                    "not see what the driver wrote there; name a folder that every machine mounts, or leave it out",
                ),
            )
        try:
            self._replica = spec.build()
            arithmetic = self._replica.arithmetic()
        except HoneError as error:
            return _fault(error)
        return _ReplicaHello(
            arithmetic=arithmetic,
            node=node,
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            hone_version=__version__,
        )

    def load(self, weights: PublishedWeights) -> TakenWeights | _ReplicaFault:
        """Take up weights."""
        try:
            return self._opened().load(weights.version, _bytes_of(weights), weights.digest)
        except HoneError as error:
            return _fault(error)

    def answer(self, ask: GenerationAsk) -> AskAnswers | _ReplicaFault | _RefusedAsk:
        """Answer an ask."""
        try:
            return self._opened().answer(ask, _bytes_of)
        except AskRefusedError as error:
            return _RefusedAsk(reason=str(error))
        except HoneError as error:
            return _fault(error)

    def cancel(self, number: int) -> None:
        """Drop an ask."""
        self._opened().asks.cancel(number)

    def passes(self) -> int:
        """Number of passes so far: a sign of life."""
        return 0 if self._replica is None else self._replica.asks.passes

    def _opened(self) -> GenerationReplica:
        if self._replica is None:
            raise RuntimeError("open() comes first")
        return self._replica


def _end_process(pid: int, ticks: int | None) -> bool:
    """Kill a process of this machine, if it is the one that started at `ticks`; returns whether it was."""
    if ticks is None or start_ticks(pid) != ticks:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def start_ticks(pid: int) -> int | None:
    """Start of a process in the kernel's clock ticks; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _bytes_of(weights: PublishedWeights) -> NDArray[np.uint8]:
    """The published bytes: mapped from this machine's object store, or from the shared folder."""
    (part,) = weights.parts
    if isinstance(part, str):
        try:
            return np.memmap(part, np.uint8, "r")
        except OSError as error:
            raise ResourceError(f"published weights cannot be read on {platform.node()}: {error}") from None
    return ray.get(cast("ray.ObjectRef", part))


def _read_adapter(model: GenerationModel, flat: NDArray[np.uint8]) -> UnmergedAdapter:
    """An adapter from the bytes of `LoraAdapter.packed`."""
    adapter = LoraAdapter.unpacked(cast("Decoder", model), state_from_bytes(flat))
    return UnmergedAdapter(product=adapter.added_product, factors=adapter.stacked_factors)


def _fault(error: HoneError) -> _ReplicaFault:
    return _ReplicaFault(kind=type(error).__name__, messages=error.messages)


# -------------------------------------------------------------------------------------------------------- ray transport


_THREADS: Final = 64
"""Largest number of asks that a replica works on at the same time."""
_LEAST_STORE: Final = 128 << 20
_NODES_S: Final = 1.0
"""Interval at which a cluster that lacks room is looked at again: machines may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActorCall:
    """A call of an actor that has not returned."""

    replica: str
    method: str
    number: int = 0
    """The ask's; 0: it is none."""


class RayTransport:
    """Implements `FleetTransport`. Connects at `open`, and disconnects at `close` if the connection is its own."""

    def __init__(self, config: ClusterConfig, spec: ReplicaSpec) -> None:
        self.config, self.spec = config, spec
        self._owns_connection = False
        self._count = 0
        self._actors: dict[str, Any] = {}
        self._hellos: dict[str, _ReplicaHello] = {}
        self._calls: dict[ray.ObjectRef, _ActorCall] = {}
        self._lock = threading.Lock()
        self._spec_ref: ray.ObjectRef | None = None
        self._folder: Path | None = None
        self._token = ""

    # ----------------------------------------------------------------------------------------- command

    def open(self) -> None:
        """Connect, and check that there is room. Raises ResourceError with all faults."""
        rollout = self.config.rollout
        store = max(_LEAST_STORE, needed_store_bytes(self.spec.settings.layout.nbytes))
        self._owns_connection = connect_to_ray(self.config.address, store_bytes=store)
        began = time.monotonic()
        wait_s = 0.0 if self.config.address == "local" else self.config.patience_s
        while faults := placement_faults(_rooms(), rollout, self.spec.settings.layout.nbytes):
            if time.monotonic() - began >= wait_s:
                self.close()
                raise ResourceError(*faults)
            time.sleep(_NODES_S)
        if rollout.weights_folder is not None:
            self._folder = Path(rollout.weights_folder) / f"hone-{uuid4().hex[:12]}"  # a name, no chance
            self._token = str(self._folder / "shared")
            try:
                self._folder.mkdir(parents=True)
                Path(self._token).touch()
            except OSError as error:
                raise ResourceError(f"cluster.rollout.weights_folder cannot be written: {error}") from None
        self._spec_ref = ray.put(self.spec)

    def start(self) -> str:
        """Begin a replica's process."""
        self._count += 1
        name, rollout = f"replica {self._count}", self.config.rollout
        remote: Any = ray.remote  # its type knows no keyword
        made = (
            remote(concurrency_groups={"control": 4})(ReplicaActor)
            .options(
                num_cpus=rollout.cpus,
                num_gpus=rollout.gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=min(_THREADS, max(2, self.spec.settings.slots)),
                scheduling_strategy="SPREAD",
            )
            .remote()
        )
        with self._lock:
            self._actors[name] = made
        self._call(name, "open", self._spec_ref, self._token)
        return name

    def put(self, version: int, flat: NDArray[np.uint8], digest: str) -> PublishedWeights:
        """Offer weights, in the object store or in the shared folder. Raises ResourceError where there is no room."""
        if self._folder is None:
            try:
                part: object = ray.put(flat)
            except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
                raise ResourceError(
                    f"the object store has no room for {flat.nbytes} bytes of weights: {error}"
                ) from None
            return PublishedWeights(version=version, digest=digest, parts=(part,))
        path = self._folder / (f"weights-{version}" if version >= 0 else f"adapter-{-version}")
        try:
            flat.tofile(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        except OSError as error:
            raise ResourceError(f"weights cannot be published through {self._folder}: {error}") from None
        return PublishedWeights(version=version, digest=digest, parts=(str(path),))

    def drop(self, weights: PublishedWeights) -> None:
        """Remove a file; an object goes with its last reference."""
        for part in weights.parts:
            if isinstance(part, str):
                with suppress(OSError):
                    Path(part).unlink()

    def load(self, replica: str, weights: PublishedWeights) -> None:
        """Let a replica take up weights."""
        self._call(replica, "load", weights)

    def ask(self, replica: str, ask: GenerationAsk) -> None:
        """Ask a replica."""
        self._call(replica, "answer", ask, number=ask.number)

    def cancel(self, replica: str, number: int) -> None:
        """Tell a replica that nobody waits for the ask any more."""
        self._call(replica, "cancel", number)

    def ping(self, replica: str) -> None:
        """Ask a replica for a sign of life."""
        self._call(replica, "passes")

    def end(self, replica: str) -> None:
        """End a replica's process. Ray asks the process, and one that is stopped does not listen: its machine kills
        it, if it is still the same process."""
        with self._lock:
            actor, hello = self._actors.pop(replica, None), self._hellos.pop(replica, None)
            self._calls = {ref: call for ref, call in self._calls.items() if call.replica != replica}
        if actor is None:
            return
        ray.kill(actor, no_restart=True)
        if hello is None:
            return
        if hello.node_id == ray.get_runtime_context().get_node_id():
            _end_process(hello.pid, hello.start_ticks)
            return
        there = NodeAffinitySchedulingStrategy(hello.node_id, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(_end_process)
        task.options(scheduling_strategy=there).remote(hello.pid, hello.start_ticks)

    def close(self) -> None:
        """End all replicas, and the connection if it is this transport's."""
        if ray.is_initialized():
            for replica in list(self._actors):
                self.end(replica)
        if self._owns_connection:
            self._owns_connection = False
            disconnect_from_ray()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------ events

    def poll(self, timeout_s: float) -> list[FleetEvent]:
        """Events since the last call; waits for the first one up to `timeout_s`."""
        with self._lock:
            refs = list(self._calls)
        if not refs:
            time.sleep(timeout_s)
            return []
        if ray.wait(refs, num_returns=1, timeout=timeout_s)[0]:
            done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            return [event for ref in done if (event := self._event_of(ref)) is not None]
        return []

    def _call(self, replica: str, method: str, *given: object, number: int = 0) -> None:
        with self._lock:
            actor = self._actors.get(replica)
            if actor is None:
                return
            ref = _METHODS[method](actor).remote(*given)
            self._calls[ref] = _ActorCall(replica=replica, method=method, number=number)

    def _event_of(self, ref: ray.ObjectRef) -> FleetEvent | None:
        with self._lock:
            call = self._calls.pop(ref, None)
        if call is None:
            return None  # of a replica that was ended meanwhile
        try:
            result: object = ray.get(ref)
        except exceptions.ActorUnavailableError:
            return ReplicaUnreachable(replica=call.replica)
        except exceptions.ObjectLostError:
            return AskRefused(replica=call.replica, number=call.number) if call.number else None
        except exceptions.RayError as error:
            return self._lost(call, error)
        return self._told(call, result)

    def _told(self, call: _ActorCall, result: object) -> FleetEvent | None:
        match result:
            case AskAnswers():
                return AskAnswered(replica=call.replica, number=call.number, answers=result)
            case TakenWeights():
                return ReplicaLoaded(replica=call.replica, taken=result)
            case _RefusedAsk():
                return AskRefused(replica=call.replica, number=call.number)
            case _ReplicaFault():
                return ReplicaFailed(replica=call.replica, error=result.error(), number=call.number or None)
            case _ReplicaHello():
                return self._hear_hello(call.replica, result)
            case int():
                return ReplicaAlive(replica=call.replica, passes=result)
            case _:
                return None

    def _hear_hello(self, replica: str, hello: _ReplicaHello) -> FleetEvent:
        with self._lock:
            self._hellos[replica] = hello
        if hello.hone_version != __version__:
            error = f"{hello.node} has hone {hello.hone_version}, and this process {__version__}; install one version"
            return ReplicaFailed(replica=replica, error=ResourceError(error))
        return ReplicaJoined(replica=replica, node=hello.node, arithmetic=hello.arithmetic)

    def _lost(self, call: _ActorCall, error: exceptions.RayError) -> FleetEvent:
        """The loss of a replica, or a fault of its installation."""
        unmade = isinstance(error, exceptions.RayActorError) and error.actor_init_failed
        if call.method == "open" and (unmade or isinstance(error, exceptions.RayTaskError)):
            cause = f"a replica cannot be opened: {last_line(error)}; install one hone on every machine"
            return ReplicaFailed(replica=call.replica, error=ResourceError(cause))
        with self._lock:
            hello = self._hellos.get(call.replica)
        self.end(call.replica)
        where = "while it started" if hello is None else f"process {hello.pid} on {hello.node}"
        return ReplicaLost(replica=call.replica, cause=f"lost {where}: {last_line(error)}")


_METHODS: Final = {
    "open": lambda actor: actor.open.options(concurrency_group="control"),
    "load": lambda actor: actor.load.options(concurrency_group="control"),
    "passes": lambda actor: actor.passes.options(concurrency_group="control"),
    "cancel": lambda actor: actor.cancel.options(concurrency_group="control"),
    "answer": lambda actor: actor.answer,
}


def _rooms() -> list[NodeRoom]:
    """The machines of the connected cluster."""
    return [NodeRoom.of_node(node) for node in ray.nodes() if node["Alive"]]
