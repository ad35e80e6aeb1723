"""Ray clusters of nodes on this machine, and harm to the replicas that stand on them."""

import contextlib
import logging
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORE = 256 << 20


@contextlib.contextmanager
def connected_nodes(count: int) -> Iterator[Any]:
    """A connected cluster of nodes on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray  # noqa: PLC0415 - its import warns
        from ray.cluster_utils import Cluster  # noqa: PLC0415

        head = {"num_cpus": 4, "object_store_memory": STORE, "include_dashboard": False}
        # Nodes are added by another thread, where Ray could not set its handlers for the end of the program.
        cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        for _ in range(count - 1):
            cluster.add_node(num_cpus=4, object_store_memory=STORE)
        ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def replicas() -> list[int]:
    """Processes of this program's replicas that are not stopped."""
    children: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append((int(path.name), fields[0]))
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        for child, state in children.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                is_replica = b"ray::ReplicaActor" in Path(f"/proc/{child}/cmdline").read_bytes()
                found += [child] if is_replica and state not in "TZ" else []
    return found


def cpu_s_of(process: int) -> float:
    """CPU seconds that a process has used; 0 if there is none."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass
class CpuThread:
    """Notes the CPU seconds of this process and its replicas whenever a run has written the metrics of a step."""

    metrics: Path
    over: bool = False

    def __enter__(self) -> "CpuThread":
        self.used: dict[int, float] = {}
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over = True
        self.thread.join()

    def of_a_step(self) -> float:
        """Mean after the second step: the first ones wait for replicas to start."""
        steps = [step for step in self.used if step >= 2]
        first, last = min(steps), max(steps)
        return (self.used[last] - self.used[first]) / max(1, last - first)

    def _work(self) -> None:
        written, there = 0, list[int]()
        while not self.over:
            time.sleep(0.01)
            with contextlib.suppress(OSError):
                size = self.metrics.stat().st_size
                if size > written:
                    written, there = size, there or replicas()
                    step = self.metrics.read_bytes().count(b"\n")
                    self.used[step] = time.process_time() + sum(map(cpu_s_of, there))


@dataclass
class HarmingThread:
    """Harms replicas at random moments until `left` harms are done."""

    harm: Callable[[random.Random], bool]
    left: int
    over: bool = False

    def __enter__(self) -> "HarmingThread":
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over = True
        self.thread.join()

    def _work(self) -> None:
        chance = random.Random(0)
        while self.left and not self.over:
            time.sleep(chance.uniform(1.0, 8.0))
            self.left -= self.harm(chance)


def by_signal(number: int) -> Callable[[random.Random], bool]:
    """A signal to a replica."""

    def harm(chance: random.Random) -> bool:
        there = replicas()
        if not there:
            return False
        os.kill(chance.choice(there), number)
        return True

    return harm


def by_node(cluster: Any) -> Callable[[random.Random], bool]:  # noqa: ANN401 - Ray's
    """The end of a node that is not the head, and a new node in its place."""

    def harm(chance: random.Random) -> bool:
        if not replicas():
            return False
        cluster.remove_node(chance.choice(sorted(cluster.worker_nodes, key=lambda node: node.node_id)))
        cluster.add_node(num_cpus=4, object_store_memory=STORE)
        time.sleep(chance.uniform(4.0, 8.0))
        return True

    return harm
