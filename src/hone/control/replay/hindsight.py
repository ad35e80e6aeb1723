"""Hindsight: what was reached is taken for what was wanted (HER: Andrychowicz et al., 2017, 1707.01495).

Belongs here: relabelling of goals in sampled transitions. Observations are flat; which columns hold the goal and which
what was reached is said by `GoalSpec`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.store import EpisodeStore
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.state import State

Array: TypeAlias = NDArray[np.generic]
_GoalReward: TypeAlias = Callable[[Array, Array], NDArray[np.floating]]
"""What was reached `[n, g]` and what was wanted `[n, g]` -> reward `[n]`."""
_GoalReached: TypeAlias = Callable[[Array, Array], NDArray[np.bool_]]
"""The same -> whether the goal is met `[n]`."""

Strategy = Literal["future", "final", "episode"]
"""Which step of the same episode sets the goal: this one or a later one; the last; any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSpec:
    """Where goals stand in an observation, and what reaching them pays."""

    achieved: slice
    """Columns of the observation that say what is reached there."""
    desired: slice
    """Columns that say what is wanted."""
    reward: _GoalReward
    """Pays for a step, by what is reached after it."""
    terminates: _GoalReached | None = None
    """Whether meeting a goal ends the world; None: it ends nothing. An end that the old goal does not explain stays."""


class HindsightBuffer:
    """An episode store whose samples have some of their goals replaced by what their episode reached."""

    def __init__(
        self, store: EpisodeStore, goals: GoalSpec, *, strategy: Strategy = "future", share: float = 0.8
    ) -> None:
        """`share` of the transitions are relabelled: 0.8 is the paper's k = 4."""
        self.store = store
        self.goals = goals
        self.strategy: Strategy = strategy
        self.share = share

    def __len__(self) -> int:
        return len(self.store)

    def add(self, episodes: Episodes) -> int:
        """Remember pieces of episodes; how many were completed by them."""
        return self.store.add(episodes)

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, drawn as by the store; each is relabelled with probability `share`."""
        number, place = self.store.sample_positions(count, draws)
        transitions = self.store.windows(number, place, 1)
        chance, luck = draws.random(count), draws.random(count)
        which = np.flatnonzero(chance < self.share)
        goal_place = self._places(number[which], place[which], luck[which])
        return self._relabelled(transitions, which, self._reached(number[which], goal_place))

    def state(self) -> State:
        return self.store.state()

    def restore(self, state: State) -> None:
        self.store.restore(state)

    def _places(self, number: Ints, place: Ints, luck: NDArray[np.float64]) -> Ints:
        """Places of the steps whose outcome becomes the goal."""
        length = self.store.index.length[number]
        if self.strategy == "final":
            return length - 1
        first = place if self.strategy == "future" else np.zeros_like(place)
        return first + (luck * (length - first)).astype(np.int64)

    def _reached(self, number: Ints, place: Ints) -> Array:
        """Goals achieved in these steps `[n, g]`."""
        after = self.store.windows(number, place, 1).final
        assert after is not None
        return after[:, self.goals.achieved]

    def _relabelled(self, transitions: Episodes, which: Ints, goal: Array) -> Episodes:
        goals, final = self.goals, transitions.final
        assert final is not None
        seen, after = transitions.observations.copy(), final.copy()
        wanted: Ints = np.arange(seen.shape[1], dtype=np.int64)[goals.desired]
        if goal.shape[1] != len(wanted):
            raise DataError(f"{goal.shape[1]} columns say what is reached, {len(wanted)} what is wanted")
        seen[which[:, None], wanted], after[which[:, None], wanted] = goal, goal
        reward, terminated = transitions.reward.copy(), transitions.terminated.copy()
        reached = after[which][:, goals.achieved]
        reward[which] = goals.reward(reached, goal)
        if goals.terminates is not None:
            before = transitions.observations[which][:, goals.desired]
            otherwise = terminated[which] & ~goals.terminates(reached, before)
            terminated[which] = otherwise | goals.terminates(reached, goal)
        return replace(transitions, seen=seen, final=after, reward=reward, terminated=terminated)
