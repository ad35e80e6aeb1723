"""Launcher of ranks on the machines of a Ray cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hone.core.clock import Clock, SystemClock
from hone.parallel.config import ClusterConfig, LearnerPlacement
from hone.parallel.connect import connect_to_ray, disconnect_from_ray, driver_address
from hone.parallel.launcher import ChildRanks, RankTask

_LOCAL_S: Final = 20.0
"""Wait for room on this machine alone, which does not grow."""


@dataclass(slots=True, kw_only=True)
class RayLauncher:
    """Ranks as child processes of actors, in one placement group. Implements `RankLauncher`."""

    module: str
    """Module whose `main` is a rank."""
    threads: int
    cluster: ClusterConfig
    clock: Clock = field(default_factory=SystemClock)
    owns_connection: bool = False

    def address(self) -> str:
        """Connect, and return the address. Raises ResourceError without Ray, or without the cluster."""
        self.owns_connection = connect_to_ray(self.cluster.address) or self.owns_connection
        return driver_address()

    def gpus_here(self, ranks: int) -> int:
        del ranks
        return 1

    def launch(self, tasks: Sequence[RankTask]) -> ChildRanks:
        """Raises ResourceError where the cluster has no room."""
        from hone.parallel.child_hosts import open_hosts, pump_remote  # noqa: PLC0415 - Ray, an extra

        placement = self.cluster.learner or LearnerPlacement()
        variables = {"OMP_NUM_THREADS": str(self.threads)}  # numbers are added in the driver's order
        patience_s = self.cluster.patience_s
        if self.cluster.address == "local":
            patience_s = min(patience_s, _LOCAL_S)
        hosts = open_hosts(len(tasks), placement, module=self.module, variables=variables, patience_s=patience_s)
        children = {task.meeting.rank: child for task, child in zip(tasks, hosts.children, strict=True)}
        for task in tasks:
            cuda = task.meeting.device.startswith("cuda")  # of its machine a rank sees its own GPU only
            here = replace(task, meeting=replace(task.meeting, device="cuda:0")) if cuda else task
            children[task.meeting.rank].send(here.to_json().encode() + b"\n")

        def closed() -> None:
            hosts.close()
            if self.owns_connection:
                self.owns_connection = False
                disconnect_from_ray()

        patience_s = max((task.meeting.patience_s for task in tasks), default=0.0)
        return ChildRanks(patience_s=patience_s, clock=self.clock, children=children, pump=pump_remote, closed=closed)
