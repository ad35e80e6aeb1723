"""Fleets of Ray actors over a tiny model, and ways to harm their processes."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from engines import CONFIG, VOCAB, by_name, engine, request, same
from inline_fleet import spec_of

from hone.core.generation import generate
from hone.engine.fleet.fleet_book import FleetLimits, ReplicaPhase
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
from hone.models.language.init import new_model
from hone.parallel.config import ClusterConfig
from hone.parallel.ray_transport import RayTransport, ReplicaSpec, start_ticks

REQUESTS = [request(number, samples=3) for number in range(12)]


def embedded_answers(model, *, round=3):
    """The answers of the embedded engine."""
    embedded = engine(model, slots=4, kind="native")
    embedded.publish(0)
    return by_name(generate(embedded, REQUESTS, round=round))


@contextmanager
def ray_fleet(model, *, address="auto", patience_s=60.0, losses=20, **rollout) -> Iterator[FleetEngine]:
    """A fleet in the connected cluster, closed at the end."""
    settings = spec_of(model, vocab=VOCAB, runner="native", slots=6)
    spec = ReplicaSpec(
        model=model.config, dtype="float32", compute="float32", bitwise=False, device="cpu", settings=settings
    )
    config = ClusterConfig.model_validate(
        {"address": address, "patience_s": patience_s, "rollout": {"cpus": 0.5} | rollout}
    )
    transport = RayTransport(config, spec)
    table = config.rollout
    limits = FleetLimits(
        replicas=table.replicas, spares=table.spares, slots=6, patience_s=patience_s, losses_allowed=losses
    )
    fleet = FleetEngine(transport, settings, model.stored_tensors, rules=FleetRules(limits=limits))
    try:
        yield fleet
    finally:
        fleet.close()


def transport_of(fleet: FleetEngine) -> RayTransport:
    """The fleet's transport."""
    assert isinstance(fleet.transport, RayTransport)
    return fleet.transport


def step_until(fleet: FleetEngine, ready: Callable[[], bool], *, seconds: float = 300.0) -> None:
    """Let the fleet work until `ready`."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came so far"
        fleet._step()


def ready_replicas(fleet: FleetEngine) -> list[str]:
    """Replicas with the current weights."""
    return [one.name for one in fleet.book.replicas.values() if one.phase is ReplicaPhase.READY]


def busy_replica(fleet: FleetEngine) -> str:
    """A replica that has been asked and has not answered."""
    step_until(fleet, lambda: any(one.asks for one in fleet.book.replicas.values()))
    return next(one.name for one in fleet.book.replicas.values() if one.asks)


def harm(fleet: FleetEngine, replica: str, number: int) -> int:
    """Send a signal to a replica's process, and return its pid. The process is known by its start, too."""
    hello = transport_of(fleet)._hellos[replica]
    assert start_ticks(hello.pid) == hello.start_ticks is not None
    os.kill(hello.pid, number)
    return hello.pid


def rest_of(fleet: FleetEngine):
    """The answers that are left."""
    return by_name(iter(fleet.next_completion, None))


def equal(left, right) -> bool:
    """True if the answers are equal to the bit."""
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


def tiny_model(seed: int = 1):
    """A decoder of 20,000 parameters."""
    return new_model(CONFIG, seed=seed)
