"""One pass over logged decisions, in the order of time."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.state import State, integer

P = TypeVar("P")


@dataclass
class LogPass(Generic[P]):
    """Source that reads each episode of a log once, in order, in `steps` parts of nearly equal size.

    A learner in closed form counts a row that it sees twice as two rows, so the log is not repeated.
    """

    log: Episodes
    steps: int
    """Parts; at most the number of episodes."""
    drawn: int = 0
    """Parts read so far."""

    def collect(self) -> Episodes:
        begin, end = (len(self.log) * place // self.steps for place in (self.drawn, self.drawn + 1))
        self.drawn += 1
        return self.log.take(np.arange(begin, end))

    def publish(self, policy: P) -> None:
        """A log does not act."""

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"drawn": self.drawn}

    def restore(self, state: State) -> None:
        self.drawn = integer(state, "drawn")
