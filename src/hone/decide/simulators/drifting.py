"""A service's world that changes: arms with logistic rewards under one regime after another.

Belongs here: contexts, true rates and rewards by (seed, round) alone, so that two policies on one seed are compared on
common random numbers. Does not: policies, detectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet
from hone.core.random import generator

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
