"""The limit of unscored answers: a pure state machine that observes each batch and stops the run beyond the limit."""

from collections import deque

import numpy as np

from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.state import State
from hone.rewards.faults import reward_fault
from hone.rewards.scores import RewardScores

_EXAMPLES = 3


class UnscoredBudget:
    """Stops a run whose rewards fail: more than a share of the last answers, or every one in several batches."""

    def __init__(self, *, allowed: float = 0.05, window: int = 200, barren_batches: int = 3) -> None:
        self.allowed = allowed
        self.window = window
        self.max_unscored_batches = barren_batches
        self._missing: deque[bool] = deque(maxlen=window)
        self._examples: deque[str] = deque(maxlen=_EXAMPLES)
        self._unscored_batches = 0

    def observe(self, scores: RewardScores) -> None:
        """Take a batch into account.

        Raises UserCodeError with three examples when more than `allowed` of the last `window` answers are missing
        (checked once the window is full), or when `barren_batches` batches in a row hold no score at all; ResourceError
        where these examples tell of memory that ran out.
        """
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
                f"{self.allowed:.1%}); fix the reward function, or raise rewards.missing_allowed",
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
