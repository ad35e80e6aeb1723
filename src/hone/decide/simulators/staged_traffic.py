"""Traffic of a service during a staged rollout: who is exposed, and the values of both arms.

Every request is of a new unit. In a stage with share s it goes to the canary with probability s, to the concurrent
control slice with probability s, and to neither otherwise. The new version's mean is the live one's times 1 + change.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTraffic:
    """Requests of a rollout through its stages."""

    kind: Literal["score", "conversion"] = "score"
    """`score`: a reward from Beta(2, 2), with mean 1/2 and standard deviation .224; `conversion`: 0 or 1."""
    rate: float = 0.5
    """Mean of a conversion under the live version."""
    change: float = 0.0
    """Relative change of the mean under the new version: -0.05 for 5% less."""
    stages: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5)
    requests: int = 5000
    """Requests of a stage."""
    canary_part: float = 0.5
    """Part of the exposed units that reaches the canary: other than 1/2 is a fault of the assignment."""

    def exposures(self, random: np.random.Generator) -> tuple[Ints, Bools]:
        """Numbers of the requests that are exposed `[n]`, from 0, and whether the new version serves them `[n]`."""
        exposed = 2 * np.repeat(self.stages, self.requests)
        place = random.random(len(exposed))
        requests = np.flatnonzero(place < exposed)
        return requests, place[requests] < self.canary_part * exposed[requests]

    def values(self, is_new: Bools, random: np.random.Generator) -> Floats:
        """Values in [0, 1] of the exposed units `[n]`."""
        factor = np.where(is_new, 1 + self.change, 1.0)
        if self.kind == "score":
            return factor * random.beta(2, 2, len(is_new))
        return (random.random(len(is_new)) < self.rate * factor).astype(np.float64)
