"""Values and credits: the critic's predictions, and the advantages and targets computed from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Metrics: TypeAlias = dict[str, float]
"""Figures of one step, by canonical name (`reward/mean`, `policy/entropy_nats`, `time/collect_s`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a critic expects. A learner without a critic returns `NO_VALUES`."""

    value: NDArray[np.float32]
    """`[N]` worth of what was seen at each decision; `[0]` without a critic."""
    final: NDArray[np.float32]
    """`[E]` worth of what was seen after the last decision (used unless the episode terminated); `[0]` without."""


NO_VALUES = Values(value=np.zeros(0, np.float32), final=np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """One number per decision that says how much better than expected it went; and, for critics, what to aim at."""

    advantage: NDArray[np.float32]
    """`[N]`; for a method without a baseline, the return itself; for supervised learning, 1."""
    target: NDArray[np.float32] | None = None
    """`[N]` value target, for learners with a critic on returns."""
    discount: NDArray[np.float32] | None = None
    """`[N]` factor on the worth of the final observation in a bootstrapped target; 0 where the world ended."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Counts that belong to the step's report: zero-variance groups, missing scores."""
