"""The process of a replica: a Ray actor's class, whose faults come back as values that every process can read."""

import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from hone import __version__
from hone.core.errors import ConfigError, DataError, DivergedError, HoneError, ResourceError
from hone.core.fleet import AskAnswers, GenerationAsk, PublishedWeights, RunnerArithmetic
from hone.engine.fleet.ask_session import AskRefusedError
from hone.engine.fleet.replica import GenerationReplica, ReplicaSettings, TakenWeights
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder


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
        return GenerationReplica(decoder, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHello:
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
class ReplicaFault:
    """An error of hone's in a replica: Ray drops what it cannot pickle, and plain values stay."""

    kind: str
    """Name of the class."""
    messages: tuple[str, ...]

    def error(self) -> HoneError:
        """The error, to be raised by the driver."""
        kinds = (ConfigError, DataError, DivergedError, ResourceError)
        return next((kind for kind in kinds if kind.__name__ == self.kind), HoneError)(*self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAsk:
    """Answer of a replica that cannot do an ask now."""

    reason: str


class ReplicaActor:
    """A `GenerationReplica` in a process of its own. Nothing here raises an error of hone's: it returns it."""

    def __init__(self) -> None:
        self._replica: GenerationReplica | None = None

    def open(self, spec: ReplicaSpec, token: str) -> ReplicaHello | ReplicaFault:
        """Build the engine. `token`: file that this machine must see; empty: none."""
        node = platform.node()
        if token and not Path(token).is_file():
            return ReplicaFault(
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
        return ReplicaHello(
            arithmetic=arithmetic,
            node=node,
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            hone_version=__version__,
        )

    def load(self, weights: PublishedWeights) -> TakenWeights | ReplicaFault:
        """Take up weights."""
        try:
            return self._opened().load(weights.version, _bytes_of(weights), weights.digest)
        except HoneError as error:
            return _fault(error)

    def answer(self, ask: GenerationAsk) -> AskAnswers | ReplicaFault | RefusedAsk:
        """Answer an ask."""
        try:
            return self._opened().answer(ask)
        except AskRefusedError as error:
            return RefusedAsk(reason=str(error))
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


def end_process(pid: int, ticks: int | None) -> bool:
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


def _fault(error: HoneError) -> ReplicaFault:
    return ReplicaFault(kind=type(error).__name__, messages=error.messages)
