"""Room of a cluster's machines for a fleet: checked before a replica is started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hone.parallel.config import FleetRolloutConfig

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
            "larger one (cluster.rollout.store_mib, or `ray start --object-store-memory`), or set "
            "cluster.rollout.weights_folder"
            for node in nodes
            if node.store_bytes < need
        ]
    return faults
