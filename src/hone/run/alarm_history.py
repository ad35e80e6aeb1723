"""Metrics of a run over its lines so far: its beginning, its latest lines, its trends.

Belongs here: statistics that the rules of `alarms.py` compare.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hone.core.credit import Metrics

WINDOW: Final = 50
"""Lines that a rule looks back on, at most."""
RECENT: Final = 5
"""Lines whose mean is the present."""
MIN_LINES: Final = 10
"""Lines of the beginning, at least, unless the run is shorter."""


@dataclass(slots=True)
class Series:
    """A metric over the lines so far: its beginning, and its latest lines."""

    start: list[float] = field(default_factory=list[float])
    """Values of the first tenth of the run."""
    latest: list[float] = field(default_factory=list[float])
    """The last `2 * WINDOW` values."""
    best: float = -math.inf
    count: int = 0
    """Values so far: a metric need not be in every line."""
    start_mean: float = math.nan
    start_std: float = math.nan

    def add(self, value: float, *, begins: bool) -> None:
        """Take in a value; with `begins` it is one of the beginning."""
        if begins:
            self.start.append(value)
            self.start_mean, self.start_std = _mean(self.start), _std(self.start)
        self.latest.append(value)
        if len(self.latest) > 2 * WINDOW:
            del self.latest[0]
        self.count += 1
        self.best = max(self.best, value)

    def recent(self, lines: int = RECENT) -> float:
        """Mean of the latest lines."""
        return _mean(self.latest[-lines:])

    def slope(self) -> float:
        """Change from value to value, over the last `2 * WINDOW`: of the changes between the medians of their four
        quarters the least, and 0 unless all have one sign, or for fewer than 20 values. What happened once is no trend.
        """
        values = np.array(self.latest)
        if len(values) < 4 * RECENT:
            return 0.0
        quarter = len(values) // 4
        changes = np.diff([np.median(values[place : place + quarter]) for place in range(0, 4 * quarter, quarter)])
        return float(min(changes, key=abs)) / quarter if abs(np.sign(changes).sum()) == 3 else 0.0

    def median_before(self) -> float:
        """Median of the lines before the recent ones; NaN without any."""
        before = self.latest[:-RECENT]
        return float(np.median(before)) if before else math.nan


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """Metrics of a run's lines so far."""

    watched: Set[str]
    """Metrics that are kept."""
    lines: int = 0
    """Lines that the whole run is to have."""
    seen: int = 0
    series: dict[str, Series] = field(default_factory=dict[str, Series])
    present: Metrics = field(default_factory=dict[str, float])
    """The latest line."""
    start_lines: int = field(init=False)
    """Lines of the beginning: a tenth of the run's, 10 to 50."""

    def __post_init__(self) -> None:
        self.start_lines = min(max(MIN_LINES, math.ceil(self.lines / 10)), WINDOW)

    def add(self, line: Metrics) -> None:
        self.seen += 1
        self.present = line
        begins = self.seen <= self.start_lines
        for name in self.watched & line.keys():
            if math.isfinite(value := line[name]):
                if (own := self.series.get(name)) is None:
                    own = self.series[name] = Series()
                own.add(value, begins=begins)

    @property
    def ahead(self) -> float:
        """Lines as many as there were, at most those that are left, as a multiple of those that there were."""
        return min(1.0, max(0, self.lines - self.seen) / max(1, self.seen))

    def known(self, *names: str) -> bool:
        """Whether the beginning is over, and each metric has values of it and of the present."""
        rows = [self.series.get(name) for name in names]
        return self.seen > self.start_lines and all(
            row is not None and len(row.start) >= 3 and len(row.latest) >= RECENT for row in rows
        )

    def has_risen(self, name: str) -> bool:
        """Whether a metric is clearly higher than in the beginning, or than in its very first lines: by 2 standard
        errors and a tenth of its size. A run that learns within its first tenth has risen, too."""
        own = self.series[name]
        latest = own.latest[-4 * RECENT :]
        start = own.start if own.start_mean <= _mean(own.start[:3]) else own.start[:3]
        error = math.hypot(_std(start) / math.sqrt(len(start)), _std(latest) / math.sqrt(len(latest)))
        return _mean(latest) - _mean(start) > max(2 * error, 0.1 * abs(_mean(start)), 1e-9)

    def is_flat(self, name: str) -> bool:
        """Whether a metric has not risen over the last tenth of the run: the newer half of it is not above the older
        one by 2 standard errors."""
        values = self.series[name].latest[-self.start_lines :]
        half = len(values) // 2
        if half < 2:
            return False
        old, new = values[:half], values[half:]
        error = math.hypot(_std(old) / math.sqrt(len(old)), _std(new) / math.sqrt(len(new)))
        return _mean(new) - _mean(old) <= 2 * error


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
