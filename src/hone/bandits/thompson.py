"""Thompson sampling: deciding by a draw from the posterior, and learning in closed form."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.bandits.posteriors import Posterior
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, integer


@dataclass
class ThompsonActor:
    """Thompson sampling: pulls the arm whose sampled reward is greatest."""

    policy: Posterior
    version: int = 0

    def publish(self, policy: Posterior, version: int) -> None:
        self.policy, self.version = policy, version

    def choose(
        self, context: NDArray[np.float64], draws: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Arms `[n]` for contexts `[n, d]`. Their probabilities have no closed form: the log-probabilities are NaN."""
        arms = self.policy.draw(context, draws).argmax(axis=1)
        return arms, np.full(len(arms), np.nan, dtype=np.float32)


@dataclass
class PosteriorLearner:
    """A learner whose update is arithmetic on the posterior; the credit is the reward."""

    policy: Posterior
    observed: int = 0

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn from every scored decision; a missing reward teaches nothing."""
        known = episodes.scored[episodes.owner]
        context = episodes.observations[known].astype(np.float64)
        arms = episodes.chosen[known].astype(np.int64)
        self.policy.observe(context, arms, credits.advantage[known].astype(np.float64))
        self.observed += len(arms)
        return {**credits.metrics, "bandit/observed": float(self.observed)}

    def state(self) -> State:
        return {"observed": self.observed}

    def restore(self, state: State) -> None:
        self.observed = integer(state, "observed")
