"""A fleet in one process: real replicas over a transport without processes, in virtual time, with faults by chance."""

import heapq
import threading
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import numpy as np
from manual_clock import ManualClock
from torch import Tensor

from hone.core.errors import HoneError
from hone.core.fleet import GenerationAsk, PublishedWeights
from hone.core.random import generator
from hone.engine.fleet.fleet_book import FleetLimits
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
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
    layout_of,
)
from hone.engine.protocol import UnmergedAdapter
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.run.store.codec import state_from_bytes

PATIENCE_S = 10.0


def read_adapter(model, flat: np.ndarray) -> UnmergedAdapter:
    """As replicas on Ray read one."""
    adapter = LoraAdapter.unpacked(model, state_from_bytes(flat))
    return UnmergedAdapter(product=adapter.added_product, factors=adapter.stacked_factors)


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """Chances of faults for each ask."""

    lost: float = 0.0
    hung: float = 0.0
    twice: float = 0.0
    flutter: float = 0.0


@dataclass
class InlineTransport:
    """Implements `FleetTransport`: a replica answers at once, and its answer arrives after a random time."""

    model: Decoder
    spec: ReplicaSettings
    clock: ManualClock
    faults: FaultRates = field(default_factory=FaultRates)
    seed: int = 0
    start_s: float = 0.1

    def __post_init__(self) -> None:
        self.draws = generator(self.seed, "inline fleet")
        self.replicas: dict[str, GenerationReplica] = {}
        self.hung_until: dict[str, float] = {}
        self.queue: list[tuple[float, int, str, FleetEvent]] = []
        self.count = self.started = 0
        self.happened: dict[str, int] = {}
        self.asked: list[tuple[str, int]] = []
        self.is_open = False
        self.dropped: list[int] = []

    def open(self) -> None:
        self.is_open = True

    def start(self) -> str:
        self.started += 1
        name = f"replica {self.started}"
        replica = self.replicas[name] = GenerationReplica(deepcopy(self.model), self.spec, read_adapter)
        self._later(self.start_s, ReplicaJoined(replica=name, node="here", arithmetic=replica.arithmetic()))
        return name

    def put(self, version: int, flat: np.ndarray, digest: str) -> PublishedWeights:
        copy = flat.copy()
        copy.setflags(write=False)
        return PublishedWeights(version=version, digest=digest, parts=(copy,))

    def drop(self, weights: PublishedWeights) -> None:
        self.dropped.append(weights.version)

    def load(self, replica: str, weights: PublishedWeights) -> None:
        if replica not in self.replicas:
            return
        (flat,) = weights.parts
        assert isinstance(flat, np.ndarray)
        try:
            taken = self.replicas[replica].load(weights.version, flat, weights.digest)
        except HoneError as error:
            self._later(0.01, ReplicaFailed(replica=replica, error=error))
        else:
            self._later(0.01, ReplicaLoaded(replica=replica, taken=taken))

    def ask(self, replica: str, ask: GenerationAsk) -> None:
        self.asked.append((replica, ask.number))
        if replica not in self.replicas:
            return
        delay, chance = 0.05 + self.draws.random(), self.draws.random()
        fault = self._fault(chance)
        self.happened[fault] = self.happened.get(fault, 0) + 1
        if fault == "lost":
            self._later(delay, ReplicaLost(replica=replica, cause="killed by signal 9"))
            return
        if fault == "flutter":
            self._later(delay, ReplicaUnreachable(replica=replica))
            self._later(delay + 3.0, ReplicaAlive(replica=replica, passes=0))
            return
        if fault == "hung":
            delay += PATIENCE_S * (1.0 + 2.0 * self.draws.random())
            self.hung_until[replica] = self.clock.time_s + delay
        event = self.answer(replica, ask)
        self._later(delay, event)
        if fault == "twice":
            self._later(delay + 0.5, event)

    def answer(self, replica: str, ask: GenerationAsk) -> FleetEvent:
        try:
            answers = self.replicas[replica].answer(ask, lambda offer: offer.parts[0])
        except AskRefusedError:
            return AskRefused(replica=replica, number=ask.number)
        return AskAnswered(replica=replica, number=ask.number, answers=answers)

    def cancel(self, replica: str, number: int) -> None:
        """Nothing: answers are there at once."""

    def ping(self, replica: str) -> None:
        if replica in self.replicas and self.hung_until.get(replica, 0.0) <= self.clock.time_s:
            self._later(0.01, ReplicaAlive(replica=replica, passes=self.replicas[replica].asks.passes))

    def end(self, replica: str) -> None:
        self.replicas.pop(replica, None)

    def poll(self, timeout_s: float) -> list[FleetEvent]:
        limit = self.clock.time_s + timeout_s
        if not self.queue or self.queue[0][0] > limit:
            self.clock.time_s = limit
            return []
        at_s, _, replica, event = heapq.heappop(self.queue)
        self.clock.time_s = max(self.clock.time_s, at_s)
        if replica not in self.replicas:
            return []
        if isinstance(event, ReplicaLost):
            del self.replicas[replica]
        return [event]

    def close(self) -> None:
        self.is_open = False
        self.replicas.clear()

    def _fault(self, chance: float) -> str:
        for name in ("lost", "hung", "twice", "flutter"):
            rate = {"lost": self.faults.lost, "hung": self.faults.hung, "twice": self.faults.twice}.get(
                name, self.faults.flutter
            )
            if chance < rate:
                return name
            chance -= rate
        return "none"

    def _later(self, delay_s: float, event: FleetEvent) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.clock.time_s + delay_s, self.count, event.replica, event))


