"""The running episode of each environment, over the rollouts that it spans: its return, its length and its number.

Belongs here: bookkeeping of pieces of episodes. The pieces are cut in `world.py`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.rollout import Flags
from hone.core.ragged import Ints
from hone.core.state import State, array, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePieces:
    """Pieces of episodes as they stand after a rollout, one a row."""

    score: NDArray[np.float64]
    """`[E]` returns of their episodes so far."""
    length: Ints
    """`[E]` steps of their episodes so far."""
    group: Ints
    """`[E]` numbers of their episodes."""


class RunningEpisodes:
    """Returns `[B]`, lengths `[B]` and numbers `[B]` of the episodes that `count` environments are in."""

    def __init__(self, count: int, *, begun: int = 0) -> None:
        self.count, self.begun = count, begun
        """Environments; episodes begun, which numbers them."""
        self.begin_all()

    def begin_all(self) -> None:
        """Begin an episode in each environment."""
        self.returns = np.zeros(self.count)
        self.lengths = np.zeros(self.count, dtype=np.int64)
        self.number = np.arange(self.begun, self.begun + self.count)
        self.begun += self.count

    def add_pieces(self, reward: NDArray[np.float64], steps: Ints, env: Ints, done: Flags) -> EpisodePieces:
        """Go on by pieces `[E]` in the order of their environments `env` and of time, given the sums of their rewards,
        their steps, and whether their episode ended with them. The first of each environment may go on from an earlier
        rollout."""
        first, final = np.ones(len(env), dtype=np.bool_), np.ones(len(env), dtype=np.bool_)
        first[1:] = final[:-1] = env[1:] != env[:-1]
        group = np.empty(len(env), dtype=np.int64)
        group[first] = self.number[env[first]]
        fresh = int(np.count_nonzero(~first))
        group[~first] = self.begun + np.arange(fresh)
        self.begun += fresh
        score = reward + np.where(first, self.returns[env], 0.0)
        length = steps + np.where(first, self.lengths[env], 0)
        self.returns[env[final]] = np.where(done[final], 0.0, score[final])
        self.lengths[env[final]] = np.where(done[final], 0, length[final])
        self.number[env[final]] = group[final]
        over = env[final & done]
        self.number[over] = self.begun + np.arange(len(over))
        self.begun += len(over)
        return EpisodePieces(score=score, length=length, group=group)

    def state(self) -> State:
        """State under the names of the checkpoints."""
        return {
            "begun": self.begun,
            "returns": self.returns.copy(),
            "lengths": self.lengths.copy(),
            "episode": self.number.copy(),
        }

    def restore(self, state: State, *, exact: bool) -> None:
        """Restore a state; unless `exact`, an episode begins in each environment. Raises DataError."""
        self.begun = integer(state, "begun")
        if not exact:
            self.begin_all()
            return
        self.returns = array(state, "returns").astype(np.float64)
        self.number = array(state, "episode").astype(np.int64)
        if "lengths" in state:  # absent in older checkpoints
            self.lengths = array(state, "lengths").astype(np.int64)
