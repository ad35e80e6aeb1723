"""How a text critic represents a value and learns it, as a config of recipes names it: squared, sigmoid or bins."""

from typing import Annotated, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.objectives.distributional import ValueSupport, c51_loss, hl_gauss, logits_mean, two_hot
from hone.objectives.terms import LossTerms
from hone.objectives.value import bounded_cross_entropy, clipped_value, squared_error


class SquaredErrorLoss(Config):
    """The value is a number of any size, learned by half the squared error."""

    kind: Literal["squared"] = "squared"
    """Names this alternative."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update (PPO2: 0.2), in units of the
    return: with returns far from 1 nearly every gradient is clipped to 0. Unset: no clipping."""

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each decision."""
        return 1

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return outputs[:, 0]

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """(V - target)^2 / 2, or its clipped form."""
        value = self.value(outputs)
        if self.clip_range is None or old_value is None:
            return squared_error(value, target)
        return clipped_value(value, old_value, target, clip_range=self.clip_range)


class SigmoidValueLoss(Config):
    """The value lies between two bounds, low + (high - low) * sigmoid, learned by cross-entropy: for scores."""

    kind: Literal["sigmoid"]
    """Names this alternative."""
    low: float = 0.0
    """Lowest return."""
    high: float = 1.0
    """Highest return. Returns beyond the bounds count as the nearest; `value/target_clipped` tells their share."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update. Unset: no clipping."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each decision."""
        return 1

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return self.low + (self.high - self.low) * torch.sigmoid(outputs[:, 0])

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy against the target as a share of the range."""
        return bounded_cross_entropy(
            outputs[:, 0], old_value, target, low=self.low, high=self.high, clip_range=self.clip_range
        )


class BinnedValueLoss(Config):
    """The value is the mean of a distribution over bins, learned by classification (HL-Gauss, two-hot)."""

    kind: Literal["bins"]
    """Names this alternative."""
    low: float
    """Centre of the lowest bin: the lowest return."""
    high: float
    """Centre of the highest bin: the highest return."""
    size: int = Field(default=51, ge=2, le=4096)
    """Number of bins."""
    spread: float = Field(default=0.75, ge=0)
    """Standard deviation, in bins, of the normal distribution around a target (HL-Gauss, Farebrother et al., 2024); 0
    splits a target between its two nearest bins (two-hot)."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each decision."""
        return self.size

    @property
    def clips(self) -> bool:
        """False: the loss does not look at the values before the update."""
        return False

    @property
    def support(self) -> ValueSupport:
        """The bins."""
        return ValueSupport(low=self.low, high=self.high, size=self.size)

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, size]` -> `[n]`."""
        return logits_mean(outputs, self.support)

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy of the bins against the target's distribution."""
        del old_value
        if self.spread == 0:
            return c51_loss(outputs, two_hot(target, self.support), support=self.support)
        return c51_loss(outputs, hl_gauss(target, self.support, spread=self.spread), support=self.support)


def _require_range(low: float, high: float) -> None:
    """Raises ValueError for an empty range of returns."""
    if not low < high:
        raise ValueError(f"low = {low:g} is not below high = {high:g}: they bound the returns; set both")


CriticLossConfig: TypeAlias = Annotated[
    SquaredErrorLoss | SigmoidValueLoss | BinnedValueLoss, Field(discriminator="kind")
]
