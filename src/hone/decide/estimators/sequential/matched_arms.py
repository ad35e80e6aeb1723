"""Difference of two matched arms as one stream of scores for an e-process.

Each exposed unit goes to the new version (arm A = 1) or to the concurrent control slice (A = -1) by a fair coin: equal
slices of a hash. With a value y in [0, 1], more is better, and a centre c that is known before the coin falls,

    z = -A (y - c) / (1 + m/2) - (m/2) / (1 + m/2),      E[z | past] = (E[y | control] - E[y | new] - m) / (2 + m)

so E[z] <= 0 as long as the new version is worse by no more than the tolerance m. The coin makes it hold for *every*
predictable c and for values that drift together; a centre near the mean makes z small, which is where the power comes
from. Here c is the running mean of both arms, beginning at 1/2.

One score a unit: the arm of a unit that returns is known, and no coin falls any more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedArms:
    """Counts and sums of both arms after some events. Immutable: `advance` returns the next one."""

    tolerance: float = 0.0
    """Largest loss of the mean value that is accepted, in units of the value's range."""
    new_count: int = 0
    new_sum: float = 0.0
    control_count: int = 0
    control_sum: float = 0.0

    @property
    def count(self) -> int:
        """Events of both arms."""
        return self.new_count + self.control_count

    @property
    def new_mean(self) -> float:
        """Mean value of the new version; NaN without events."""
        return self.new_sum / self.new_count if self.new_count else float("nan")

    @property
    def control_mean(self) -> float:
        """Mean value of the control slice; NaN without events."""
        return self.control_sum / self.control_count if self.control_count else float("nan")

    def advance(self, values: Floats, is_new: Bools) -> tuple["MatchedArms", Floats]:
        """Take values `[n]` in [0, 1] and their arms `[n]` -> the next counts, and the scores `[n]`."""
        scores = matched_scores(
            values, is_new, count=self.count, total=self.new_sum + self.control_sum, tolerance=self.tolerance
        )
        following = MatchedArms(
            tolerance=self.tolerance,
            new_count=self.new_count + int(is_new.sum()),
            new_sum=self.new_sum + float(values[is_new].sum()),
            control_count=self.control_count + int((~is_new).sum()),
            control_sum=self.control_sum + float(values[~is_new].sum()),
        )
        return following, scores


def matched_scores(
    values: Floats, is_new: Bools, *, count: int = 0, total: float = 0.0, tolerance: float = 0.0
) -> Floats:
    """Scores of many runs at once: values in [0, 1] and arms `[..., n]` -> `[..., n]` in [-1, 1].

    `count` events with the sum `total` came before. Raises ValueError beyond [0, 1], and for a tolerance that is not
    between 0 and 1.
    """
    if not 0 <= tolerance <= 1:
        raise ValueError(f"the tolerance is a part of the value's range, 0 to 1, got {tolerance}")
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("values of matched arms lie in [0, 1]; scale and clip them, and count the clipped ones")
    before = total + np.cumsum(values, axis=-1) - values
    seen = np.arange(count + 1, count + 1 + values.shape[-1], dtype=np.float64)
    centre = (0.5 + before) / seen
    signed = np.where(is_new, centre - values, values - centre)
    return (signed - tolerance / 2) / (1 + tolerance / 2)


def effects_from_scores(scores: Floats, tolerance: float = 0.0) -> Floats:
    """Unbiased estimates, one an event, of the new version's mean minus the control's: -2 A-weighted values `[n]`."""
    return -2 * (scores * (1 + tolerance / 2) + tolerance / 2)
