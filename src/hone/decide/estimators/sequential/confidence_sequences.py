"""Confidence sequences: intervals of a mean that hold at every look at once, for display beside an e-process.

Two kinds. The asymptotic one (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2021) is narrow and holds for large
samples:

    mean +- sd sqrt( 2 (t rho^2 + 1) / (t^2 rho^2) log( sqrt(t rho^2 + 1) / alpha ) )

The empirical Bernstein one (Waudby-Smith and Ramdas, 2020, predictable plug-in) holds from the first event on, for
values in [0, 1]: with l_t = min(1/2, sqrt(2 log(2/alpha) / (v_{t-1} t log(1 + t)))),

    sum l x / sum l  +-  ( log(2/alpha) + sum 4 (x_i - m_{i-1})^2 (-log(1 - l_i) - l_i) / 4 ) / sum l

A rollout acts on neither: the e-process has the power, and these show the size of an effect.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TIGHT_AT: Final = 1000
"""Events at which the asymptotic sequence is tightest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInterval:
    """Interval of a mean at one look."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymptoticSequence:
    """Running mean and variance with their confidence sequence. Immutable: `advance` returns the next one."""

    alpha: float = 0.05
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def advance(self, values: Floats) -> "AsymptoticSequence":
        """Take values `[n]`."""
        return AsymptoticSequence(
            alpha=self.alpha,
            count=self.count + len(values),
            total=self.total + float(values.sum()),
            squares=self.squares + float((values**2).sum()),
        )

    def interval(self) -> SequenceInterval:
        """Interval after the values so far; infinite before the second one."""
        if self.count < 2:
            return SequenceInterval(mean=math.nan, low=-math.inf, high=math.inf)
        mean = self.total / self.count
        variance = max(self.squares / self.count - mean**2, 0.0)
        half = math.sqrt(variance) * asymptotic_width(self.count, self.alpha)
        return SequenceInterval(mean=mean, low=mean - half, high=mean + half)


def asymptotic_width(count: int, alpha: float) -> float:
    """Half width of the asymptotic sequence after `count` values of standard deviation 1."""
    wide = -2 * math.log(alpha)
    rho2 = (wide + math.log(wide + 1)) / TIGHT_AT
    scale = count * rho2 + 1
    return math.sqrt(2 * scale / (count**2 * rho2) * math.log(math.sqrt(scale) / alpha))


@dataclass(frozen=True, slots=True, kw_only=True)
class BernsteinSequence:
    """Empirical Bernstein confidence sequence of values in [0, 1]. Immutable: `advance` returns the next one."""

    alpha: float = 0.05
    count: int = 0
    total: float = 0.0
    deviations: float = 0.0
    """Sum of squared distances from the running mean."""
    weight: float = 0.0
    weighted: float = 0.0
    cost: float = 0.0

    def advance(self, values: Floats) -> "BernsteinSequence":
        """Take values `[n]` in [0, 1]. Raises ValueError beyond."""
        if not len(values):
            return self
        if not np.all((values >= 0) & (values <= 1)):
            raise ValueError("values of an empirical Bernstein sequence lie in [0, 1]; scale them by their bounds")
        place = self.count + 1 + np.arange(len(values))
        total = self.total + np.cumsum(values)
        mean_now = (0.5 + total) / (place + 1)
        mean_before = np.concatenate([[(0.5 + self.total) / (self.count + 1)], mean_now[:-1]])
        deviations = self.deviations + np.cumsum((values - mean_now) ** 2)
        variance_before = (0.25 + np.concatenate([[self.deviations], deviations[:-1]])) / place
        weight = np.minimum(0.5, np.sqrt(2 * math.log(2 / self.alpha) / (variance_before * place * np.log1p(place))))
        cost = (values - mean_before) ** 2 * (-np.log1p(-weight) - weight)
        return BernsteinSequence(
            alpha=self.alpha,
            count=self.count + len(values),
            total=float(total[-1]),
            deviations=float(deviations[-1]),
            weight=self.weight + float(weight.sum()),
            weighted=self.weighted + float((weight * values).sum()),
            cost=self.cost + float(cost.sum()),
        )

    def interval(self) -> SequenceInterval:
        """Interval after the values so far, within [0, 1]."""
        if not self.count:
            return SequenceInterval(mean=0.5, low=0.0, high=1.0)
        mean = self.weighted / self.weight
        half = (math.log(2 / self.alpha) + self.cost) / self.weight
        return SequenceInterval(mean=mean, low=max(0.0, mean - half), high=min(1.0, mean + half))
