"""Config of a run on several processes or machines: the table `[cluster]`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.errors import ResourceError, run_all_checks


class FleetRolloutConfig(Config):
    """Replicas that generate the answers of a run."""

    replicas: int = Field(default=1, ge=0, le=4096)
    """Replicas that generate at the same time. Their number changes speed, never the result. 0: the driver generates,
    as it does by default with `[cluster.learner]` alone."""
    spares: int = Field(default=0, ge=0)
    """Replicas that have started and hold the weights, and are given work in the place of a lost one."""
    cpus: float = Field(default=1.0, ge=0)
    """CPUs that each replica is placed by; it has as many threads, and at least 1."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of each replica; 0: it generates on CPUs."""
    weights_folder: str | None = None
    """Folder that every machine sees under this path, to pass the weights on in; unset: Ray's object store does."""
    mixed: bool = False
    """Let replicas compute with different kernels or instruction sets; such a run cannot be repeated to the bit."""

    @property
    def replica_threads(self) -> int:
        """Threads of each replica."""
        return max(1, int(self.cpus))

    @property
    def device(self) -> str:
        """Device of each replica."""
        return "cuda" if self.gpus else "cpu"


class LearnerPlacement(Config):
    """Ranks of the learner as processes of a Ray cluster; their number is `run.ranks`, and rank 0 is the driver."""

    cpus: float = Field(default=1.0, ge=0)
    """CPUs that each rank but the driver is placed by."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of each rank but the driver; 0 with `run.device = "cpu"`."""


class ClusterConfig(Config):
    """A run on several processes or machines, by Ray (docs/howto/cluster.md)."""

    address: str = Field(default="local", min_length=1)
    """`local` starts Ray on this machine; `auto` joins the cluster that this program runs in; or `HOST:PORT`."""
    patience_s: float = Field(default=120.0, gt=0)
    """Longest silence of a replica, seconds: its work is then asked of another, and after twice as long it is ended. A
    replica that generates a long answer is not silent."""
    losses_allowed: int = Field(default=20, ge=0)
    """Replicas that may be lost per 100 steps before the run stops."""
    rollout: FleetRolloutConfig = FleetRolloutConfig()
    """Generation of the answers."""
    learner: LearnerPlacement | None = None
    """Places of the ranks of `run.ranks`; absent: child processes on the driver's machine."""

    @model_validator(mode="before")
    @classmethod
    def _learner_alone(cls, given: object) -> object:
        if isinstance(given, Mapping) and given.get("learner") is not None and given.get("rollout") is None:
            return {**given, "rollout": {"replicas": 0}}
        return given

    @model_validator(mode="after")
    def _has_work(self) -> "ClusterConfig":
        if self.rollout.replicas == 0 and self.learner is None:
            raise ValueError(
                "rollout.replicas = 0 without [cluster.learner]: nothing runs in the cluster; leave [cluster] out"
            )
        return self

    def derive(self) -> dict[str, str]:
        """Places of the processes, for `hone plan`."""
        rollout = self.rollout
        each = f"{rollout.cpus:g} CPUs" + (f" and {rollout.gpus:g} GPUs" if rollout.gpus else "")
        threads = f"{rollout.replica_threads} threads"
        spares = f" and {rollout.spares} spares" if rollout.spares else ""
        where = {"local": "on this machine", "auto": "in the Ray cluster of this job"}
        count = rollout.replicas + rollout.spares
        way = "a folder" if rollout.weights_folder else "Ray's object store"
        return {
            "driver": "this process: learner, rewards, evaluation, checkpoints",
            "replicas": f"{rollout.replicas}{spares} {where.get(self.address, f'in the Ray cluster {self.address}')}, "
            f"each {each}, {threads} = {count * rollout.cpus:g} CPUs"
            + (f", {count * rollout.gpus:g} GPUs" if rollout.gpus else ""),
            "weights": f"to the replicas through {way}",
        }


# ------------------------------------------------------------------------------------------------------------ placement


_MIB: Final = 1 << 20
_SPARE_STORE: Final = 64 * _MIB
"""Room of the object store beside two versions of the weights: requests, answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """Resources of one machine of a cluster."""

    name: str
    cpus: float
    gpus: float
    store_bytes: int
    """Size of its object store."""

    @classmethod
    def of_node(cls, node: Mapping[str, Any], name: str = "") -> "NodeRoom":
        """Room of a machine as Ray tells it; `name` instead of its host's."""
        there = node["Resources"]
        return cls(
            name=name or node["NodeManagerHostname"],
            cpus=there.get("CPU", 0.0),
            gpus=there.get("GPU", 0.0),
            store_bytes=int(there.get("object_store_memory", 0)),
        )

    @property
    def text(self) -> str:
        """`name: 16 CPUs, 1 GPUs`."""
        return f"{self.name}: {self.cpus:g} CPUs, {self.gpus:g} GPUs"

    def fits(self, rollout: FleetRolloutConfig) -> int:
        """Number of replicas that it has room for."""
        each = ((self.cpus, rollout.cpus), (self.gpus, rollout.gpus))
        return min((int(there / wanted + 1e-9) for there, wanted in each if wanted), default=1 << 30)


def needed_store_bytes(weights_bytes: int) -> int:
    """Size of an object store that holds two versions of the weights and a rollout."""
    return 2 * weights_bytes + _SPARE_STORE


def placement_faults(nodes: Sequence[NodeRoom], rollout: FleetRolloutConfig, weights_bytes: int) -> list[str]:
    """Reasons why the fleet cannot stand on these machines; empty if it can."""
    faults: list[str] = []
    wanted, room = rollout.replicas + rollout.spares, sum(node.fits(rollout) for node in nodes)
    if room < wanted:
        there = ", ".join(node.text for node in nodes) or "no machine"
        faults.append(
            f"cluster.rollout: {wanted} replicas of {rollout.cpus:g} CPUs and {rollout.gpus:g} GPUs each have no room; "
            f"there is room for {room} ({there}); lower replicas, spares, cpus or gpus, or add machines"
        )
    if rollout.weights_folder is None:
        need = needed_store_bytes(weights_bytes)
        faults += [
            f"the object store of {node.name} holds {node.store_bytes // _MIB} MiB, and two versions of the weights "
            f"({weights_bytes / _MIB:.0f} MiB each) with a rollout need {-(-need // _MIB)} MiB; start Ray with a "
            "larger one (`ray start --object-store-memory`), or set cluster.rollout.weights_folder"
            for node in nodes
            if node.store_bytes < need
        ]
    return faults


def require_ray() -> None:
    """Raise ResourceError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ResourceError("[cluster] needs Ray: pip install 'hone-rl[ray]', or leave the table out")


def check_cluster(config: ClusterConfig | None) -> list[str]:
    """Warnings of a cluster that is to be used; Ray is not started.

    Raises ResourceError with all faults: no Ray, and a fleet that this machine has no room for.
    """
    if config is None:
        return []
    import torch  # noqa: PLC0415 - not needed to read a config

    def require_room() -> None:
        cpus, gpus = len(os.sched_getaffinity(0)), torch.cuda.device_count()
        here = NodeRoom(name="this machine", cpus=cpus, gpus=gpus, store_bytes=needed_store_bytes(0))
        if config.address == "local" and (faults := placement_faults([here], config.rollout, 0)):
            raise ResourceError(*faults)

    run_all_checks({"ray": require_ray, "room": require_room})
    if not config.rollout.mixed:
        return []
    return ["cluster.rollout.mixed: replicas may compute by different kernels, so that this run cannot be repeated"]
