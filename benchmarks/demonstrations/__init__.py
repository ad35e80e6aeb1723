"""Demonstrations of the second floor: reward models, preferences, search, critics, adapters and experts.

Each module of this folder is one demonstration, run by `benchmarks/preferences.py`. It holds

    TITLE   what is shown, in a few words
    SEEDS   seeds that chose no setting
    BARS    what the figures must reach
    figures(seed, *, quick) -> {name: value}   figures of one seed; `quick` takes seconds and decides nothing
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What a figure must reach."""

    figure: str
    """Name of the figure, as `figures` returns it."""
    at_least: float | None = None
    at_most: float | None = None
    over: Literal["every seed", "mean"] = "every seed"
    """What has to reach it: each seed, or their mean."""

    def reached(self, values: NDArray[np.float64]) -> bool:
        """Whether the values `[seeds]` of the figure reach the bar; NaN reaches none."""
        judged = values if self.over == "every seed" else values[:1] * 0 + values.mean()
        low = self.at_least is None or bool((judged >= self.at_least).all())
        high = self.at_most is None or bool((judged <= self.at_most).all())
        return bool(np.isfinite(values).all()) and low and high

    def __str__(self) -> str:
        bounds = [] if self.at_least is None else [f">= {self.at_least:g}"]
        bounds += [] if self.at_most is None else [f"<= {self.at_most:g}"]
        return f"{' and '.join(bounds)}, {self.over}"
