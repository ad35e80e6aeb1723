"""Losses of networks beside the policy: critics on returns, dynamics models, GAIL discriminators, loads of experts.

Values as distributions, which are often more stable, are in `distributional.py`. The discriminator's logit is
l = log D - log(1 - D), D the probability that the decision is a demonstration (Ho and Ermon, 2016, call 1 - D by this
letter); rewards made from l are in `credit/shaping.py`.
"""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.terms import LossTerms, Members, PerDecision


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


# -------------------------------------------------------------------------------------------------------------- experts


def load_balance(logits: Float[Tensor, "n L E"], load: Float[Tensor, "L E"]) -> PerDecision:
    """mean over layers of E sum_e load_e p_e, by decision, with p = softmax(logits) (Fedus et al., 2021).

    `logits` `[n, L, E]` are the routers' scores; `load` `[L, E]` is data: the share of the optimizer step's decisions
    that went to each expert (a layer's sum is the number of experts per token). The mean over the step's decisions is
    the loss that transformers computes for a layer; it is least, the number of experts per token, where all are equal.
    Because `load` is that of the whole step, micro-batches and ranks add up to the same gradient.
    """
    p = torch.softmax(logits, dim=-1)
    return logits.shape[-1] * (p * load.to(p.dtype)).sum(dim=-1).mean(dim=-1)


def balanced_bias(bias: Float[Tensor, " E"], load: Float[Tensor, " E"], *, rate: float) -> Float[Tensor, " E"]:
    """bias + rate sign(mean load - load), `[E]`: the next choice favours experts with less than the mean load
    (loss-free balancing, Wang et al., 2024)."""
    return bias + rate * torch.sign(load.mean() - load).to(bias.dtype)


# ------------------------------------------------------------------------------------------------------------- dynamics
# Loss of learned dynamics models: the Gaussian likelihood of an ensemble's predictions.
#
# The networks are in `models.control.ensemble_dynamics`.


def gaussian_nll(mean: Members, log_variance: Members, target: Members) -> LossTerms:
    """1/2 [(target - mean)^2 / variance + log variance], summed over members and numbers (Nix & Weigend, 1994).

    All `[K, n, d]` -> loss `[n]` in nats, without the constant d/2 log 2 pi. Used for ensembles by Chua et al. (2018).
    """
    gap = target - mean
    squared = gap * gap
    loss = 0.5 * (squared * (-log_variance).exp() + log_variance).sum(dim=(0, 2))
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "model/squared_error": squared.detach().mean(dim=(0, 2)),
            "model/log_variance_nats": log_variance.detach().mean(dim=(0, 2)),
        },
    )


# ---------------------------------------------------------------------------------------------------------- adversarial


LEAST = 1e-24
"""Floor of a squared norm: the gradient of the root is infinite at 0."""
Slopes: TypeAlias = Float[Tensor, "n d"]
"""The gradient of each logit with respect to its d inputs."""


def discriminator_loss(shown: PerDecision, own: PerDecision) -> LossTerms:
    """-log D(shown) - log(1 - D(own)) = softplus(-l shown) + softplus(l own), in nats (GAIL: Ho and Ermon, 2016).

    A pair of one demonstration and one decision of the policy; 2 log 2 = 1.39 at l = 0. Accuracies are the shares on
    the right side of l = 0, where 0 counts as neither.
    """
    return LossTerms(
        loss=-F.logsigmoid(shown) - F.logsigmoid(-own),
        compute_metrics=lambda: {
            "discriminator/accuracy_expert": (shown > 0).to(shown.dtype),
            "discriminator/accuracy_policy": (own < 0).to(own.dtype),
        },
    )


def gradient_norm_penalty(slope: Slopes) -> LossTerms:
    """(|slope| - 1)^2: the gradient penalty (Gulrajani et al., 2017, 1704.00028).

    Taken between demonstrations and the policy's own decisions, it keeps the logit from jumping between them: a policy
    that comes nearer then gets a larger reward, which a discriminator that separates them perfectly does not give.
    """
    length = slope.square().sum(dim=1).clamp(min=LEAST).sqrt()
    return LossTerms(loss=(length - 1.0).square(), compute_metrics=lambda: {"discriminator/slope": length.detach()})
