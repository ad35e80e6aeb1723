"""Watches over scores: too many missing ones stop the run; scores that mean nothing, all alike or far from those
before, are told once.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, HoneError, ResourceError, UserCodeError
from hone.core.out_of_memory import is_memory_text
from hone.core.state import State
from hone.rewards.scores import RewardScores

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


# --------------------------------------------------------------------------------------------------------------- faults
def reward_fault(*messages: str) -> HoneError:
    """ResourceError with the keys to change where `messages` tell of memory that ran out, else UserCodeError."""
    if not any(map(is_memory_text, messages)):
        return UserCodeError(*messages)
    return ResourceError(
        *messages,
        "memory ran out in a reward worker, it seems: lower user_code.workers, raise user_code.memory_bytes where it "
        "is set, or let the function need less",
    )


# --------------------------------------------------------------------------------------------------------------- budget

_EXAMPLES = 3


class UnscoredBudget:
    """Stops a run whose rewards fail: more than a share of the last answers, or every one in several batches."""

    def __init__(self, *, allowed: float = 0.05, window: int = 200, max_unscored_batches: int = 3) -> None:
        self.allowed = allowed
        self.window = window
        self.max_unscored_batches = max_unscored_batches
        self._missing: deque[bool] = deque(maxlen=window)
        self._examples: deque[str] = deque(maxlen=_EXAMPLES)
        self._unscored_batches = 0

    def observe(self, scores: RewardScores) -> None:
        """Take a batch into account. Raises UserCodeError with three examples when more than `allowed` of the last
        `window` answers are missing (checked once the window is full), or when `max_unscored_batches` batches in a row
        hold no score at all; ResourceError where these examples tell of memory that ran out."""
        missing = scores.status != ScoreStatus.SCORED
        for index in np.flatnonzero(missing):
            name = ScoreStatus(int(scores.status[index])).name.lower()
            self._examples.append(f"{name}: {scores.reasons[index] or 'no reason given'}")
        self._missing.extend(missing.tolist())
        self._unscored_batches = self._unscored_batches + 1 if len(scores) and missing.all() else 0
        count = sum(self._missing)
        if self._unscored_batches >= self.max_unscored_batches:
            raise reward_fault(
                f"no answer in {self._unscored_batches} batches in a row has a score: there is nothing to learn from",
                *self._example_lines(),
            )
        if len(self._missing) == self.window and count > self.allowed * self.window:
            raise reward_fault(
                f"{count} of the last {self.window} answers have no score ({count / self.window:.1%}, allowed "
                f"{self.allowed:.1%}); fix the reward function, or raise user_code.missing_allowed",
                *self._example_lines(),
            )

    def state(self) -> State:
        return {
            "missing": np.array(self._missing, dtype=np.uint8),
            "examples": list(self._examples),
            "barren": self._unscored_batches,
        }

    def restore(self, state: State) -> None:
        missing, examples, barren = state.get("missing"), state.get("examples"), state.get("barren")
        if not (isinstance(missing, np.ndarray) and isinstance(examples, list) and isinstance(barren, int)):
            raise DataError("the checkpoint's reward budget needs missing, examples and barren")
        self._missing = deque(missing.astype(bool).tolist(), maxlen=self.window)
        self._examples = deque(map(str, examples), maxlen=_EXAMPLES)
        self._unscored_batches = barren

    def _example_lines(self) -> list[str]:
        return [f"  for example {text}" for text in self._examples]
