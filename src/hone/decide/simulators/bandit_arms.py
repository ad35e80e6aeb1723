"""Bandit environments.

A pull is an episode of one decision. The reward of an arm at pull n is a function of (seed, n) only, so that two
policies compared on one seed have common random numbers.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.core.state import State, integer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class BernoulliArms(Config):
    """Arms with Bernoulli rewards."""

    kind: Literal["bernoulli"]
    """Names this alternative."""
    rates: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=2)
    """Probability of reward 1, per arm."""


class LinearArms(Config):
    """Arms with a linear reward of the context plus noise; contexts and weights are random."""

    kind: Literal["linear"]
    """Names this alternative."""
    arms: int = Field(default=5, ge=2)
    """Number of arms."""
    features: int = Field(default=4, ge=1)
    """Dimension of a context, each component standard normal."""
    noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise."""


BanditArms = Annotated[BernoulliArms | LinearArms, Field(discriminator="kind")]


class BanditActor(Protocol):
    """Policy that pulls arms."""

    version: int

    def choose(self, context: Floats, draws: np.random.Generator) -> tuple[Ints, NDArray[np.float32]]:
        """Choose arms for contexts `[n, d]` -> arms `[n]`, log-probabilities `[n]` in nats (NaN if unknown)."""
        ...


@dataclass
class ArmsWorld:
    """Source of `pulls` decisions per rollout, all chosen before any reward is observed."""

    config: BernoulliArms | LinearArms
    pulls: int
    seed: int
    rollouts: int = 0

    def __post_init__(self) -> None:
        config = self.config
        if isinstance(config, LinearArms):
            self.theta = generator(self.seed, "arms").standard_normal((config.arms, config.features))
            """Reward weights `[K, d]` of each arm."""

    @property
    def arms(self) -> int:
        """Number of arms."""
        return len(self.config.rates) if isinstance(self.config, BernoulliArms) else self.config.arms

    def rollout(self, actor: BanditActor) -> Episodes:
        self.rollouts += 1
        luck = generator(self.seed, "pull", self.rollouts)
        context = self._contexts(luck)
        chosen, logp = actor.choose(context, generator(self.seed, "act", self.rollouts))
        reward = self._rewards(context, luck)[np.arange(self.pulls), chosen]
        done = np.ones(self.pulls, dtype=np.bool_)
        return Episodes(
            offsets=np.arange(self.pulls + 1),
            seen=context,
            chosen=chosen,
            logp=logp,
            version=np.full(self.pulls, actor.version, dtype=np.int32),
            reward=reward.astype(np.float32),
            group=(self.rollouts - 1) * self.pulls + np.arange(self.pulls),
            terminated=done,
            truncated=~done,
            final=context,
            score=reward,
        )

    def expected_rewards(self, context: Floats) -> Floats:
        """True expected reward of each arm `[n, K]`, for evaluation."""
        if isinstance(self.config, BernoulliArms):
            return np.broadcast_to(np.array(self.config.rates), (len(context), len(self.config.rates)))
        return context @ self.theta.T

    def state(self) -> State:
        return {"rollouts": self.rollouts}

    def restore(self, state: State) -> None:
        self.rollouts = integer(state, "rollouts")

    def _contexts(self, luck: np.random.Generator) -> Floats:
        features = self.config.features if isinstance(self.config, LinearArms) else 0
        return luck.standard_normal((self.pulls, features))

    def _rewards(self, context: Floats, luck: np.random.Generator) -> Floats:
        """Rewards of every arm `[n, K]`."""
        expected = self.expected_rewards(context)
        if isinstance(self.config, BernoulliArms):
            return (luck.random(expected.shape) < expected).astype(np.float64)
        return expected + self.config.noise * luck.standard_normal(expected.shape)