@dataclass
class ThreadedTransport(InlineTransport):
    """Replicas that answer in threads, in real time. A replica that has run three passes waits for weights, for a
    moment and a number of times at most; the replica of one ask is lost."""

    stops: int = 12
    lost_ask: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.events: SimpleQueue[FleetEvent] = SimpleQueue()

    def start(self) -> str:
        name = super().start()
        replica, asks = self.replicas[name], self.replicas[name].asks

        def count_pass() -> bool:
            asks.passes += 1
            before, end = replica.engine.version, time.monotonic() + 0.5
            if asks.passes % 3 == 0 and self.stops > 0:
                self.stops -= 1
                while replica.engine.version == before and time.monotonic() < end:
                    time.sleep(0.005)
            return False

        asks._count_pass = count_pass
        return name

    def ask(self, replica: str, ask: GenerationAsk) -> None:
        self.asked.append((replica, ask.number))
        if len(self.asked) == self.lost_ask:
            del self.replicas[replica]
            self._later(0.0, ReplicaLost(replica=replica, cause="killed by signal 9"))
        elif replica in self.replicas:
            threading.Thread(target=lambda: self.events.put(self.answer(replica, ask)), daemon=True).start()

    def poll(self, timeout_s: float) -> list[FleetEvent]:
        try:
            event = self.events.get(timeout=timeout_s)
        except Empty:
            return []
        return [event] if event.replica in self.replicas or isinstance(event, ReplicaLost) else []

    def _later(self, delay_s: float, event: FleetEvent) -> None:
        self.events.put(event)


def spec_of(model, *, vocab: int, slots: int = 4, seed: int = 0, context: int = 200, **changes) -> ReplicaSettings:
    """Settings of replicas of a decoder, with the torch runner."""
    given = {
        "layout": layout_of(model.stored_tensors()),
        "runner": "torch",
        "vocab": vocab,
        "eos": (0,),
        "slots": slots,
        "sequence_tokens": context,
        "seed": seed,
        "threads": 1,
    }
    return ReplicaSettings(**given | changes)


def inline_engine(
    model, spec: ReplicaSettings, *, replicas: int = 2, spares: int = 0, losses: int = 1000, **options
) -> tuple[FleetEngine, InlineTransport]:
    """A fleet over `model`, and its transport; `options` of the transport, its class, `clock` and `mixed`."""
    clock = options.pop("clock", ManualClock())
    mixed = options.pop("mixed", False)
    transport = options.pop("transport", InlineTransport)(model, spec, clock, **options)
    limits = FleetLimits(
        replicas=replicas,
        spares=spares,
        slots=spec.slots,
        patience_s=PATIENCE_S,
        losses_allowed=losses,
        losses_of_work=1000,
    )

    def tensors() -> Mapping[str, Tensor]:
        return model.stored_tensors()

    return FleetEngine(transport, spec, tensors, rules=FleetRules(limits=limits, mixed=mixed), clock=clock), transport
