"""Bookkeeping of a fleet: which replica has been asked what, who is late, and what has to be asked again.

A state machine without processes, clocks or chance: it is told of everything that happens, and of the time. Nothing
here decides an answer, which depends on the weights, the seed and the request alone.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Literal

from hone.core.errors import DataError, DivergedError, LostResourceError
from hone.core.fleet import GenerationAsk, PublishedWeights
from hone.core.generation import Request, ScoreRequest

# -------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """Limits of a fleet."""

    replicas: int
    """Number of replicas that are given work at the same time; further ones are spares."""
    spares: int = 0
    """Number of replicas that have the weights and are given work only in the place of another."""
    slots: int
    """Answers that one replica generates at the same time."""
    patience_s: float = 120.0
    """Silence after which a replica's asks are also given to another one; after twice as long it is to be ended."""
    start_s: float = 300.0
    """Longest time from the start of a replica to its first word."""
    losses_allowed: int = 20
    """Number of replicas that may be lost per 100 versions, an adapter counting as one."""
    exact: bool = True
    """Replicas give equal bits: two answers to one ask are compared."""
    losses_of_work: int = 3
    """Number of replicas lost one after the other after which their common prompt is taken for the cause."""


class ReplicaPhase(Enum):
    """Phase of a replica."""

    STARTING = auto()
    """Its process starts."""
    LOADING = auto()
    """It was not heard to have the current weights."""
    READY = auto()
    """It has the current weights."""
    AWAY = auto()
    """It cannot be reached; it may come back."""


@dataclass(slots=True, eq=False)
class _ReplicaRecord:
    """Record of a replica."""

    name: str
    heard_s: float
    """Last sign of life, or the time at which it was first given something to do."""
    phase: ReplicaPhase = ReplicaPhase.STARTING
    asks: set[int] = field(default_factory=set[int])
    passes: int = -1
    """Forward passes that it was last heard to have run."""
    told_s: float = 0.0
    """When it last told what it had worked."""
    silent: bool = False
    """True if it was not heard of for the patience: it gets nothing more until it is."""


@dataclass(slots=True, eq=False)
class _WorkItem:
    """A request, or texts to score together: what is given out and given back as one."""

    order: int
    round: int
    request: Request | None = None
    texts: tuple[ScoreRequest, ...] = ()
    losses: int = 0
    """Number of replicas that were lost one after the other while they held it."""
    returned: bool = False
    """True if it was given out before; it then goes first."""

    @property
    def answers(self) -> int:
        """Number of answers and scores that it asks for."""
        return len(self.texts) if self.request is None else self.request.samples

    @property
    def name(self) -> str:
        """Name for a person."""
        return f"{len(self.texts)} texts to score" if self.request is None else f"request {self.request.id!r}"

    @property
    def key(self) -> str | int:
        """Id of the request, or number of the texts."""
        return self.order if self.request is None else self.request.id

    @property
    def priority(self) -> tuple[bool, int, int]:
        """Sort key: work that was given back first, then the longest expected answers."""
        return not self.returned, 0 if self.request is None else -self.request.expected_tokens, self.order


@dataclass(slots=True, eq=False)
class _AskRecord:
    """An ask that is out, and the replicas that hold it."""

    ask: GenerationAsk
    items: list[_WorkItem]
    holders: dict[str, float] = field(default_factory=dict[str, float])
    """Replicas that hold it, and since when."""
    wants_another: bool = False
    """True if its holders are silent: the next replica with room gets it as well."""
    digest: str = ""
    """That of the first answer; empty before there is one."""

    @property
    def alone(self) -> bool:
        """True for work that two replicas did not survive: its next replica gets nothing else meanwhile."""
        return any(item.losses >= 2 for item in self.items)


# ----------------------------------------------------------------------------------------------------------- fleet book


_PIECES: Final = 8
"""Number of asks that a replica's share is cut into, and most prompts of an ask whose work is worth a call."""
_ASK_S: Final = 0.05
"""Least work of an ask, seconds: a share with less than twice as much is not cut."""
_ASKS: Final = 2
"""Asks that a replica may hold whatever their size: the second waits while the first is answered."""
_TICK_S: Final = 1e-6
"""Shortest time for which an ask is held."""
_MEMORY: Final = 0.9
"""Weight of what is known of the work per request against the latest answers."""
_WINDOW: Final = 100
"""Versions and adapters over which losses are counted."""


