"""Histogram of durations in Prometheus's text format: the same for completions and for decisions."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class SecondsHistogram:
    """Histogram of durations, seconds."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._total_s = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._counts)

    @property
    def mean_s(self) -> float:
        """Mean; 0 without any."""
        return self._total_s / self.count if self.count else 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` equal durations."""
        self._counts[bisect_left(self._bounds_s, seconds)] += count
        self._total_s += seconds * count

    def lines(self, name: str) -> Iterator[str]:
        """Lines of Prometheus's text format."""
        below = 0
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self._total_s:.6f}"
        yield f"{name}_count {below}"
