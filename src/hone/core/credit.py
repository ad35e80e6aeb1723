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
    """Predictions of a critic. A learner without a critic returns `NO_VALUES`."""

    value: NDArray[np.float32]
    """`[N]` value of the observation at each decision; `[0]` without a critic."""
    final: NDArray[np.float32]
    """`[E]` value of the final observation (used unless the episode terminated); `[0]` without a critic."""


NO_VALUES = Values(value=np.zeros(0, np.float32), final=np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """Advantages of all decisions and, for critics, value targets."""

    advantage: NDArray[np.float32]
    """`[N]` advantages; without a baseline the returns, in supervised learning 1."""
    target: NDArray[np.float32] | None = None
    """`[N]` value target, for learners with a critic on returns."""
    discount: NDArray[np.float32] | None = None
    """`[N]` factor of the next observation's value in a bootstrapped target; 0 at termination."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Counts for the step's metrics: zero-variance groups, missing scores."""


def explained_variance(values: Values, credits: Credits) -> Metrics:
    """`value/explained_variance`: 1 - Var(target - value) / Var(target) over a step's decisions, with values from
    before the critic's update; {} without a critic, or with equal targets."""
    if credits.target is None or len(values.value) != len(credits.target):
        return {}
    spread = float(np.var(credits.target, dtype=np.float64))
    if not spread > 0:
        return {}
    rest = np.subtract(credits.target, values.value, dtype=np.float64)
    return {"value/explained_variance": 1.0 - float(np.var(rest)) / spread}