class FleetBook:
    """Records of replicas, and of work that waits, is out, or was answered. No call waits for anything.

    Work that was queued and not cancelled waits, is out, or was answered: exactly one of these, after any loss.
    """

    def __init__(self, limits: FleetLimits) -> None:
        self.limits = limits
        self.version = -1
        """Version of the weights that answer; nothing is given before the first."""
        self.replicas: dict[str, _ReplicaRecord] = {}
        """In the order in which they were started."""
        self.asks: dict[int, _AskRecord] = {}
        self.asked_again = 0
        """Number of requests that were given to more than one replica."""
        self.adapters = 0
        """Number of adapters that were offered so far."""
        self.offers: dict[str, PublishedWeights] = {}
        """Adapters that asks may name."""
        self._waiting: list[_WorkItem] = []
        self._orders, self._numbers = 0, 0
        self._losses: list[tuple[int, str]] = []
        self._homes: dict[tuple[str, int], str] = {}
        self._work_s, self._worked = 0.0, 0.0

    # ------------------------------------------------------------------------------------------- work

    def queue(self, requests: Sequence[Request], round: int) -> None:
        """Add requests; the longest expected answers are given out first."""
        for request in requests:
            self._waiting.append(_WorkItem(self._next_order(), round, request=request))

    def offer(self, name: str, adapter: PublishedWeights) -> None:
        """Let asks name an adapter."""
        self.adapters += 1
        self.offers[name] = adapter

    def queue_texts(self, texts: tuple[ScoreRequest, ...]) -> int:
        """Add texts that one replica is to score; returns their number."""
        order = self._next_order()
        self._waiting.append(_WorkItem(order, 0, texts=texts))
        return order

    @property
    def pending(self) -> int:
        """Number of requests and groups of texts without an answer."""
        return len(self._waiting) + sum(len(record.items) for record in self.asks.values() if not record.digest)

    def give(self, now_s: float) -> list[tuple[str, GenerationAsk]]:
        """Return the asks to send now, each with its replica."""
        asks = self._give_again(now_s)
        size = self._ask_size()
        self._waiting.sort(key=lambda item: item.priority)
        while self._waiting:
            items = self._next_items(size)
            record = _AskRecord(self._new_ask(items), items)
            holder = self._holder(record)
            if holder is None:
                break
            self._waiting = [item for item in self._waiting if item not in items]
            self.asks[record.ask.number] = record
            self._hand(record, holder, now_s)
            asks.append((holder.name, record.ask))
        return asks

    def answered(
        self, replica: str, number: int, digest: str, now_s: float, *, work_s: float = 0.0
    ) -> Literal["take", "drop"]:
        """Record an answer, for which the replica worked `work_s`: the first to an ask is taken, a later one compared
        by its digest and dropped.

        Raises DivergedError when two replicas answered differently; they may where weights were published meanwhile.
        """
        record, member = self.asks.get(number), self.replicas.get(replica)
        if member is not None:
            self._heard(member, now_s)
            member.asks.discard(number)
        if record is None:
            return "drop"
        first, record.digest = record.digest, record.digest or digest
        record.holders.pop(replica, None)
        record.wants_another = False
        if not record.holders:
            del self.asks[number]
        if not first:
            for one in record.ask.requests:
                samples = range(one.first_sample, one.first_sample + one.samples) if one.keep_s else ()
                self._homes.update(((one.id, sample), replica) for sample in samples)
            self._work_s = _MEMORY * self._work_s + work_s
            self._worked = _MEMORY * self._worked + len(record.ask.requests)
            return "take"
        if self.limits.exact and first != digest and record.ask.version == self.version:
            names = ", ".join(item.name for item in record.items)
            raise DivergedError(
                f"two replicas answered {names} differently with the weights of version {record.ask.version} "
                f"({replica}: digest {digest}, before it {first}); replicas of one fleet must compute the same bits"
            )
        return "drop"

    def work_shares(self, replica: str, now_s: float) -> dict[str | int, float]:
        """Shares, of 1, in what a replica worked since it last told, which it does now with an answer: of requests by
        id, and of texts by number. Those that it holds have shared its passes: by their answers, and the time of each.
        """
        if (member := self.replicas.get(replica)) is None:
            return {}
        shares: dict[str | int, float] = {}
        for number in sorted(member.asks):
            record = self.asks[number]
            held_s = max(now_s - max(member.told_s, record.holders[replica]), _TICK_S)
            shares |= {item.key: item.answers * held_s for item in record.items}
        member.told_s = now_s
        return {name: share / sum(shares.values()) for name, share in shares.items()}

    def give_back(self, replica: str, number: int) -> None:
        """Take an ask back from a replica that cannot do it; it is asked again."""
        if (member := self.replicas.get(replica)) is not None:
            member.asks.discard(number)
        self._release(replica, [number])

    def cancel(self, request_ids: Collection[str] | None = None) -> list[tuple[str, int]]:
        """Drop requests (None: all). Returns (replica, ask) of asks that nobody waits for any more."""
        return self._cancel(
            lambda item: item.request is not None and (request_ids is None or item.request.id in request_ids)
        )

    def cancel_texts(self, orders: Collection[int]) -> list[tuple[str, int]]:
        """Drop texts by the numbers that `queue_texts` gave; returns as `cancel`."""
        return self._cancel(lambda item: item.order in orders)

    def _cancel(self, dropped: Callable[[_WorkItem], bool]) -> list[tuple[str, int]]:
        self._waiting = [item for item in self._waiting if not dropped(item)]
        ended: list[tuple[str, int]] = []
        for number, record in list(self.asks.items()):
            if record.digest or not any(map(dropped, record.items)):
                continue
            record.items = [item for item in record.items if not dropped(item)]
            if not record.items:
                ended.extend((name, number) for name in sorted(record.holders))
                for name in record.holders:
                    self.replicas[name].asks.discard(number)
                del self.asks[number]
        return ended

    # --------------------------------------------------------------------------------------- replicas

    @property
    def vacancies(self) -> int:
        """Number of replicas to start."""
        return max(0, self.limits.replicas + self.limits.spares - len(self.replicas))

    def start(self, replica: str, now_s: float) -> None:
        """Record that a replica's process was started."""
        self.replicas[replica] = _ReplicaRecord(replica, now_s)

    def join(self, replica: str, now_s: float) -> None:
        """Record that a replica runs; it is to be sent the weights."""
        if (member := self.replicas.get(replica)) is not None:
            member.phase, member.heard_s = ReplicaPhase.LOADING, now_s

    def ready(self, replica: str, version: int, now_s: float) -> None:
        """Record that a replica has the weights of `version`."""
        if (member := self.replicas.get(replica)) is None:
            return
        self._heard(member, now_s)
        if version == self.version:
            member.phase = ReplicaPhase.READY

    def published(self, version: int, now_s: float) -> None:
        """Record new weights: nothing is given to a replica before it is `ready` with them."""
        self.version = version
        self._homes.clear()
        for member in self.replicas.values():
            if member.phase is ReplicaPhase.READY:
                member.phase = ReplicaPhase.LOADING
                if not member.asks:
                    member.heard_s = now_s

    def progress(self, replica: str, passes: int, now_s: float) -> None:
        """Record a sign of life. It counts if the replica ran passes since the last, or has nothing to run."""
        if (member := self.replicas.get(replica)) is None:
            return
        if member.phase is ReplicaPhase.AWAY:
            member.phase = ReplicaPhase.LOADING
        if passes > member.passes or not member.asks:
            self._heard(member, now_s)
        member.passes = max(passes, member.passes)

    def away(self, replica: str) -> None:
        """Record that a replica cannot be reached: its asks are asked of others, and it may come back."""
        if (member := self.replicas.get(replica)) is not None:
            member.phase = ReplicaPhase.AWAY
            self._release(replica, sorted(member.asks))
            member.asks.clear()

    def late(self, now_s: float) -> list[str]:
        """Have the asks of silent replicas asked of others; returns those that have been silent for twice the
        patience, or did not start: they are to be ended, and `gone` is to be called."""
        over: list[str] = []
        for member in self.replicas.values():
            silence_s, starting = now_s - member.heard_s, member.phase is ReplicaPhase.STARTING
            idle = member.phase is ReplicaPhase.READY and not member.asks
            if idle or silence_s < (self.limits.start_s if starting else self.limits.patience_s):
                continue
            member.silent = True
            for number in member.asks:
                record = self.asks[number]
                record.wants_another = not record.digest and all(self.replicas[name].silent for name in record.holders)
            if starting or silence_s >= 2 * self.limits.patience_s:
                over.append(member.name)
        return over

    def gone(self, replica: str, cause: str) -> None:
        """Record the loss of a replica: its work is asked again.

        Raises DataError for a prompt that was with several lost replicas in a row, LostResourceError when too many were
        lost. A loss elsewhere acquits a prompt: something else ends replicas, too.
        """
        member = self.replicas.pop(replica, None)
        if member is None:
            return
        held = [self.asks[number] for number in member.asks if number in self.asks]
        suspects = [item for record in held if not record.digest for item in record.items]
        for item in (*self._waiting, *(item for record in self.asks.values() for item in record.items)):
            item.losses = item.losses + 1 if item in suspects else 0
        self._release(replica, sorted(member.asks))
        published = self.version + self.adapters
        self._losses = [one for one in self._losses if one[0] > published - _WINDOW]
        self._losses.append((published, f"{replica}: {cause}"))
        if poisoned := [item for item in self._waiting if item.losses >= self.limits.losses_of_work]:
            error = DataError(
                *(
                    f"{item.name}: {item.losses} replicas were lost while they answered it, the last one {cause}; it "
                    "is not asked again. Look at its prompt and at the memory of a replica, or drop it from the data"
                    for item in poisoned
                )
            )
            error.work = frozenset(item.key for item in poisoned)
            raise error
        if len(self._losses) > self.limits.losses_allowed:
            raise LostResourceError(
                f"{len(self._losses)} replicas were lost within {_WINDOW} steps, and cluster.losses_allowed = "
                f"{self.limits.losses_allowed}; {self.pending} requests were unanswered",
                *(cause for _, cause in self._losses[-3:]),
            )

    # ----------------------------------------------------------------------------------------- inside

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    def _heard(self, member: _ReplicaRecord, now_s: float) -> None:
        member.heard_s, member.silent = now_s, False

    def _active(self) -> list[_ReplicaRecord]:
        """Replicas that may be given work; the others that are ready are spares."""
        ready = [one for one in self.replicas.values() if one.phase is ReplicaPhase.READY and not one.silent]
        return ready[: self.limits.replicas]

    def _ask_size(self) -> int:
        """Number of requests of the next asks: parts of a replica's share that are worth a call."""
        share = -(-len(self._waiting) // max(1, len(self._active())))
        least = 1 + int(_ASK_S * self._worked / self._work_s) if self._work_s else 1
        pieces = max(1, min(_PIECES, share // least))
        return max(1, min(max(_PIECES, 2 * least), -(-share // pieces)))

    def _next_items(self, size: int) -> list[_WorkItem]:
        """Items of the next ask. What a replica was lost with goes by itself, so that the cause is found."""
        head = self._waiting[0]
        if head.losses or head.request is None:
            return [head]
        alike = (
            item for item in self._waiting if item.request is not None and item.round == head.round and not item.losses
        )
        return [item for item, _ in zip(alike, range(size), strict=False)]

    def _new_ask(self, items: Sequence[_WorkItem]) -> GenerationAsk:
        self._numbers += 1
        requests, texts = tuple(item.request for item in items if item.request is not None), items[0].texts
        named = sorted({one.adapter for one in (*requests, *texts) if one.adapter})
        return GenerationAsk(
            number=self._numbers,
            requests=requests,
            round=items[0].round,
            version=self.version,
            texts=texts,
            adapters=tuple((name, self.offers[name]) for name in named),
        )

    def _holder(self, record: _AskRecord) -> _ReplicaRecord | None:
        """Replica for an ask: the one that keeps an earlier turn, else the one with the fewest answers to give."""
        free = [one for one in self._active() if one.name not in record.holders and self._has_room(one, record)]
        turns = ((one.after, one.first_sample) for one in record.ask.requests if one.after is not None)
        homes = {self._homes.get(turn) for turn in turns}
        return min(free, key=lambda one: (one.name not in homes, self._load(one)), default=None)

    def _has_room(self, member: _ReplicaRecord, record: _AskRecord) -> bool:
        if record.alone or any(self.asks[number].alone for number in member.asks):
            return not member.asks
        return len(member.asks) < _ASKS or self._load(member) <= self.limits.slots

    def _load(self, member: _ReplicaRecord) -> int:
        return sum(self.asks[number].ask.answers for number in member.asks)

    def _hand(self, record: _AskRecord, member: _ReplicaRecord, now_s: float) -> None:
        if not member.asks:
            member.heard_s = now_s
        member.asks.add(record.ask.number)
        record.holders[member.name] = now_s
        record.wants_another = False

    def _give_again(self, now_s: float) -> list[tuple[str, GenerationAsk]]:
        asks: list[tuple[str, GenerationAsk]] = []
        for record in [one for one in self.asks.values() if one.wants_another]:
            if record.ask.version != self.version:
                continue  # its version cannot be had any more: it is asked anew once its holders are gone
            holder = self._holder(record)
            if holder is not None:
                self.asked_again += len(record.items)
                self._hand(record, holder, now_s)
                asks.append((holder.name, record.ask))
        return asks

    def _release(self, replica: str, numbers: Iterable[int]) -> None:
        """Take asks from a replica; those that nobody else holds wait again, one request each."""
        for number in numbers:
            record = self.asks.get(number)
            if record is None:
                continue
            record.holders.pop(replica, None)
            if record.holders:
                record.wants_another = not record.digest and all(self.replicas[one].silent for one in record.holders)
                continue
            del self.asks[number]
            if not record.digest:
                self.asked_again += len(record.items)
                for item in record.items:
                    item.returned = True
                self._waiting.extend(record.items)
