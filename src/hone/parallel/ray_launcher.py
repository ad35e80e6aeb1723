"""Launcher of ranks on the machines of a Ray cluster."""

import os
import platform
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import ray
from ray import exceptions
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig, LearnerPlacement, NodeRoom
from hone.parallel.connect import LOOPBACK, connect_to_ray, disconnect_from_ray
from hone.parallel.ranked_job import ChildRanks, RankTask
from hone.process.child import ChildLostError, ChildProcess, LineParser, pump_children

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
        here = ray.util.get_node_ip_address()
        others = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} - {here}
        return here if others else LOOPBACK  # where the other machines reach this one

    def gpus_here(self, ranks: int) -> int:
        del ranks
        return 1

    def launch(self, tasks: Sequence[RankTask]) -> ChildRanks:
        """Raises ResourceError where the cluster has no room."""

        placement = self.cluster.learner or LearnerPlacement()
        variables = {"OMP_NUM_THREADS": str(self.threads)}  # numbers are added in the driver's order
        patience_s = self.cluster.patience_s
        if self.cluster.address == "local":
            patience_s = min(patience_s, _LOCAL_S)
        hosts = _open_hosts(len(tasks), placement, module=self.module, variables=variables, patience_s=patience_s)
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
        return ChildRanks(patience_s=patience_s, clock=self.clock, children=children, pump=_pump_remote, closed=closed)


# ---------------------------------------------------------------------------------------------------------- child hosts
# Child processes on the machines of a Ray cluster: an actor starts each where Ray places it, and passes lines on.
#
# The actor itself computes nothing and imports no torch. Its child ends with it, and it ends with its driver.


_CLOSE_S: Final = 5.0
"""Time that an actor has to end its child before it is killed itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostReplies:
    """Lines that a child wrote since the last call."""

    lines: tuple[bytes, ...]
    lost: str
    """How the child ended; empty: it runs."""
    printed: str
    """The last that it printed, for messages."""


class _ChildHost:
    """An actor with one child process."""

    def __init__(self) -> None:
        self._child: ChildProcess[bytes] | None = None

    def open(self, module: str, variables: Mapping[str, str], folder: str) -> str:
        """Start `python -m module` in `folder`; returns a fault, empty if there is none."""
        if not Path(folder).is_dir():
            return f"{platform.node()} has no folder {folder}: ranks on Ray need the run's folder on every machine"
        os.chdir(folder)
        self._child = ChildProcess(module, LineParser(), clock=SystemClock(), variables=variables)
        try:
            self._child.start()
        except ResourceError as error:
            return str(error)
        return ""

    def exchange(self, lines: list[bytes], wait_s: float) -> _HostReplies:
        """Send lines, and wait up to `wait_s` for one from the child."""
        assert self._child is not None, "open() comes first"
        for line in lines:
            self._child.send(line)
        pump_children([self._child], wait_s)
        replies: list[bytes] = []
        while (reply := self._child.take_reply()) is not None:
            if isinstance(reply, ChildLostError):
                return _HostReplies(lines=tuple(replies), lost=f"{reply} (on {platform.node()})", printed="")
            replies.append(reply)
        return _HostReplies(lines=tuple(replies), lost="", printed=self._child.last_output())

    def close(self) -> None:
        """End the child, which may finish what it does for a moment."""
        if self._child is not None:
            self._child.shut_down(_CLOSE_S / 2)


class _RemoteChild:
    """The driver's end of a child on another machine, with the methods of `ChildProcess` that a launcher uses."""

    def __init__(self, actor: "ActorHandle[_ChildHost]") -> None:
        self._actor = actor
        self._calls: deque[ray.ObjectRef[_HostReplies]] = deque()
        self._replies: deque[bytes] = deque()
        self._lost = self._printed = ""

    @property
    def alive(self) -> bool:
        """True if the child is not known to have ended."""
        return not self._lost

    def send(self, data: bytes) -> None:
        """Send a line."""
        self._calls.append(self._actor.exchange.remote([data], 0.0))

    def take_reply(self) -> bytes | ChildLostError | None:
        """The next reply if it is here, the error when none can come, else None."""
        self.collect()
        if self._replies:
            return self._replies.popleft()
        return ChildLostError(self._lost) if self._lost else None

    def last_output(self) -> str:
        """`; it printed: ...`, or nothing."""
        return self._printed

    def request_exit(self) -> None:
        """Ask the child to end."""
        self._calls.append(self._actor.close.remote())

    def kill(self) -> None:
        """Kill the actor, and with it the child."""
        self._lost = self._lost or "its process was killed"
        ray.kill(self._actor)

    def ask(self, wait_s: float) -> "ray.ObjectRef[_HostReplies]":
        """The oldest call that has not returned; one that waits for the child if there is none."""
        if not self._calls:
            self._calls.append(self._actor.exchange.remote([], wait_s))
        return self._calls[0]

    def collect(self) -> None:
        """Take up the calls that have returned. Waits for nothing."""
        while self._calls and not self._lost and ray.wait([self._calls[0]], timeout=0)[0]:
            self._take(self._calls.popleft())

    def _take(self, call: "ray.ObjectRef[_HostReplies]") -> None:
        try:
            replies: _HostReplies | None = ray.get(call)
        except exceptions.RayError as error:
            self._lost = " ".join(str(error).split())[:400]
            return
        if replies is None:  # `close` has ended it
            self._lost = "its process ended"
            return
        self._replies.extend(replies.lines)
        self._lost, self._printed = replies.lost, replies.printed


