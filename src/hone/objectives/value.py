"""Losses of critics on returns: how far a value is from its target, per decision.

Values as one number. Values as distributions, which are often steadier, are in `distributional.py`.
"""

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms


def _told(value: PerDecision, target: PerDecision) -> Mapping[str, PerDecision]:
    return {"value/mean": value.detach(), "value/error_abs": (value - target).abs()}


def squared_error(value: PerDecision, target: PerDecision) -> LossTerms:
    """(V - target)^2 / 2."""
    return LossTerms(
        loss=0.5 * F.mse_loss(value, target, reduction="none"), compute_metrics=lambda: _told(value, target)
    )


def huber(value: PerDecision, target: PerDecision, *, delta: float = 1.0) -> LossTerms:
    """Error^2 / 2 up to `delta`, delta * (|error| - delta / 2) beyond (Huber, 1964; DQN, Mnih et al., 2015, with 1).

    AReaL offers it for language models' critics with delta 10.
    """
    loss = F.huber_loss(value, target.to(value.dtype), reduction="none", delta=delta)
    return LossTerms(loss=loss, compute_metrics=lambda: _told(value, target))


def clipped_value(value: PerDecision, then: PerDecision, target: PerDecision, *, clip_range: float = 0.2) -> LossTerms:
    """max of the squared errors of V and of V kept within `width` of what it was, halved (PPO2's form, 2017).

    `then` is the critic's value when the batch was made. verl and OpenRLHF use a width of 0.5, TRL and slime 0.2; slime
    leaves out the half. The width is in units of the return: with returns far from 1 it stops nearly every gradient,
    which `value/clip_fraction` tells.
    """
    kept = then + (value - then).clamp(-clip_range, clip_range)
    free, held = (value - target).square(), (kept - target).square()
    return LossTerms(
        loss=0.5 * torch.maximum(free, held),
        compute_metrics=lambda: {**_told(value, target), "value/clip_fraction": (held > free).to(value.dtype)},
    )
