"""A fleet of replicas as one engine: requests in, completions out, whoever drew them and whoever was lost meanwhile."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np
from torch import Tensor

from hone.core.clock import Clock, SystemClock
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DivergedError, HoneError, ResourceError
from hone.core.fleet import AskAnswers, PublishedWeights, RunnerArithmetic, weights_digest
from hone.core.generation import GenerationStats, OnPublish, Request, ScoreRequest, ScoreResult
from hone.engine.canary import WeightFingerprint
from hone.engine.fleet.fleet_book import FleetBook, FleetLimits, ReplicaPhase
from hone.engine.fleet.replica import (
    AskAnswered,
    AskRefused,
    FleetEvent,
    FleetTransport,
    ReplicaAlive,
    ReplicaFailed,
    ReplicaJoined,
    ReplicaLoaded,
    ReplicaLost,
    ReplicaSettings,
    ReplicaUnreachable,
    TakenWeights,
    pack_weights,
)
from hone.engine.protocol import UnmergedAdapter
from hone.engine.session import EngineSession, check_adapters, check_requests, check_score_requests

# --------------------------------------------------------------------------------------------------------- fleet report


@dataclass(slots=True, kw_only=True)
class _ServedCounts:
    """Counts of one replica over the whole run."""

    asks: int = 0
    answers: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _FleetReport:
    """Counts of a fleet in this rollout, and over the run."""

    wait_s: float = 0.0
    """Time of this rollout in which requests waited and no replica worked."""
    publish_s: float = 0.0
    """Duration of the latest publication."""
    by_replica: dict[str, _ServedCounts] = field(default_factory=dict[str, _ServedCounts])
    """Over the run."""
    losses: list[str] = field(default_factory=list[str])
    """Lost replicas of the run, with cause."""
    _places: dict[str, str] = field(default_factory=dict[str, str])
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _lost: int = 0
    notes: list[str] = field(default_factory=list[str])
    """Notes of the run for the user."""

    def reset(self) -> None:
        """Begin the counts of a rollout."""
        self.wait_s = 0.0
        self._tokens.clear()

    def joined(self, replica: str, node: str) -> None:
        """Record the machine of a replica."""
        self._places[replica] = node

    def served(self, replica: str, answers: AskAnswers) -> None:
        """Record answers that were taken."""
        counts = self.by_replica.setdefault(replica, _ServedCounts())
        counts.asks += 1
        counts.answers += len(answers.request)
        counts.tokens += len(answers.tokens)
        self._tokens[replica] = self._tokens.get(replica, 0) + len(answers.tokens)

    def lost(self, replica: str, cause: str) -> None:
        """Record the loss of a replica."""
        self._lost += 1
        self.losses.append(f"{self.place_of(replica)}: {cause}")
        self.notes.append(f"{self.losses[-1]}; its work is asked of others, and another replica starts")

    def place_of(self, replica: str) -> str:
        """`replica 3 on node`."""
        node = self._places.get(replica)
        return replica if node is None else f"{replica} on {node}"

    def metrics(self, *, replicas: int, asked_again: int) -> Metrics:
        """Metrics of this rollout; `replicas` have the current weights. Losses, and requests
        that were `asked_again`, are counted since the last call."""
        total, lost, self._lost = sum(self._tokens.values()), self._lost, 0
        return {
            "fleet/replicas": float(replicas),
            "fleet/lost": float(lost),
            "fleet/asked_again": float(asked_again),
            "fleet/largest_share": max(self._tokens.values(), default=0) / total if total else 0.0,
            "fleet/wait_s": self.wait_s,
            "fleet/publish_s": self.publish_s,
        }

    def summary(self) -> str:
        """One sentence on the run."""
        shares = ", ".join(_share(self.place_of(name), counts) for name, counts in sorted(self.by_replica.items()))
        lost = f"; {len(self.losses)} replicas were lost" if self.losses else ""
        return f"fleet: {shares or 'nothing was asked'}{lost}"


def _share(place: str, counts: _ServedCounts) -> str:
    return f"{place} gave {counts.answers} answers of {counts.tokens} tokens"


# --------------------------------------------------------------------------------------------------------- fleet engine


_POLL_S: Final = 0.2
_STEP_S: Final = 0.02
"""Longest wait of `step`, whose caller has other work."""
_PINGS: Final = 4
"""Signs of life that are asked for within the patience."""
_REMEMBERED: Final = 64
"""Number of versions whose fingerprints are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """Rules of a fleet."""

    limits: FleetLimits
    mixed: bool = False
    """Replicas may compute by different arithmetic; the run then cannot be repeated to the bit."""


