"""Losses of a GAIL discriminator: demonstrations against the policy's own decisions, and its gradient penalty.

Its logit is l = log D - log(1 - D), D the probability that the decision is a demonstration. (Ho and Ermon, 2016, call 1
- D by this letter.) Rewards made from l are in `credit/adversarial.py`.
"""

from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms

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
