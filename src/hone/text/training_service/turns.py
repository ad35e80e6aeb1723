"""Whose turn it is: requests of each model in the order of their numbers, and tenants by the work that they had.

Pure bookkeeping: the time is an argument, and nothing here computes. A model's requests begin one after another, in
the order of `seq`, in whatever order they came. Among tenants the one goes first whose work, divided by its weight, is
least (weighted fair queueing; Demers, Keshav and Shenker, 1989); one that comes back begins at the least of those that
wait, so that nobody saves turns up.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

HOLE_S: Final = 60.0
"""Seconds for which later requests of a model wait for a number that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that waits for its turn."""

    id: str
    tenant: str
    owner: str
    """The model or sampler that it is of."""
    seq: int
    kind: str
    came_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOffer:
    """Rows of one call that could be in the next pass."""

    tenant: str
    weight: float
    spent_s: float
    """Work of the tenant so far, divided by its weight."""
    tokens: Sequence[int]
    """Tokens of each row, in order."""


def share_pass(offers: Sequence[RowOffer], most_tokens: int, token_s: float) -> list[int]:
    """Which offers the rows of a pass are of, one number a row, each offer's rows in order.

    The row of the tenant with the least work goes next, its own rows of this pass counted at `token_s` a token, until
    the pass is full. So a tenant of twice the weight has twice the tokens in it. Where one has no more rows, others
    fill the pass up to their share of a full pass ahead of it, for which they then wait one pass at most. The first row
    is taken whatever its size.
    """
    spent = {one.tenant: one.spent_s for one in offers}
    left = {place: list(one.tokens) for place, one in enumerate(offers)}
    weights = {one.tenant: one.weight for one in offers}
    chosen, room, lead_s = list[int](), most_tokens, most_tokens * token_s / sum(weights.values())
    while waiting := [place for place, rows in left.items() if rows]:
        place = min(waiting, key=lambda one: (spent[offers[one].tenant], one))
        one, size = offers[place], left[place].pop(0)
        ahead = spent[one.tenant] - min(spent.values())
        if chosen and (size > room or ahead > lead_s):
            break
        chosen.append(place)
        room -= size
        spent[one.tenant] += size * token_s / one.weight
    return chosen


@dataclass(slots=True)
class _ModelQueue:
    """Requests of one model, by their numbers."""

    next: int
    waiting: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    running: Waiting | None = None

    @property
    def ready(self) -> Waiting | None:
        """The request that may begin now."""
        return self.waiting.get(self.next) if self.running is None else None


@dataclass(slots=True)
class Turns:
    """The requests that wait. Not safe for threads: the worker holds a lock around it."""

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By tenant; 1 for others."""
    spent_s: dict[str, float] = field(default_factory=dict[str, float])
    """Work of each tenant divided by its weight, raised to the others' where it came back."""
    _models: dict[str, _ModelQueue] = field(default_factory=dict[str, _ModelQueue])
    _samples: dict[str, deque[Waiting]] = field(default_factory=dict[str, deque[Waiting]])
    """By tenant, in the order in which they came."""

    def open_model(self, model: str, next_seq: int) -> None:
        """Expect the requests of a model from `next_seq` on."""
        self._models.setdefault(model, _ModelQueue(next_seq))

    def add(self, one: Waiting, *, ordered: bool) -> None:
        """Queue a request: one of a model in the order of its numbers, or a sample."""
        self._greet(one.tenant)
        if ordered:
            self._models[one.owner].waiting[one.seq] = one
        else:
            self._samples.setdefault(one.tenant, deque()).append(one)

    def next_training(self) -> Iterator[Waiting]:
        """Requests of models that may begin now, at most one of each model, the tenant with the least work first."""
        ready = [one for queue in self._models.values() if (one := queue.ready) is not None]
        yield from sorted(ready, key=lambda one: (self.spent_s.get(one.tenant, 0.0), one.came_s, one.owner))

    def begin(self, one: Waiting) -> None:
        """Take a request of a model out of the queue: its model's others wait until `end`."""
        queue = self._models[one.owner]
        del queue.waiting[one.seq]
        queue.running = one

    def end(self, one: Waiting) -> None:
        """The request is over, well or badly; its model's next one may begin."""
        queue = self._models[one.owner]
        queue.running, queue.next = None, one.seq + 1

    def next_sample(self) -> Waiting | None:
        """Take the sample request of the tenant with the least work; None without any."""
        tenants = [tenant for tenant, waiting in self._samples.items() if waiting]
        if not tenants:
            return None
        return self._samples[min(tenants, key=lambda one: (self.spent_s.get(one, 0.0), one))].popleft()

    def drop_sample(self, id: str) -> bool:
        """Forget a sample request that was cancelled; False if it does not wait any more."""
        for waiting in self._samples.values():
            for one in waiting:
                if one.id == id:
                    waiting.remove(one)
                    return True
        return False

    def charge(self, tenant: str, seconds: float) -> None:
        """Count work of a tenant."""
        self.spent_s[tenant] = self.spent_s.get(tenant, 0.0) + seconds / self.weights.get(tenant, 1.0)

    def behind_holes(self, now_s: float) -> list[tuple[Waiting, int]]:
        """Requests that waited too long for a number that never came, with that number; they are taken out, and their
        models go on behind them."""
        late: list[tuple[Waiting, int]] = []
        for queue in self._models.values():
            if queue.running is not None or not queue.waiting or queue.next in queue.waiting:
                continue
            if now_s - min(one.came_s for one in queue.waiting.values()) < HOLE_S:
                continue
            hole, queue.next = queue.next, max(queue.waiting) + 1
            late += [(one, hole) for _, one in sorted(queue.waiting.items())]
            queue.waiting.clear()
        return late

    def place(self, one: Waiting) -> int:
        """Requests that go before a waiting one, about: those of tenants with less work."""
        own = self.spent_s.get(one.tenant, 0.0)
        return sum(1 for other in self._waiting() if self.spent_s.get(other.tenant, 0.0) < own)

    def counts(self) -> dict[str, int]:
        """Waiting requests by tenant."""
        counts: dict[str, int] = {}
        for one in self._waiting():
            counts[one.tenant] = counts.get(one.tenant, 0) + 1
        return counts

    def _waiting(self) -> Iterator[Waiting]:
        for queue in self._models.values():
            yield from queue.waiting.values()
        for samples in self._samples.values():
            yield from samples

    def _greet(self, tenant: str) -> None:
        """Raise the account of a tenant that had nothing waiting to the least of those that have."""
        active = {one.tenant for one in self._waiting()}
        active |= {queue.running.tenant for queue in self._models.values() if queue.running is not None}
        if active and tenant not in active:
            least = min(self.spent_s.get(other, 0.0) for other in active)
            self.spent_s[tenant] = max(self.spent_s.get(tenant, 0.0), least)
