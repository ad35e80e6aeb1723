"""A shop that recommends: visitors with features, items with logistic click rates, and clicks that are told later.

Contexts, clicks and deliveries are functions of (seed, round, item) alone, so that policies compared on one seed have
common random numbers. Does not belong here: policies, logs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hone.core.config import Config
from hone.core.decisions import ActionSet, Bools, Floats
from hone.core.random import generator


class DeliveryConfig(Config):
    """How outcomes reach the log. The default: at once, each once."""

    mean_delay_s: float = 0.0
    """Mean of the exponential delay of an outcome."""
    lost: float = 0.0
    """Share of outcomes that never arrive."""
    twice: float = 0.0
    """Share of those that arrive that are sent a second time."""


AT_ONCE: Final = DeliveryConfig()
"""Every outcome at once, and once."""


@dataclass(frozen=True, slots=True)
class _DeliveredOutcome:
    """An outcome on its way."""

    at_s: float
    """Time at which it arrives."""
    happened_s: float
    """Its own time, the same for both copies."""
    round: int
    """Round of its decision."""
    copy: int
    """0, or 1 for one that is sent again."""


@dataclass
class SimulatedClock:
    """A clock that the rounds of a simulation move."""

    begin_s: float = 1_700_000_000.0
    """Seconds since the epoch at the first round."""
    time_s: float = 1_700_000_000.0

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return self.time_s

    def monotonic_s(self) -> float:
        """The same time."""
        return self.time_s


@dataclass(frozen=True)
class RecommendationWorld:
    """K items with P(click | x, k) = sigmoid(theta_k . x); a visitor each second.

    A context is `features` numbers: a constant 1, then standard normal ones; theta has standard normal entries.
    """

    rounds: int
    seed: int
    items: int = 10
    features: int = 8
    delivery: DeliveryConfig = AT_ONCE

    @cached_property
    def actions(self) -> ActionSet:
        """The items by name."""
        return ActionSet(names=tuple(f"item_{number}" for number in range(self.items)))

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return ("constant", *(f"x{number}" for number in range(1, self.features)))

    @cached_property
    def contexts(self) -> Floats:
        """`[rounds, features]`."""
        contexts = generator(self.seed, "recommendation contexts").standard_normal((self.rounds, self.features))
        contexts[:, 0] = 1.0
        return contexts

    def visitor(self, number: int) -> dict[str, float]:
        """Features of the visitor of a round by name."""
        return dict(zip(self.feature_names, self.contexts[number].tolist(), strict=True))

    @cached_property
    def rates(self) -> Floats:
        """`[rounds, K]` probability of a click on each item."""
        theta = generator(self.seed, "recommendation items").standard_normal((self.items, self.features))
        return 1.0 / (1.0 + np.exp(-(self.contexts @ theta.T)))

    @cached_property
    def clicks(self) -> Floats:
        """`[rounds, K]` 1.0 for a click on each item, were it shown."""
        draws = generator(self.seed, "recommendation clicks").random((self.rounds, self.items))
        return (draws < self.rates).astype(np.float64)

    @property
    def oracle(self) -> float:
        """Mean click rate of the best item of each round."""
        return float(self.rates.max(axis=1).mean())

    @cached_property
    def delays_s(self) -> Floats:
        """`[rounds]` seconds from each decision to its outcome; inf for one that is lost."""
        chance = generator(self.seed, "recommendation delays")
        delays = chance.exponential(1.0, self.rounds) * self.delivery.mean_delay_s
        return np.where(chance.random(self.rounds) < self.delivery.lost, np.inf, delays)

    @cached_property
    def sent_twice(self) -> Bools:
        """`[rounds]` rounds whose outcome is sent again."""
        return generator(self.seed, "recommendation copies").random(self.rounds) < self.delivery.twice

    def deliveries(self) -> list[_DeliveredOutcome]:
        """Outcomes of all rounds, in the order in which they arrive; copies follow by another delay."""
        return sorted(self._sent(), key=lambda one: (one.at_s, one.round, one.copy))

    def _sent(self) -> Iterator[_DeliveredOutcome]:
        for number in np.flatnonzero(np.isfinite(self.delays_s)).tolist():
            delay_s = float(self.delays_s[number])
            yield _DeliveredOutcome(number + delay_s, number + delay_s, number, 0)
            if self.sent_twice[number]:
                yield _DeliveredOutcome(number + 2.0 * delay_s, number + delay_s, number, 1)

    def delivered_share(self, window_s: float) -> float:
        """Probability that an outcome arrives within `window_s` of its decision."""
        mean = self.delivery.mean_delay_s
        return (1.0 - self.delivery.lost) * (1.0 - float(np.exp(-window_s / mean)) if mean > 0 else 1.0)
