"""The delay between a decision and its first outcome, where some outcomes are still to come (Kaplan and Meier, 1958).

The outcome of a decision of age a is *censored* if it has not arrived: its delay is longer than a, or it is lost. With
d_j first outcomes at delay t_j and r_j decisions that were observed at least that long without one,

    arrived(t) = 1 - prod over t_j <= t of (1 - d_j / r_j)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayCurve:
    """Share of decisions whose first outcome has arrived, by the time since the decision."""

    delay_s: Floats
    """`[m]` distinct delays of first outcomes, ascending."""
    arrived: Floats
    """`[m]` share of decisions with an outcome by then; less than 1 where some never have one."""
    longest_s: float
    """Age of the oldest decision: nothing is known of longer delays."""

    def at(self, delay_s: Floats) -> Floats:
        """Share that has arrived by each delay `[n]`: a step function, 0 before the first outcome."""
        place = np.searchsorted(self.delay_s, delay_s, side="right")
        return np.concatenate([[0.0], self.arrived])[place]

    def share_within(self, age_s: Floats, window_s: float) -> Floats:
        """P(delay <= age | delay <= window) at each age `[n]`; 1 from the window on.

        Raises DataError if no decision is as old as the window: the curve then ends before it.
        """
        if self.longest_s < window_s:
            raise DataError(
                f"no window has closed: the oldest decision is {self.longest_s:g} s old and the window is {window_s:g} "
                "s; nothing is known of longer delays, so open rows cannot be weighted. Wait, or take a shorter window"
            )
        within = float(self.at(np.array([window_s]))[0])
        early = self.at(age_s) / within if within > 0 else np.zeros_like(age_s)
        return np.where(age_s >= window_s, 1.0, early)

    def thinned(self, points: int) -> "DelayCurve":
        """The curve at no more than `points` of its delays, first and last included: for tables and pictures."""
        if len(self.delay_s) <= points:
            return self
        kept = np.unique(np.linspace(0, len(self.delay_s) - 1, points).round().astype(np.int64))
        return DelayCurve(delay_s=self.delay_s[kept], arrived=self.arrived[kept], longest_s=self.longest_s)


def delay_curve(first_delay_s: Floats, age_s: Floats) -> DelayCurve:
    """Kaplan-Meier estimate from delays of first outcomes `[n]` (NaN: none so far) and ages of decisions `[n]`."""
    arrived = ~np.isnan(first_delay_s)
    observed = np.sort(np.where(arrived, first_delay_s, age_s))
    times, events = np.unique(first_delay_s[arrived], return_counts=True)
    at_risk = len(observed) - np.searchsorted(observed, times, side="left")
    longest = float(age_s.max()) if len(age_s) else 0.0
    arrived_by = np.asarray(1.0 - np.cumprod(1.0 - events / at_risk), np.float64)
    return DelayCurve(delay_s=times, arrived=arrived_by, longest_s=longest)


def censoring_weights(curve: DelayCurve, age_s: Floats, window_s: float) -> Floats:
    """Weights `[n]` of outcomes that have arrived: 1 / P(delay <= age | delay <= window), and 1 for closed windows.

    With them, `default + weight * (reward so far - default)` has the expectation of the final reward, if the delay
    depends on neither reward, context nor action (inverse probability of censoring; Robins and Rotnitzky, 1992). 0
    where no outcome can have arrived. Raises DataError as `DelayCurve.share_within`.
    """
    share = curve.share_within(age_s, window_s)
    return np.divide(1.0, share, out=np.zeros_like(share), where=share > 0)
