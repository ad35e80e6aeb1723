"""Losses of a scalar critic on returns: the error of a value against its target, one term per decision.

Values as distributions, which are often more stable, are in `distributional.py`.
"""

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms


def _metrics(value: PerDecision, target: PerDecision) -> Mapping[str, PerDecision]:
    return {"value/mean": value.detach(), "value/error_abs": (value - target).abs()}


def squared_error(value: PerDecision, target: PerDecision) -> LossTerms:
    """(V - target)^2 / 2."""
    loss = 0.5 * F.mse_loss(value, target.to(value.dtype), reduction="none")  # CUDA's gradient wants one dtype
    return LossTerms(loss=loss, compute_metrics=lambda: _metrics(value, target))


def huber(value: PerDecision, target: PerDecision, *, delta: float = 1.0) -> LossTerms:
    """Error^2 / 2 up to `delta`, delta * (|error| - delta / 2) beyond (Huber, 1964; DQN, Mnih et al., 2015, with 1).

    AReaL offers it for language models' critics with delta 10.
    """
    loss = F.huber_loss(value, target.to(value.dtype), reduction="none", delta=delta)
    return LossTerms(loss=loss, compute_metrics=lambda: _metrics(value, target))


def clipped_value(
    value: PerDecision, then: PerDecision, target: PerDecision, *, clip_range: float = 0.2, delta: float | None = None
) -> LossTerms:
    """max((V - target)^2, (V_clip - target)^2) / 2, V_clip within `clip_range` of the old value (PPO2, 2017).

    With `delta` both errors are Huber's: squared up to delta, linear beyond, as in AReaL (delta 10).

    `then` is the critic's value when the batch was collected. verl and OpenRLHF use 0.5, TRL and slime 0.2; slime
    leaves out the half. The range is in units of the return: with returns far from 1 nearly every gradient is clipped
    to 0, which `value/clip_fraction` shows.
    """
    kept = then + (value - then).clamp(-clip_range, clip_range)
    aim = target.to(value.dtype)
    if delta is None:
        free, held = 0.5 * (value - aim).square(), 0.5 * (kept - aim).square()
    else:
        free, held = (F.huber_loss(guess, aim, reduction="none", delta=delta) for guess in (value, kept))
    return LossTerms(
        loss=torch.maximum(free, held),
        compute_metrics=lambda: {**_metrics(value, target), "value/clip_fraction": (held > free).to(value.dtype)},
    )


def bounded_cross_entropy(
    logit: PerDecision,
    then: PerDecision | None,
    target: PerDecision,
    *,
    low: float,
    high: float,
    clip_range: float | None,
) -> LossTerms:
    """Cross-entropy of a value V = low + (high - low) * sigmoid(logit) against its target as a share of the range.

    For returns in [low, high], such as scores in [0, 1]: the gradient in the logit is the error itself, and does not
    vanish where the sigmoid is flat. Targets beyond the range count at its ends, and `value/target_clipped` tells their
    share. With `clip_range` the loss is the larger one of V and of V clipped around the old value `then`, as in
    `clipped_value`.
    """
    share = ((target - low) / (high - low)).clamp(0.0, 1.0).to(logit.dtype)
    value = low + (high - low) * torch.sigmoid(logit)
    beyond = ((target < low) | (target > high)).to(logit.dtype)
    free = F.binary_cross_entropy_with_logits(logit, share, reduction="none")
    metrics = {"value/target_clipped": beyond}
    loss = free
    if clip_range is not None and then is not None:
        kept = (then + (value - then).clamp(-clip_range, clip_range) - low) / (high - low)
        held = F.binary_cross_entropy(kept.clamp(1e-6, 1.0 - 1e-6), share, reduction="none")
        loss = torch.maximum(free, held)
        metrics["value/clip_fraction"] = (held > free).to(logit.dtype)
    return LossTerms(loss=loss, compute_metrics=lambda: {**_metrics(value, target), **metrics})
