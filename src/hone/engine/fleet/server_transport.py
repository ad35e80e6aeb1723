"""Servers as the replicas of a fleet: a client of each, whose calls wait in threads of this process.

Weights go to all of them through one folder. A server that goes away is a lost replica: its requests are asked of the
others, and it is used again once it answers, with the newest weights.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, HoneError, ResourceError
from hone.core.fleet import GenerationAsk, PublishedWeights, RunnerArithmetic
from hone.engine.clients.handover import WeightTransfer
from hone.engine.clients.http import RequestCancelledError, ServerEngine, ServerError, UnreachableError
from hone.engine.clients.remote import RemoteEngine, open_weight_transfer
from hone.engine.clients.servers import open_protocol
from hone.engine.fleet.fleet_book import FleetLimits
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
from hone.engine.fleet.replica import (
    AskAnswered,
    AskRefused,
    AskRefusedError,
    AskSession,
    FleetEvent,
    ReplicaAlive,
    ReplicaFailed,
    ReplicaJoined,
    ReplicaLoaded,
    ReplicaLost,
    ReplicaSettings,
    TakenWeights,
    layout_of,
)
from hone.engine.protocol import GenerationModel
from hone.engine.session import TokenizerRules

_THREADS: Final = 64
"""Largest number of asks that wait for one server."""
_LOOK_S: Final = 0.05
_LONGEST_LOOK_S: Final = 5.0
"""Intervals at which a server that does not answer is looked at again, growing from the first to the second."""


@dataclass(slots=True)
class _ServerReplica:
    """A server with its client, and the threads that wait for it."""

    url: str
    engine: RemoteEngine
    asks: AskSession
    threads: ThreadPoolExecutor
    control: ThreadPoolExecutor
    """One thread: the server is met and takes up weights in turn."""
    ended: Event = field(default_factory=Event)
    joined: bool = False
    healthy: int = 0
    """Number of times that the server said so."""


class _ServerTransport:
    """Implements `FleetTransport` over servers that run already. None is asked anything before the first `start`."""

    def __init__(
        self,
        urls: Sequence[str],
        connect: Callable[[str], RemoteEngine],
        weights: WeightTransfer,
        *,
        wait_s: float,
        clock: Clock | None = None,
    ) -> None:
        """`connect` makes the client of an address, over `weights`; it must not wait for a server itself. `wait_s`:
        longest time in which no server at all may answer."""
        self.urls, self.weights, self.wait_s = tuple(urls), weights, wait_s
        self.clock: Clock = clock or SystemClock()
        self._connect = connect
        self._count = 0
        self._replicas: dict[str, _ServerReplica] = {}
        self._events: SimpleQueue[FleetEvent | BaseException] = SimpleQueue()

    def open(self) -> None:
        """Do nothing: servers are met one by one."""

    def start(self) -> str:
        """Connect to a server that has no client, as soon as it answers."""
        self._count += 1
        taken = {one.url for one in self._replicas.values()}
        url = next(url for url in self.urls if url not in taken)
        engine = self._connect(url)
        threads, control = (ThreadPoolExecutor(count, thread_name_prefix="hone-server") for count in (_THREADS, 1))
        name = f"server {self._count}"
        replica = self._replicas[name] = _ServerReplica(url, engine, AskSession(engine), threads, control)
        self._do(replica.control, name, 0, self._join, name, replica)
        return name

    def put(self, version: int, flat: NDArray[np.uint8], digest: str) -> PublishedWeights:
        """Write the weights to the folder. Raises ResourceError, and ConfigError for an adapter."""
        del flat
        if version < 0:
            raise ConfigError("adapters by request need replicas of hone's own engine, not servers")
        try:
            self.weights.save_weights(version)
        except OSError as error:
            raise ResourceError(f"weights for the servers cannot be written: {error}") from None
        return PublishedWeights(version=version, digest=digest, parts=(str(self.weights.folder),))

    def drop(self, weights: PublishedWeights) -> None:
        """Do nothing: the next ones are written over them."""

    def load(self, replica: str, weights: PublishedWeights) -> None:
        """Let a server load the folder."""
        if (one := self._replicas.get(replica)) is not None:
            self._do(one.control, replica, 0, self._load, replica, one, weights)

    def ask(self, replica: str, ask: GenerationAsk) -> None:
        """Ask a server."""
        if (one := self._replicas.get(replica)) is not None:
            self._do(one.threads, replica, ask.number, self._answer, replica, one, ask)

    def cancel(self, replica: str, number: int) -> None:
        """Tell a server that nobody waits for the ask any more."""
        if (one := self._replicas.get(replica)) is not None:
            self._do(one.threads, replica, 0, one.asks.cancel, number)

    def ping(self, replica: str) -> None:
        """Ask a server whether it is healthy."""
        if (one := self._replicas.get(replica)) is not None:
            self._do(one.threads, replica, 0, self._ask_health, replica, one)

    def end(self, replica: str) -> None:
        """Disconnect from a server. It goes on running, and a later `start` may use it again."""
        if (one := self._replicas.pop(replica, None)) is not None:
            one.ended.set()
            one.engine.protocol.link.close()
            one.threads.shutdown(wait=False, cancel_futures=True)
            one.control.submit(one.engine.disconnect)
            one.control.shutdown(wait=False)

    def poll(self, timeout_s: float) -> list[FleetEvent]:
        """Events since the last call; waits for the first one up to `timeout_s`."""
        events: list[FleetEvent] = []
        with contextlib.suppress(Empty):
            event = self._events.get(timeout=timeout_s)
            while True:
                if isinstance(event, BaseException):
                    raise event
                if event.replica in self._replicas:
                    events.append(event)
                event = self._events.get_nowait()
        for event in events:
            if isinstance(event, ReplicaLost):
                self.end(event.replica)
        return events

    def close(self) -> None:
        """Disconnect from all servers, and remove the weights."""
        for name in list(self._replicas):
            self.end(name)
        self.weights.close()

    # ----------------------------------------------------------------------------------------- threads

    def _do(self, pool: ThreadPoolExecutor, name: str, number: int, work: Callable[..., None], *given: object) -> None:
        """Run `work` in a thread. An unreachable server is a lost replica, another error of hone's a failed one."""

        def heard(done: Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, UnreachableError):
                self._events.put(ReplicaLost(replica=name, cause=str(error)))
            elif isinstance(error, HoneError):
                self._events.put(ReplicaFailed(replica=name, error=error, number=number or None))
            elif error is not None:
                self._events.put(error)

        pool.submit(work, *given).add_done_callback(heard)

    def _join(self, name: str, replica: _ServerReplica) -> None:
        began, wait_s = self.clock.monotonic_s(), _LOOK_S
        while not replica.engine.protocol.alive():
            waited_s = self.clock.monotonic_s() - began
            if waited_s >= self.wait_s and not any(one.joined for one in list(self._replicas.values())):
                raise ServerError(
                    f"no server answers: {', '.join(self.urls)}; waited {waited_s:.0f} s "
                    "(rollout.runner.reconnect_timeout_s)"
                )
            if replica.ended.wait(wait_s):
                return
            wait_s = min(2 * wait_s, _LONGEST_LOOK_S)
        server = replica.engine.features().server.removesuffix(f" at {replica.url}")
        arithmetic = RunnerArithmetic(runner=server, device="server", build="its own")
        replica.joined = True
        self._events.put(ReplicaJoined(replica=name, node=replica.url, arithmetic=arithmetic))

    def _load(self, name: str, replica: _ServerReplica, weights: PublishedWeights) -> None:
        version = weights.version
        try:
            if self.weights.saved_version == version:
                replica.engine.take_saved(version)
        except ServerError as error:
            if self.weights.saved_version == version or isinstance(error, UnreachableError):
                raise
        if self.weights.saved_version == version:  # else newer weights have replaced them, and are loaded next
            replica.asks.forget_turns()
            taken = TakenWeights(
                version=version, digest=weights.digest, fingerprint=self.weights.fingerprints.get(version)
            )
            self._events.put(ReplicaLoaded(replica=name, taken=taken))

    def _answer(self, name: str, replica: _ServerReplica, ask: GenerationAsk) -> None:
        try:
            answers = replica.asks.answer(ask)
        except (AskRefusedError, RequestCancelledError):
            self._events.put(AskRefused(replica=name, number=ask.number))
        else:
            self._events.put(AskAnswered(replica=name, number=ask.number, answers=answers))

    def _ask_health(self, name: str, replica: _ServerReplica) -> None:
        if replica.engine.protocol.alive():
            replica.healthy += 1
            self._events.put(ReplicaAlive(replica=name, passes=replica.healthy))


