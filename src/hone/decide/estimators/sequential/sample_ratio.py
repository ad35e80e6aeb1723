"""Test of the sample ratio that holds at every look: are units assigned in the declared proportions?

A multinomial e-process (Lindon and Malek, "Anytime-valid inference for multinomial count data", 2022): the Bayes factor
of a Dirichlet distribution around the declared shares theta against theta itself. After counts n_1 ... n_A its next
factor, for a unit in arm a, is

    (kappa theta_a + n_a) / ((kappa + n) theta_a)

whose mean under theta is 1. A mismatch has a cause in assignment, logging or joining, never in the policies; estimates
from such data are worth nothing, so a rollout stops.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONCENTRATION: Final = 400.0
"""kappa: with two equal arms it looks for shares around .5 +- .025, and finds larger ones at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRatio:
    """Counts of the arms and the e-value against the declared shares. Immutable: `advance` returns the next one."""

    shares: tuple[float, ...] = (0.5, 0.5)
    counts: tuple[int, ...] = (0, 0)
    log_e: float = 0.0
    """nats."""

    def advance(self, arms: Ints) -> tuple["SampleRatio", Floats]:
        """Take numbers of arms `[n]` -> the next counts, and log e after each `[n]`."""
        if not len(arms):
            return self, np.zeros(0)
        path = self.log_e + ratio_paths(arms, self.shares, self.counts)
        added = np.bincount(arms, minlength=len(self.shares))
        counts = tuple(old + int(new) for old, new in zip(self.counts, added, strict=True))
        return SampleRatio(shares=self.shares, counts=counts, log_e=float(path[-1])), path


def ratio_paths(arms: Ints, shares: tuple[float, ...], counts: tuple[int, ...] | None = None) -> Floats:
    """log e after each assignment of many runs at once: numbers of arms `[..., n]` -> `[..., n]` in nats.

    `counts` came before. Raises ValueError for shares that are no distribution.
    """
    if not math.isclose(sum(shares), 1) or min(shares) <= 0:
        raise ValueError(f"declared shares are positive and sum to 1, got {shares}")
    counts = counts or (0,) * len(shares)
    earlier = np.arange(sum(counts), sum(counts) + arms.shape[-1], dtype=np.float64)
    steps = np.zeros(arms.shape)
    for arm, (share, count) in enumerate(zip(shares, counts, strict=True)):
        here = arms == arm
        before = count + np.cumsum(here, axis=-1) - here
        steps += here * np.log((CONCENTRATION * share + before) / ((CONCENTRATION + earlier) * share))
    return np.cumsum(steps, axis=-1)
