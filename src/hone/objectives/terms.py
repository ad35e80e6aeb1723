"""What every objective returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One number to lower per decision, before weighting, and what to tell of it."""

    loss: Tensor
    """`[n]` with gradient; the learner sums `weight * loss`."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """`[n]` each, detached; reported as the mean over decisions, or as the largest where the name ends in `_max`."""
