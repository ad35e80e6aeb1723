"""What every objective returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def _nothing() -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One number to lower per decision, before weighting, and what can be told of it."""

    loss: Tensor
    """`[n]` with gradient; the learner sums `weight * loss`."""
    told: Callable[[], Mapping[str, Tensor]] = _nothing
    """Computes the metrics, `[n]` each; called only where somebody listens: a small network's step is short."""

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """By name, `[n]` each; reported as the mean over decisions, or as the largest where the name ends in `_max`."""
        with torch.no_grad():
            return self.told()
