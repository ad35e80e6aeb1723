"""The critic's loss, as a config names it: squared, Huber's, or clipped around the value before the update."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from hone.control.networks.actor_critic import ActorCritic
from hone.control.on_policy import CriticLoss
from hone.control.rows import StepRows, step_rows
from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.objectives.value import clipped_value, huber, squared_error


@dataclass(frozen=True, kw_only=True)
class OldValueRows(StepRows):
    """On-policy steps, with the critic's values before the update."""

    old_value: Tensor
    """`[n]`."""


def old_value_rows(policy: ActorCritic, episodes: Episodes, credits: Credits) -> OldValueRows:
    """On-policy rows with the values of the critic as it is now; the weight is set by the learner."""
    rows = step_rows(episodes, credits, device=str(next(policy.parameters()).device))
    with torch.no_grad():
        value = policy.value(rows.seen)
    return OldValueRows(**vars(rows), old_value=value)


class SquaredValueLoss(Config):
    """Half the squared error."""

    kind: Literal["squared"] = "squared"
    """Names this alternative."""

    def critic_loss(self, rows: StepRows) -> CriticLoss:
        """(V - target)^2 / 2."""
        del rows
        return squared_error


class HuberValueLoss(Config):
    """Huber's error: squared up to `delta`, linear beyond, so that no target pulls without bound."""

    kind: Literal["huber"]
    """Names this alternative."""
    delta: float = Field(default=10.0, gt=0)
    """Error, in units of the return, beyond which the loss is linear."""

    def critic_loss(self, rows: StepRows) -> CriticLoss:
        """Huber's error of V against the target."""
        del rows
        return partial(huber, delta=self.delta)


class ClippedValueLoss(Config):
    """The larger of two errors: that of the value, and that of the value clipped around the one before the update."""

    kind: Literal["clipped"]
    """Names this alternative."""
    clip_range: float = Field(default=0.2, gt=0)
    """Largest change of a value that lowers its loss, in units of the return: with returns far from 1 nearly every
    gradient is clipped to 0, which `value/clip_fraction` shows."""
    delta: float | None = Field(default=None, gt=0)
    """Huber's: error beyond which both losses are linear (AReaL: 10); unset: squared."""

    def critic_loss(self, rows: StepRows) -> CriticLoss:
        """`clipped_value` around the old values of `rows`."""
        assert isinstance(rows, OldValueRows)
        old = rows.old_value
        return lambda value, target: clipped_value(value, old, target, clip_range=self.clip_range, delta=self.delta)


ValueLossConfig: TypeAlias = Annotated[
    SquaredValueLoss | HuberValueLoss | ClippedValueLoss, Field(discriminator="kind")
]