# ------------------------------------------------------------------------------------------- opening a fleet of servers


_LEAST_PATIENCE_S = 1.0


def open_server_fleet(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> FleetEngine:
    """Build an engine over the servers of `config`, with `slots` answers at a time on each, for the weights of `model`
    as `save` writes them. Sends no request yet. Raises ConfigError for an invalid address."""
    protocols = {url: open_protocol(config, url) for url in config.urls}
    transfer = open_weight_transfer(config, model=model, save=save, vocab=text.vocab)

    def connect(url: str) -> RemoteEngine:
        return RemoteEngine(
            protocols.pop(url, None) or open_protocol(config, url),  # a client that was ended is not used again
            text,
            slots=slots,
            seed=seed,
            weight_transfer=transfer,
            on_publish=config.on_publish,
            reconnect_timeout_s=0.0,
        )

    patience_s = max(_LEAST_PATIENCE_S, config.reconnect_timeout_s)
    limits = FleetLimits(
        replicas=len(config.urls),
        slots=slots,
        patience_s=patience_s,
        start_s=float("inf"),  # the transport knows how long a server may be away
        exact=False,
    )
    settings = ReplicaSettings(
        layout=layout_of({}),  # weights go by the folder
        runner="auto",
        vocab=text.vocab,
        eos=tuple(text.eos),
        decodes=text.decode is not None,
        slots=slots,
        sequence_tokens=model.config.max_positions,
        seed=seed,
        threads=1,
        on_publish=config.on_publish,
    )
    transport = _ServerTransport(config.urls, connect, transfer, wait_s=config.reconnect_timeout_s)
    return FleetEngine(transport, settings, dict, rules=FleetRules(limits=limits, mixed=True))
