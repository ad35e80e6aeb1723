"""Estimators of the KL divergence to a reference policy, on sampled tokens.

With d = logp - logp_ref on samples of the policy, the estimators of KL(policy || reference) per decision are (Schulman,
"Approximating KL divergence", 2020): k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1; |d| estimates twice the total
variation. Their *values* estimate the divergence (k2 with a bias); their *gradients* as a loss on policy do not: k1's
is 0 in expectation (refused here), k2's is the gradient of KL(policy || reference), k3's that of KL(reference ||
policy), and ratio-weighted k3's that of KL(policy || reference) again, also off policy (DeepSeek-V3.2, 2025). None is
proportional to the advantage.

These statements hold for one decision in a given context. Summed over an answer, the gradients of k2 and of weighted k3
leave out that a token changes which contexts come after it: for whole answers they are biased (for answers of two
tokens of a small softmax by 20 to 30%, off policy by about half). Only a KL in the reward, as `KlRewardCredit` with
k1, has the whole answer's gradient.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch

from hone.core.errors import ConfigError, did_you_mean
from hone.objectives.ratios import LOG_RATIO_LIMIT, logp_difference
from hone.objectives.terms import LossTerms, PerDecision

LIMIT = LOG_RATIO_LIMIT
"""Log-ratios above this are clamped before exp: far beyond it float32 overflows and the backward pass is NaN."""

KlLossEstimator: TypeAlias = Callable[[PerDecision, PerDecision, PerDecision], PerDecision]
"""(now, reference, then) in nats -> nats with gradient; `then` is the behaviour policy's log-probability."""


def k1(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """d in nats, detached, for metrics and for rewards; as a loss it would only add noise."""
    return logp_difference(logp, logp_ref).detach()


def k2(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """d^2 / 2 nats; per decision its gradient is that of KL(policy || reference) on policy."""
    return 0.5 * logp_difference(logp, logp_ref) ** 2


def k3(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """exp(-d) + d - 1 nats; never negative. Differentiated, it lowers KL(reference || policy)."""
    # Clamped from above only: below, exp goes to 0 by itself, and there the policy has drifted and must be pulled back.
    difference = logp_difference(logp_ref, logp).clamp(max=LIMIT)
    return difference.exp() - difference - 1


def weighted_k3(logp: PerDecision, logp_ref: PerDecision, *, logp_old: PerDecision) -> PerDecision:
    """exp(logp - logp_old) * k3 in nats, the ratio differentiated: per decision its gradient is that of KL(policy ||
    reference), also off policy; summed over a whole answer it is biased.
    """
    return torch.exp(logp_difference(logp, logp_old).clamp(-LIMIT, LIMIT)) * k3(logp, logp_ref)


def absolute(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """|d| nats (verl's `abs`): on policy its mean is not a KL, and its expected gradient that of twice the total
    variation, sum over actions of |policy - reference|.
    """
    return logp_difference(logp, logp_ref).abs()


def with_k2_gradient(value: PerDecision, logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """`value` nats in value and k2 in gradient (verl's names with a `+`)."""
    slope = k2(logp, logp_ref)
    return slope + (value - slope).detach()


def k3_valued_k2(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """k3 in value and k2 in gradient, in nats (verl's `low_var_kl+`): both are correct per decision on policy."""
    return with_k2_gradient(k3(logp, logp_ref), logp, logp_ref)


def k1_valued_k2(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """k1 in value and k2 in gradient, in nats (verl's `kl+`, `k1+`): both are correct per decision on policy."""
    return with_k2_gradient(k1(logp, logp_ref), logp, logp_ref)


def absolute_valued_k2(logp: PerDecision, logp_ref: PerDecision) -> PerDecision:
    """|d| in value and k2 in gradient, in nats (verl's `abs+`)."""
    return with_k2_gradient(absolute(logp, logp_ref), logp, logp_ref)


_AS_A_LOSS: Final[Mapping[str, KlLossEstimator]] = {
    "k2": lambda now, reference, _then: k2(now, reference),
    "k3": lambda now, reference, _then: k3(now, reference),
    "weighted_k3": lambda now, reference, then: weighted_k3(now, reference, logp_old=then),
    "k3_valued_k2": lambda now, reference, _then: k3_valued_k2(now, reference),
    "k1_valued_k2": lambda now, reference, _then: k1_valued_k2(now, reference),
    "absolute": lambda now, reference, _then: absolute(now, reference),
    "absolute_valued_k2": lambda now, reference, _then: absolute_valued_k2(now, reference),
}


def kl_loss_estimator(name: str) -> KlLossEstimator:
    """KL estimator by its name in the config, as a loss. Raises ConfigError for an unknown name, and for `k1`."""
    if name in _AS_A_LOSS:
        return _AS_A_LOSS[name]
    if name == "k1":
        raise ConfigError(
            "KL estimator 'k1' cannot be a loss: the expected gradient of logp - logp_ref is 0, so it would only add "
            "noise and the reference would have no pull; take 'k1_valued_k2', 'k2' or 'weighted_k3', or put k1 into "
            "the reward"
        )
    raise ConfigError(f"unknown KL estimator {name!r}{did_you_mean(name, list(_AS_A_LOSS))}")


def kl_penalty(now: PerDecision, reference: PerDecision, then: PerDecision, *, estimator: KlLossEstimator) -> LossTerms:
    """KL penalty as loss terms; add it with a weight: `add_terms(loss, penalty, weight=0.001)`. All in nats.

    Metric: k1, whose mean estimates KL(policy || reference) for samples of the policy.
    """
    return LossTerms(
        loss=estimator(now, reference, then), compute_metrics=lambda: {"policy/kl_reference": k1(now, reference)}
    )