class FleetEngine(EngineSession):
    """Implements `core.generation.GenerationEngine` over a transport. Nothing is started before the first `publish`."""

    own_weights = True
    """True: replicas have weights of their own, which change on `publish` only."""

    def __init__(
        self,
        transport: FleetTransport,
        settings: ReplicaSettings,
        tensors: Callable[[], Mapping[str, Tensor]],
        *,
        rules: FleetRules,
        clock: Clock | None = None,
    ) -> None:
        """`tensors`: the trainer's weights, as they are when they are published."""
        self.transport, self.settings, self.rules = transport, settings, rules
        self.clock: Clock = clock or SystemClock()
        self.book, self.report = FleetBook(rules.limits), _FleetReport()
        self.fingerprints: dict[int, WeightFingerprint] = {}
        """Fingerprints of the latest versions."""
        self._tensors = tensors
        self._buffer: np.ndarray | None = None
        self._weights: PublishedWeights | None = None
        self._arithmetic: tuple[str, RunnerArithmetic] | None = None
        self._older: PublishedWeights | None = None
        self._scores: dict[int, AskAnswers] = {}
        """By the number of the texts."""
        self._work_s: dict[str | int, float] = {}
        self._pinged_s: dict[str, float] = {}
        self._faulty_loads = 0
        self._pump_lock = threading.Lock()
        super().__init__(threading.RLock(), slots=rules.limits.replicas * settings.slots)

    @property
    def version(self) -> int:
        """Version of the weights."""
        return self.book.version

    @property
    def note(self) -> str:
        """Notes for the user about what happened to replicas, one a line."""
        return "\n".join(self.report.notes)

    @property
    def on_publish(self) -> OnPublish:
        """Treatment of unfinished answers when weights are published."""
        return self.settings.on_publish

    def wait_arithmetic(self) -> RunnerArithmetic:
        """Arithmetic of the first replica, once it runs; after the first `publish`."""
        while self._arithmetic is None:
            self._pump()
        return self._arithmetic[1]

    def metrics(self) -> Metrics:
        """Metrics of the fleet since `reset_stats`."""
        with self._lock:
            ready = sum(one.phase is ReplicaPhase.READY for one in self.book.replicas.values())
            asked, self.book.asked_again = self.book.asked_again, 0
            return self.report.metrics(replicas=ready, asked_again=asked)

    def summary(self) -> str:
        """Shares of the replicas in the run's answers, and losses."""
        return self.report.summary()

    def reset_stats(self) -> None:
        """Begin the statistics anew."""
        super().reset_stats()
        self.report.reset()
        self._work_s = {}

    def close(self) -> None:
        """Drop all requests, and end the replicas."""
        super().close()
        self.transport.close()

    # ---------------------------------------------------------------------------------------- weights

    def publish(self, version: int) -> None:
        """Publish the trainer's weights; returns once every replica that had earlier ones has these, or has been
        silent for the patience. Replicas that join later get the newest.

        Raises ResourceError where nothing can be started or the weights find no room, DivergedError where a second
        replica does not sample from them.
        """
        began = self.clock.monotonic_s()
        with self._lock:
            if self._weights is None:
                self.transport.open()
            if self._buffer is None:
                self._buffer = np.zeros(self.settings.layout.nbytes, np.uint8)
            pack_weights(self._tensors(), self.settings.layout, self._buffer)
            if self._older is not None:
                self.transport.drop(self._older)  # the last ones may still be on their way to a replica
            self._older, self._weights = (
                self._weights,
                self.transport.put(version, self._buffer, weights_digest(self._buffer)),
            )
            expected = [one.name for one in self.book.replicas.values() if one.phase is ReplicaPhase.READY]
            self.book.published(version, began)
            for member in self.book.replicas.values():
                if member.phase is ReplicaPhase.LOADING:
                    self.transport.load(member.name, self._weights)
            self._start_missing()
        while self._awaits(expected, version) and self.clock.monotonic_s() - began < self.rules.limits.patience_s:
            self._pump()
        self.report.publish_s = self.clock.monotonic_s() - began

    def add_adapter(self, name: str, adapter: UnmergedAdapter) -> None:
        """Let requests name an unmerged adapter, which a replica fetches with the first ask that does. Raises
        ConfigError for one that cannot leave this process, and for servers; ResourceError where it finds no room."""
        if adapter.packed is None:
            raise ConfigError(f"adapter {name} cannot be sent to replicas: it has no bytes (UnmergedAdapter.packed)")
        flat = adapter.packed()
        with self._lock:
            number = self.book.adapters + 1
            self.book.offer(name, self.transport.put(-number, flat, weights_digest(flat)))

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter that no request names any more."""
        with self._lock:
            self.transport.drop(self.book.offers.pop(name))

    def _awaits(self, replicas: Sequence[str], version: int) -> bool:
        with self._lock:
            known = [self.book.replicas[name] for name in replicas if name in self.book.replicas]
            return self.book.version == version and any(one.phase is ReplicaPhase.LOADING for one in known)

    def pause(self) -> None:
        """Give nothing out until `resume`; what is out is finished."""
        self._paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._paused = False

    # --------------------------------------------------------------------------------------- requests

    def score(self, texts: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Compute log-probabilities of given tokens on one replica, with the arithmetic of sampling.

        Raises DataError naming every text that cannot be run.
        """
        self._check_texts(texts)
        if not texts:
            return []
        with self._lock:
            order = self.book.queue_texts(tuple(texts))
        while order not in self._scores:
            self._raise_if_paused()
            self._step()
        return list(self._scores.pop(order).scores)

    def submit_scores(self, texts: Sequence[ScoreRequest]) -> list[int]:
        """Queue texts to be scored, each by any replica; returns a number for each, by which `poll_scores` finds its
        result. Raises DataError naming every text that cannot be run."""
        self._check_texts(texts)
        with self._lock:
            return [self.book.queue_texts((text,)) for text in texts]

    def poll_scores(self, orders: Collection[int]) -> dict[int, ScoreResult]:
        """Take the results of these texts that are there already."""
        with self._lock:
            return {order: self._scores.pop(order).scores[0] for order in orders if order in self._scores}

    def cancel_scores(self, orders: Collection[int]) -> None:
        """Drop these texts: queued, running, or finished and not taken."""
        with self._lock:
            for replica, ask in self.book.cancel_texts(orders):
                self.transport.cancel(replica, ask)
            for order in orders:
                self._scores.pop(order, None)

    def step(self) -> None:
        """Give out what there is room for, and take what has come; waits for a moment where nothing has."""
        self._step(_STEP_S)

    def take_work(self) -> dict[str | int, float]:
        """Core-seconds that replicas told of since the last call or `reset_stats`, by request and by the number of a
        text; see `FleetBook.work_shares`."""
        with self._lock:
            work, self._work_s = self._work_s, {}
        return work

    def _check_texts(self, texts: Sequence[ScoreRequest]) -> None:
        check_score_requests(texts, context=self.settings.sequence_tokens, vocab=self.settings.vocab)
        check_adapters((text.adapter for text in texts), self.book.offers)

    def _check(self, requests: Sequence[Request]) -> None:
        check_requests(requests, context=self.settings.sequence_tokens, vocab=self.settings.vocab)
        check_adapters((request.adapter for request in requests), self.book.offers)
        decodes = self.settings.decodes or bool(self.settings.tokenizer_json)
        if not decodes and any(request.sampling.stop for request in requests):
            raise ValueError("stop strings need a tokenizer in the replicas; give ReplicaSettings.tokenizer_json")

    def _queue(self, requests: Sequence[Request], number: int) -> None:
        self.book.queue(requests, number)

    def _drop(self, request_ids: Collection[str] | None) -> None:
        for replica, ask in self.book.cancel(request_ids):
            self.transport.cancel(replica, ask)

    # ----------------------------------------------------------------------------------------- events

    def _step(self, wait_s: float = _POLL_S) -> None:
        """Give out what there is room for, and wait a moment for events."""
        if self._paused:
            return
        if self._weights is None:
            raise RuntimeError("a fleet has no weights before the first publish()")
        began = self.clock.monotonic_s()
        with self._lock:
            for replica, ask in self.book.give(began):
                self.transport.ask(replica, ask)
            idle = not any(one.asks for one in self.book.replicas.values())
        self._pump(wait_s)
        spent = self.clock.monotonic_s() - began
        with self._lock:
            self._stats.total_s += spent
            self.report.wait_s += spent if idle else 0.0

    def _pump(self, wait_s: float = _POLL_S) -> None:
        """Take events, of which one thread at a time does the waiting, and see to those who are late."""
        with self._pump_lock:
            events = self.transport.poll(wait_s)
        faults = list[HoneError]()
        with self._lock:
            for event in events:
                try:
                    self._hear(event)
                except HoneError as fault:  # the others have come as well, and some may go on without this one's work
                    faults.append(fault)
            now_s = self.clock.monotonic_s()
            for name in self.book.late(now_s):
                self.transport.end(name)
                self._lose(name, f"it was silent for {now_s - self.book.replicas[name].heard_s:.0f} s, and was ended")
            self._start_missing()
            self._ping(now_s)
        if faults:
            raise faults[0]

    def _hear(self, event: FleetEvent) -> None:
        now_s = self.clock.monotonic_s()
        match event:
            case AskAnswered():
                self._take(event, now_s)
            case ReplicaAlive():
                was_away = self._phase_of(event.replica) is ReplicaPhase.AWAY
                self.book.progress(event.replica, event.passes, now_s)
                if was_away and self._weights is not None:
                    self.transport.load(event.replica, self._weights)
            case ReplicaJoined():
                self._join(event, now_s)
            case ReplicaLoaded():
                self._loaded(event.replica, event.taken, now_s)
            case AskRefused():
                self.book.give_back(event.replica, event.number)
            case ReplicaUnreachable():
                self.book.away(event.replica)
            case ReplicaLost():
                self._lose(event.replica, event.cause)
            case ReplicaFailed():
                self._fail(event)

    def _phase_of(self, replica: str) -> ReplicaPhase | None:
        member = self.book.replicas.get(replica)
        return None if member is None else member.phase

    def _take(self, event: AskAnswered, now_s: float) -> None:
        record, answers = self.book.asks.get(event.number), event.answers
        work_s = answers.stats.total_s
        for name, share in self.book.work_shares(event.replica, now_s).items():
            self._work_s[name] = self._work_s.get(name, 0.0) + share * answers.core_s
        taken = self.book.answered(event.replica, event.number, answers.digest, now_s, work_s=work_s)
        if taken == "drop" or record is None:
            return
        self.report.served(event.replica, answers)
        if record.ask.texts and record.items:
            self._scores[record.items[0].order] = answers
            self._stats.scored_tokens += sum(len(text.tokens) for text in record.ask.texts)
        done = answers.completions(record.ask)
        self._done.extend(one for one in done if (one.request_id, one.sample_index) in self._in_flight)
        self._stats = _with_counts(self._stats, answers)

    def _join(self, event: ReplicaJoined, now_s: float) -> None:
        """Compare the replica's arithmetic with that of the first one, and send it the weights."""
        self.report.joined(event.replica, event.node)
        first = self._arithmetic = self._arithmetic or (f"{event.replica} on {event.node}", event.arithmetic)
        if (differences := event.arithmetic.differences(first[1])) and not self.rules.mixed:
            raise ResourceError(
                f"{event.replica} on {event.node} computes otherwise than {first[0]}: {'; '.join(differences)}. Their "
                "answers would differ in the last bits, and no run could be repeated; use equal machines and one "
                "installation, or set cluster.rollout.mixed = true"
            )
        if differences:
            self.report.notes.append(
                f"{event.replica} on {event.node}: {'; '.join(differences)}: this run cannot be repeated"
            )
        self.book.join(event.replica, now_s)
        if self._weights is not None:
            self.transport.load(event.replica, self._weights)

    def _loaded(self, replica: str, taken: TakenWeights, now_s: float) -> None:
        if taken.version != self.book.version:
            return  # newer ones are under way to it
        first = taken.fingerprint and self.fingerprints.setdefault(taken.version, taken.fingerprint)
        while len(self.fingerprints) > _REMEMBERED:
            del self.fingerprints[next(iter(self.fingerprints))]
        if first and taken.fingerprint and first.runner_bits != taken.fingerprint.runner_bits and not self.rules.mixed:
            error = f"{replica} gives the canary's tokens other log-probabilities than the others, from equal weights"
            self._fail(ReplicaFailed(replica=replica, error=DivergedError(error)))
            return
        self.book.ready(replica, taken.version, now_s)

    def _fail(self, event: ReplicaFailed) -> None:
        """One replica with wrong weights is replaced; a second one, and any other error, ends the run."""
        self._faulty_loads += 1
        if event.number is not None or self._faulty_loads > 1 or not isinstance(event.error, DivergedError):
            place = self.report.place_of(event.replica)
            error = type(event.error)(*(f"{place}: {message}" for message in event.error.messages))
            asked = self.book.asks.get(event.number or 0)
            error.work = frozenset(item.key for item in asked.items) if asked is not None else frozenset()
            raise error
        self.transport.end(event.replica)
        self._lose(event.replica, str(event.error))

    def _lose(self, replica: str, cause: str) -> None:
        if replica in self.book.replicas:
            self.report.lost(replica, cause)
            self.book.gone(replica, cause)

    def _start_missing(self) -> None:
        for _ in range(self.book.vacancies):
            self.book.start(self.transport.start(), self.clock.monotonic_s())

    def _ping(self, now_s: float) -> None:
        """Ask for a sign of life where one is due; a replica that generates a long answer gives it."""
        for member in self.book.replicas.values():
            since_s = max(member.heard_s, self._pinged_s.get(member.name, -np.inf))
            due = now_s - since_s >= self.rules.limits.patience_s / _PINGS
            if due and (member.asks or member.phase is ReplicaPhase.AWAY):
                self._pinged_s[member.name] = now_s
                self.transport.ping(member.name)


def _with_counts(stats: GenerationStats, answers: AskAnswers) -> GenerationStats:
    """Counters of the fleet after these answers. Times are summed over replicas, but for the whole."""
    own = asdict(answers.stats)
    summed = GenerationStats(**{name: value + own[name] for name, value in asdict(stats).items()})
    return replace(
        summed,
        slots=stats.slots,
        pages=stats.pages,
        total_s=stats.total_s,
        scored_tokens=stats.scored_tokens,
        tokens=stats.tokens + len(answers.tokens),
    )
