"""Losses that preserve entropy by treating the tokens of the largest covariance separately: Clip-Cov and KL-Cov.

Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", 2025, 2505.22617.
The change of entropy in a step is minus the covariance of log-probability and advantage, and few tokens make up most of
it. `selection.py` selects them over the whole batch of the optimizer step; the losses here take the mask as data.
"""

import torch

from hone.objectives.policy import clipped_surrogate
from hone.objectives.ratios import logp_difference, ratio, ratio_metrics
from hone.objectives.shapes import Multiplier, PerDecision
from hone.objectives.terms import LossTerms


def clip_cov(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    dropped: Multiplier,
    *,
    low: float = 0.2,
    high: float = 0.2,
    negative_cap: float | None = None,
) -> LossTerms:
    """The clipped surrogate, 0 where `dropped` is not 0 (Clip-Cov, 2025); see `selection.clip_cov_mask`.

    Metrics: those of the surrogate, with dropped decisions counted in `clip_fraction`, and the share dropped.
    """
    terms = clipped_surrogate(now, then, advantage, low=low, high=high, negative_cap=negative_cap)
    left_out = dropped != 0

    def compute_metrics() -> dict[str, PerDecision]:
        metrics = dict(terms.metrics)
        metrics["policy/clip_fraction"] = metrics["policy/clip_fraction"].masked_fill(left_out & (advantage != 0), 1.0)
        return metrics | {"policy/covariance_fraction": left_out.to(terms.loss.dtype)}

    return LossTerms(loss=torch.where(left_out, 0.0, terms.loss), compute_metrics=compute_metrics)


def kl_cov(
    now: PerDecision, then: PerDecision, advantage: PerDecision, chosen: Multiplier, *, penalty: float = 1.0
) -> LossTerms:
    """-r A, plus `penalty` * |log r| where `chosen` is not 0 (KL-Cov, 2025); see `selection.kl_cov_mask`.

    No ratio is clipped. At r = 1 the penalty has no slope (its subgradient there is 0), so the first step on a batch is
    the policy gradient. Not proportional to the advantage where chosen.
    """
    r = ratio(now, then)
    held_back = (chosen != 0).to(r.dtype)
    return LossTerms(
        loss=penalty * held_back * logp_difference(now, then).abs() - advantage * r,
        compute_metrics=lambda: {
            "policy/covariance_fraction": held_back,
            **ratio_metrics(r, logp_difference(now, then)),
        },
    )
