"""Vectorised finite environment: many copies of a finite process stepped together, with numbered states.

The outcome of copy b at step t of rollout n is a function of (seed, n, t, b), state and action only, so that a resumed
run is exact and two policies compared on one seed have common random numbers.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.world import VectorActor
from hone.control.finite.model import FiniteMdp, Flags, Floats
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.ragged import Ints, offsets_of, row_sums
from hone.core.random import generator
from hone.core.state import State, array, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class _FiniteRollout:
    """T steps of B copies before the split into episodes; `[T, B]`, observations `[T+1, B]`."""

    seen: Ints
    chosen: Ints
    logp: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    final: Ints
    """Final state of an ended episode."""


@dataclass(kw_only=True)
class FiniteWorld:
    """Source of `steps` steps of each of `copies` copies per rollout; `actor` acts on states `[B]` as in Gymnasium.

    The step after an end is the first of a new episode. An episode that a rollout cuts continues in the next one, as a
    piece with the same `group`.
    """

    mdp: FiniteMdp
    steps: int
    seed: int
    copies: int = 1
    rollouts: int = 0
    episodes_begun: int = 0
    """Number of started episodes."""
    seen: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Current states `[B]`."""

    def __post_init__(self) -> None:
        mdp = self.mdp
        within = np.cumsum(mdp.probability)
        first = np.concatenate([[0.0], within])[mdp.offsets[mdp.pair_of_outcome]]
        ladder = mdp.pair_of_outcome + np.minimum(within - first, 1.0)
        ladder[mdp.offsets[1:][np.diff(mdp.offsets) > 0] - 1] = 1.0 + np.unique(mdp.pair_of_outcome)
        self._ladder = ladder
        """Pair number plus cumulative probability `[K]`: one binary search samples outcomes of many pairs."""
        self._starts = np.cumsum(mdp.start_distribution) / mdp.start_distribution.sum()
        self._legal = mdp.available
        self.age = np.zeros(self.copies, dtype=np.int64)
        self.returns = np.zeros(self.copies)
        self.episode = np.arange(self.copies)
        self.episodes_begun = self.copies
        self.seen = self._begin(generator(self.seed, "finite", 0).random(self.copies))

    def rollout(self, actor: VectorActor) -> Episodes:
        """Collect `steps * copies` decisions. Raises ConfigError for an unavailable action."""
        self.rollouts += 1
        shape = (self.steps, self.copies)
        luck = generator(self.seed, "finite", self.rollouts).random((2, *shape))
        noise = actor.noise(generator(self.seed, "act", self.rollouts), shape)
        rows = _FiniteRollout(
            seen=np.empty((self.steps + 1, self.copies), dtype=np.int64),
            chosen=np.empty(shape, dtype=np.int64),
            logp=np.empty(shape, dtype=np.float32),
            reward=np.empty(shape, dtype=np.float32),
            terminated=np.zeros(shape, dtype=np.bool_),
            truncated=np.zeros(shape, dtype=np.bool_),
            final=np.empty(shape, dtype=np.int64),
        )
        for t in range(self.steps):
            rows.seen[t] = self.seen
            rows.chosen[t], rows.logp[t] = actor.decide(self.seen, noise[t])
            self._step(rows, t, luck[:, t])
        rows.seen[-1] = self.seen
        return self._episodes(rows, actor.version)

    def state(self) -> State:
        return {
            "rollouts": self.rollouts,
            "begun": self.episodes_begun,
            "seen": self.seen,
            "age": self.age.copy(),
            "returns": self.returns,
            "episode": self.episode,
        }

    def restore(self, state: State) -> None:
        """Restore the state. Raises DataError for another number of copies."""
        seen = array(state, "seen")
        if seen.shape != (self.copies,):
            raise DataError(f"the saved environment has {len(seen)} copies, this one {self.copies}")
        self.rollouts, self.episodes_begun = integer(state, "rollouts"), integer(state, "begun")
        self.seen = seen.astype(np.int64)
        self.age = array(state, "age").astype(np.int64)
        self.returns = array(state, "returns").astype(np.float64)
        self.episode = array(state, "episode").astype(np.int64)

    def _step(self, rows: _FiniteRollout, t: int, luck: Floats) -> None:
        mdp, chosen = self.mdp, rows.chosen[t]
        allowed = (chosen >= 0) & (chosen < mdp.actions)
        allowed[allowed] = self._legal[self.seen[allowed], chosen[allowed]]
        if not allowed.all():
            copy = int(np.flatnonzero(~allowed)[0])
            able = np.flatnonzero(self._legal[self.seen[copy]]).tolist()
            raise ConfigError(f"action {chosen[copy]} in state {self.seen[copy]}: the table allows {able}")
        pair = self.seen * mdp.actions + chosen
        rank = np.searchsorted(self._ladder, pair + luck[0], side="right")
        outcome = np.minimum(rank, mdp.offsets[pair + 1] - 1)  # the sum may be rounded up to the next pair
        rows.reward[t] = mdp.reward[outcome]
        rows.terminated[t] = mdp.terminates[outcome]
        rows.final[t] = mdp.next_state[outcome]
        self.age += 1
        if mdp.step_limit is not None:
            rows.truncated[t] = (self.age >= mdp.step_limit) & ~rows.terminated[t]
        over = rows.terminated[t] | rows.truncated[t]
        self.seen = np.where(over, self._begin(luck[1]), rows.final[t]) if over.any() else rows.final[t].copy()
        self.age[over] = 0

    def _begin(self, luck: Floats) -> Ints:
        """Sample start states."""
        return np.searchsorted(self._starts, luck, side="right").astype(np.int64)

    def _episodes(self, rows: _FiniteRollout, version: int) -> Episodes:
        done = (rows.terminated | rows.truncated).T  # the decisions of a copy are consecutive, in the order of time
        ends = done.copy()
        ends[:, -1] = True
        last = np.flatnonzero(ends)
        copy, time = np.divmod(last, self.steps)
        offsets = offsets_of(np.diff(last, prepend=-1))
        reward = rows.reward.T.ravel()
        score, group = self._returns_and_numbers(row_sums(reward, offsets), copy, done.ravel()[last])
        return Episodes(
            offsets=offsets,
            seen=rows.seen[:-1].T.ravel(),
            chosen=rows.chosen.T.ravel(),
            logp=rows.logp.T.ravel(),
            version=np.full(len(reward), version, dtype=np.int32),
            reward=reward,
            group=group,
            terminated=rows.terminated[time, copy],
            truncated=rows.truncated[time, copy],
            final=rows.final[time, copy],
            score=score,
        )

    def _returns_and_numbers(self, paid: Floats, copy: Ints, done: Flags) -> tuple[Floats, Ints]:
        """Return so far and episode number of each piece; the first piece of a copy may continue an earlier one."""
        first = np.ones(len(copy), dtype=np.bool_)
        first[1:] = copy[1:] != copy[:-1]
        group = np.empty(len(copy), dtype=np.int64)
        group[first] = self.episode
        score = paid + np.where(first, self.returns[copy], 0.0)
        fresh = np.flatnonzero(~first)
        group[fresh] = self.episodes_begun + np.arange(len(fresh))
        self.episodes_begun += len(fresh)
        final = np.append(first[1:], True)
        self.returns = np.where(done[final], 0.0, score[final])
        self.episode = group[final].copy()
        over = np.flatnonzero(done[final])
        self.episode[over] = self.episodes_begun + np.arange(len(over))
        self.episodes_begun += len(over)
        return score, group
