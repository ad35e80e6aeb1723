"""Watch over scores that somebody else computes, such as a server's: told once when they mean nothing.

Belongs here: all scores alike, and scores far from those before. A reward model knows its own training scores; a server
and a judge are compared with the run's earlier ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

MIN_ALIKE = 16
"""Answers in a row with one score before that is told."""
MIN_SEEN = 64
"""Scores before later ones are compared with them."""
FAR_SD = 10.0
"""Standard deviations from the earlier scores that are far."""


@dataclass
class ScoreWatch:
    """Mean and variance of the scores so far (Welford, 1962), and the notices that follow."""

    source: str
    """Name in notices: `reward server 'quality'`."""
    _count: int = 0
    _mean: float = 0.0
    _squares: float = 0.0
    """Sum of the squared distances from the mean."""
    _alike: int = 0
    """Scores in a row that equal the last one."""
    _last: float = math.nan
    _told: set[str] = field(default_factory=set[str])
    _notices: list[str] = field(default_factory=list[str])

    def observe(self, scores: Sequence[float]) -> None:
        """Take the scores of a batch into account; NaN is left out."""
        known = [score for score in scores if math.isfinite(score)]
        self._tell_far(known)
        for score in known:
            self._alike = self._alike + 1 if score == self._last else 1
            self._last = score
            self._count += 1
            before = score - self._mean
            self._mean += before / self._count
            self._squares += before * (score - self._mean)
        if self._alike >= MIN_ALIKE and self._alike >= self._count:
            self._tell(
                "alike", f"gave all of the first {self._alike} answers the same score, {self._last:g}: it tells nothing"
            )

    def notices(self) -> list[str]:
        """Notices since the last call; each kind once."""
        notices, self._notices = self._notices, []
        return notices

    def _tell_far(self, scores: Sequence[float]) -> None:
        if self._count < MIN_SEEN or not scores:
            return
        deviation = math.sqrt(self._squares / (self._count - 1))
        distances = np.abs(np.array(scores) - self._mean)
        far = int((distances > FAR_SD * max(deviation, 1e-12)).sum())
        if far and deviation > 0:
            worst = scores[int(distances.argmax())]
            self._tell(
                "far",
                f"gave {far} of {len(scores)} scores more than {FAR_SD:g} standard deviations from the {self._count} "
                f"before ({self._mean:.3g} +- {deviation:.3g}, the furthest is {worst:.3g})",
            )

    def _tell(self, kind: str, words: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._notices.append(f"{self.source} {words}")
