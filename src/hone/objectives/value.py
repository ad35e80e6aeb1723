"""Losses of critics on returns: how far a value is from its target, per decision."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.terms import Terms


def squared(value: Tensor, target: Tensor) -> Terms:
    """(V - target)^2 / 2. `value`, `target` `[n]`."""
    return Terms(loss=0.5 * F.mse_loss(value, target, reduction="none"), told=lambda: {"value/mean": value.detach()})


def clipped_value(value: Tensor, then: Tensor, target: Tensor, *, width: float) -> Terms:
    """max of the squared errors of V and of V kept within `width` of what it was, halved (PPO2's form, 2017).

    `value`, `then` (the critic when the batch was made), `target` `[n]`.
    """
    kept = then + (value - then).clamp(-width, width)
    loss = 0.5 * torch.maximum((value - target).square(), (kept - target).square())
    return Terms(loss=loss, told=lambda: {"value/mean": value.detach()})
