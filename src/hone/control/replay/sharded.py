"""Prioritised replay in shards, one for the robots of a fleet whose number has the same remainder.

Each shard that holds anything is as likely to be drawn from, and within a shard rows are drawn in proportion to their
masses (Schaul et al., 2016): P(i) = m_i / (S M_s) for S shards of mass M_s, and importance weights are (N P(i))^-beta
for N rows. So a robot that sends ten times as much as the others, or whose errors are ten times as large, is not ten
times as much of what is learnt. Rows that were acted by a policy older than the bound on staleness have mass 0: they
are not drawn, and they do not count as rows. With a half-life, ages count the steps of all shards, and the weights are
(q_i / P(i))^beta with the recency q_i of a row among those of all shards (`priority`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.state import State, integer, substate


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingParams:
    """Shards, priorities and the bound on staleness."""

    shards: int
    priorities: PriorityParams
    max_staleness: int = 0
    """Iterations of the learner between the policy that acted and the present one; 0: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardedSample:
    """Last sample: its weights, and the rows that each shard drew."""

    importance_weight: NDArray[np.float32]
    """`[n]`."""
    shards: tuple[int, ...] = ()
    """Shards that were drawn from, in the order of the sample."""


class ShardedSampler:
    """A replay buffer of transitions in shards.

    An episode's `group` is its robot's number, and its decisions' `version` the iteration that the policy was published
    after; the k-th sample is that of iteration k - 1.
    """

    def __init__(self, capacity: int, params: ShardingParams) -> None:
        """`capacity`: transitions of all shards together."""
        rows = max(1, capacity // params.shards)
        self.params = params
        self.shards: list[PrioritizedSampler] = [
            PrioritizedSampler(RingBuffer(rows), params.priorities) for _ in range(params.shards)
        ]
        self.draws = 0
        """Samples so far, which is the number of the learner's iterations."""
        self.last_sample = _ShardedSample(importance_weight=np.zeros(0, np.float32))
        self._versions = np.zeros((params.shards, rows), np.int64)
        self._eligible = np.zeros((params.shards, rows), np.bool_)
        self._staleness = np.zeros(0, np.int64)
        self._added = self._sampled = self._stale = 0

    def __len__(self) -> int:
        """Rows that may be drawn."""
        return int(np.count_nonzero(self._eligible))

    def add(self, episodes: Episodes) -> None:
        """Remember transitions: those of robot g go to shard `g % shards`."""
        transitions = episodes.transitions()
        owners = transitions.group % len(self.shards)
        arrived = self._added + np.arange(len(transitions))
        numbers: list[int] = np.unique(owners).tolist()
        for number in numbers:
            own = np.flatnonzero(owners == number)
            part = transitions.take(own)
            rows: Ints = self.shards[number].add(part, arrived[own])
            self._versions[number, rows] = part.version[-len(rows) :]
            self._eligible[number, rows] = True
        self._added += len(transitions)
        self._expire()

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, as many from each shard; what does not divide goes round from sample to sample.

        Raises DataError where nothing may be drawn.
        """
        self._expire()
        held = [number for number in range(len(self.shards)) if self._eligible[number].any()]
        if not held:
            raise DataError("the replay buffer holds no transition within the bound on staleness")
        sizes = np.full(len(held), count // len(held))
        sizes[(self.draws + np.arange(count % len(held))) % len(held)] += 1
        used = [(number, int(size)) for number, size in zip(held, sizes, strict=True) if size]
        parts = [self.shards[number].sample(size, draws) for number, size in used]
        eligible, weights = len(self), list[NDArray[np.float64]]()
        staleness: list[Ints] = []
        beta, scales = self.current_beta(), self._recency_scales(held)
        for number, _ in used:
            shard = self.shards[number]
            rows = shard.last_sample.rows
            chance = shard.tree.row_masses(rows) / (len(held) * shard.tree.total)
            if shard.recency is None:
                weights.append((eligible * chance) ** -beta)
            else:
                weights.append((shard.recency.row_masses(rows) * scales[number] / chance) ** beta)
            staleness.append(self.draws - self._versions[number, rows])
        self.draws, self._sampled = self.draws + 1, self._sampled + count
        self._staleness = np.concatenate(staleness)
        self.last_sample = _ShardedSample(
            importance_weight=np.concatenate(weights).astype(np.float32), shards=tuple(number for number, _ in used)
        )
        return concatenate(parts)

    def update_priorities(self, errors: NDArray[np.floating]) -> None:
        """Give the rows last drawn the priorities |error| + epsilon `[n]`. Raises DataError as `PrioritizedSampler`."""
        first = 0
        for number in self.last_sample.shards:
            size = len(self.shards[number].last_sample.rows)
            self.shards[number].update_priorities(errors[first : first + size])
            first += size

    def current_beta(self) -> float:
        """Exponent of the weights at the next draw."""
        numbers = self.params.priorities
        done = 1.0 if numbers.beta_anneal_draws == 0 else min(1.0, self.draws / numbers.beta_anneal_draws)
        return numbers.beta + (1.0 - numbers.beta) * done

    def metrics(self) -> Metrics:
        """Staleness of the last sample, in iterations; share of it above the bound; rows that grew too old."""
        bound = self.params.max_staleness
        if not len(self._staleness):
            return {}
        above = float((self._staleness > bound).mean()) if bound else 0.0
        return {
            "robots/staleness_mean": float(self._staleness.mean()),
            "robots/staleness_max": float(self._staleness.max()),
            "robots/staleness_above": above,
            "robots/too_stale": float(self._stale),
            "robots/samples_per_insert": self._sampled / self._added,
        }

    def state(self) -> State:
        """Shards that hold anything, the rows that may be drawn, and the counts."""
        used = {f"shard {number}": one.state() for number, one in enumerate(self.shards) if len(one)}
        return {
            **used, "shards": len(self.shards), "draws": self.draws, "added": self._added,
            "sampled": self._sampled, "stale": self._stale,
            "versions": self._versions.copy(), "eligible": self._eligible.copy(),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another number of shards."""
        if integer(state, "shards") != len(self.shards):
            raise DataError(f"the saved replay buffer has {state['shards']} shards, this one {len(self.shards)}")
        for number, one in enumerate(self.shards):
            if f"shard {number}" in state:
                one.restore(substate(state, f"shard {number}"))
        self.draws, self._added, self._sampled, self._stale = (
            integer(state, name) for name in ("draws", "added", "sampled", "stale")
        )
        self._versions = np.asarray(state["versions"], np.int64)
        self._eligible = np.asarray(state["eligible"], np.bool_)

    def _recency_scales(self, held: list[int]) -> dict[int, float]:
        """Factor of each shard that makes the recencies of all their rows add up to 1; none without a half-life."""
        half_life = self.params.priorities.half_life
        if not half_life:
            return {}
        units = {number: 2.0 ** (self.shards[number].halvings - self._added / half_life) for number in held}
        total = 0.0
        for number, unit in units.items():
            recency = self.shards[number].recency
            assert recency is not None
            total += recency.total * unit
        return {number: unit / total for number, unit in units.items()}

    def _expire(self) -> None:
        """Take the mass from rows that grew too old."""
        bound = self.params.max_staleness
        if not bound:
            return
        stale = self._eligible & (self.draws - self._versions > bound)
        for number in np.flatnonzero(stale.any(axis=1)).tolist():
            rows = np.flatnonzero(stale[number])
            self.shards[number].forget(rows)
            self._stale += len(rows)
        self._eligible &= ~stale
