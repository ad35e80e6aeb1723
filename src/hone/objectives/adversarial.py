"""Losses of a discriminator: was this decision shown, or is it the policy's own, and how steep may its answer be.

It answers with a logit l = log D - log(1 - D), D the probability that the decision was shown. (Ho and Ermon, 2016, call
D what is 1 - D here.) What a policy is paid for l is said in `credit/adversarial.py`.
"""

from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms

LEAST = 1e-24
"""Of a squared length: the root of less has no gradient."""
Slopes: TypeAlias = Float[Tensor, "n d"]
"""The gradient of each logit by the d numbers that it is about."""


def discriminator_loss(shown: PerDecision, own: PerDecision) -> LossTerms:
    """-log D(shown) - log(1 - D(own)) = softplus(-l shown) + softplus(l own), in nats (GAIL: Ho and Ermon, 2016).

    A pair of one demonstration and one decision of the policy; 2 log 2 = 1.39 for a coin. Accuracies are the shares
    that are on their side of l = 0, where 0 itself counts as neither.
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

    Taken between demonstrations and the policy's own decisions, it keeps the logit from jumping from one to the other:
    then a policy that comes nearer is told so, where a discriminator that knows all by heart pays the same everywhere.
    """
    length = slope.square().sum(dim=1).clamp(min=LEAST).sqrt()
    return LossTerms(loss=(length - 1.0).square(), compute_metrics=lambda: {"discriminator/slope": length.detach()})
