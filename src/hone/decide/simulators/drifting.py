"""A service's world that changes: arms with logistic rewards under one regime after another.

Belongs here: contexts, true rates and rewards by (seed, round) alone, so that two policies on one seed are compared on
common random numbers. Does not: policies, detectors.

Traffic of a service during a staged rollout: who is exposed, and the values of both arms.

Every request is of a new unit. In a stage with share s it goes to the canary with probability s, to the concurrent
control slice with probability s, and to neither otherwise. The new version's mean is the live one's times 1 + change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.decisions import ActionSet
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.core.state import State, integer

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPhase:
    """Rounds under one regime."""

    start: int
    """First round."""
    regime: int
    """Number of the regime; a number that comes again is the same regime again."""
    blend: int = 0
    """Rounds over which the regime replaces the one before, evenly; 0: at once."""


def abrupt_changes(rounds: int, regimes: Sequence[int]) -> tuple[DriftPhase, ...]:
    """`rounds` rounds in equal phases, one after another."""
    return tuple(DriftPhase(start=k * rounds // len(regimes), regime=regime) for k, regime in enumerate(regimes))


@dataclass(frozen=True)
class DriftingArms:
    """K arms with rewards of 0 and 1: in regime m, P(1 | x, k) = sigmoid(theta_mk . x).

    A context is `features` numbers: a constant 1, then standard normal ones. theta has normal entries of standard
    deviation `spread`.
    """

    rounds: int
    phases: tuple[DriftPhase, ...]
    seed: int
    arms: int = 5
    features: int = 6
    spread: float = 1.0

    @cached_property
    def actions(self) -> ActionSet:
        """The arms by name."""
        return ActionSet(names=tuple(f"arm_{k}" for k in range(self.arms)))

    @cached_property
    def contexts(self) -> Floats:
        """`[rounds, features]`."""
        drawn = generator(self.seed, "drifting contexts").standard_normal((self.rounds, self.features))
        drawn[:, 0] = 1.0
        return drawn

    @cached_property
    def shares(self) -> Floats:
        """`[rounds, regimes]` share of each regime in a round, which sum to 1."""
        shares = np.zeros((self.rounds, 1 + max(phase.regime for phase in self.phases)))
        last = self.phases[0].regime
        for phase in self.phases:
            shares[phase.start :] = 0.0
            shares[phase.start :, phase.regime] = 1.0
            blend = np.arange(1, phase.blend + 1)[: self.rounds - phase.start] / (phase.blend + 1)
            if phase.regime != last:
                shares[phase.start : phase.start + len(blend), phase.regime] = blend
                shares[phase.start : phase.start + len(blend), last] = 1.0 - blend
            last = phase.regime
        return shares

    def regime_rates(self, regime: int) -> Floats:
        """`[rounds, arms]` probability of reward 1 under one regime."""
        weights = generator(self.seed, "drifting regime", regime).standard_normal((self.arms, self.features))
        return 1.0 / (1.0 + np.exp(-self.spread * self.contexts @ weights.T))

    @cached_property
    def rates(self) -> Floats:
        """`[rounds, arms]` true probability of reward 1."""
        regimes = range(self.shares.shape[1])
        each = [self.shares[:, regime, None] * self.regime_rates(regime) for regime in regimes]
        return np.sum(each, axis=0)

    @cached_property
    def rewards(self) -> Floats:
        """`[rounds, arms]` reward of every arm, by one uniform number a round."""
        luck = generator(self.seed, "drifting rewards").random((self.rounds, 1))
        return (luck < self.rates).astype(np.float64)

    def share_of_best(self, chosen: NDArray[np.int64]) -> float:
        """Expected reward of the chosen arms `[rounds]` as a share of the best arms'."""
        taken = self.rates[np.arange(self.rounds), chosen]
        return float(taken.sum() / self.rates.max(axis=1).sum())


# ------------------------------------------------------------------------------------------------------- staged traffic


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTraffic:
    """Requests of a rollout through its stages."""

    kind: Literal["score", "conversion"] = "score"
    """`score`: a reward from Beta(2, 2), with mean 1/2 and standard deviation .224; `conversion`: 0 or 1."""
    rate: float = 0.5
    """Mean of a conversion under the live version."""
    change: float = 0.0
    """Relative change of the mean under the new version: -0.05 for 5% less."""
    stages: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5)
    requests: int = 5000
    """Requests of a stage."""
    canary_part: float = 0.5
    """Part of the exposed units that reaches the canary: other than 1/2 is a fault of the assignment."""

    def exposures(self, random: np.random.Generator) -> tuple[Ints, Bools]:
        """Numbers of the requests that are exposed `[n]`, from 0, and whether the new version serves them `[n]`."""
        exposed = 2 * np.repeat(self.stages, self.requests)
        place = random.random(len(exposed))
        requests = np.flatnonzero(place < exposed)
        return requests, place[requests] < self.canary_part * exposed[requests]

    def values(self, is_new: Bools, random: np.random.Generator) -> Floats:
        """Values in [0, 1] of the exposed units `[n]`."""
        factor = np.where(is_new, 1 + self.change, 1.0)
        if self.kind == "score":
            return factor * random.beta(2, 2, len(is_new))
        return (random.random(len(is_new)) < self.rate * factor).astype(np.float64)


# ---------------------------------------------------------------------------------------------------------- bandit arms
# Bandit environments.
#
# A pull is an episode of one decision. The reward of an arm at pull n is a function of (seed, n) only, so that two
# policies compared on one seed have common random numbers.


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


class _BanditActor(Protocol):
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

    def rollout(self, actor: _BanditActor) -> Episodes:
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