def _pump_remote(children: Iterable[_RemoteChild], timeout_s: float) -> None:
    """Wait until a child has written something, at most about `timeout_s` seconds."""
    asked = [child for child in children if child.alive]
    if asked:
        ray.wait([child.ask(timeout_s) for child in asked], num_returns=1, timeout=2 * timeout_s)
    for child in asked:
        child.collect()


@dataclass(slots=True)
class _ChildHosts:
    """Actors in one placement group."""

    group: PlacementGroup
    children: list[_RemoteChild]

    def close(self) -> None:
        """End all actors with their children, and free their room."""
        for child in self.children:
            child.kill()
        remove_placement_group(self.group)


def _open_hosts(
    count: int, learner: LearnerPlacement, *, module: str, variables: Mapping[str, str], patience_s: float
) -> _ChildHosts:
    """Start `count` children in the connected cluster, as close to each other as there is room.

    Raises ResourceError where there is none within the patience, or where a child cannot be started.
    """
    bundle = {"CPU": learner.cpus, **({"GPU": learner.gpus} if learner.gpus else {})}
    group = placement_group([bundle] * count, strategy="PACK")
    hosts = _ChildHosts(group, [])
    try:
        if not group.wait(patience_s):
            there = ", ".join(NodeRoom.of_node(node).text for node in ray.nodes() if node["Alive"])
            raise ResourceError(
                f"cluster.learner: {count} ranks of {learner.cpus:g} CPUs and {learner.gpus:g} GPUs each beside rank 0 "
                f"found no room within {patience_s:g} s ({there}); lower run.ranks, cpus or gpus, or add machines"
            )
        remote: Any = ray.remote  # its type knows no keyword
        actors = [
            remote(_ChildHost)
            .options(
                num_cpus=learner.cpus,
                num_gpus=learner.gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place),
            )
            .remote()
            for place in range(count)
        ]
        hosts.children.extend(map(_RemoteChild, actors))
        faults = ray.get([actor.open.remote(module, variables, str(Path.cwd())) for actor in actors])
        if wrong := sorted({fault for fault in faults if fault}):
            raise ResourceError(*wrong)
    except exceptions.RayError as error:
        hosts.close()
        raise ResourceError(f"cluster.learner: {' '.join(str(error).split())[:400]}") from None
    except BaseException:
        hosts.close()
        raise
    return hosts
