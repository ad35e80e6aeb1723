"""Losses on pairs of answers without a reference policy: CPO, SimPO, ORPO; per pair.

Without a reference, the loss itself limits the drift: by the likelihood of the chosen answer, or by a sufficient
margin. `chosen`, `rejected` in nats carry the gradient; each function states whether they are sums or means over an
answer's tokens.
"""

from jaxtyping import Real
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.numerics import log1mexp
from hone.objectives.preference import preference_metrics, smoothed_logistic
from hone.objectives.ratios import at_least_float32
from hone.objectives.shapes import PerPair
from hone.objectives.terms import LossTerms


def simpo(
    chosen: PerPair, rejected: PerPair, *, beta: float = 2.0, margin: float = 1.0, smoothing: float = 0.0
) -> LossTerms:
    """-logsigmoid(x), x = beta (a_w - a_l) - margin: SimPO (Meng et al., 2024). a: mean log-probability per token.

    `smoothing` e, the assumed share of wrong labels: -(1 - e) logsigmoid(x) - e logsigmoid(-x), as in the authors' code
    and TRL (`label_smoothing`).

    The paper tunes beta in 2-2.5 (10 for some models) and margin / beta in about 0.3-0.6. TRL reaches it through
    CPO with `loss_type="simpo"`, where beta is 0.1 and the margin 0.5 by default, and `cpo_alpha` must be set to 0: its
    default of 1 adds the likelihood (CPO-SimPO).
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    return LossTerms(
        loss=smoothed_logistic(beta * (chosen - rejected) - margin, smoothing),
        compute_metrics=lambda: preference_metrics(chosen, rejected),
    )


def simpo_hinge(chosen: PerPair, rejected: PerPair, *, beta: float = 2.0, margin: float = 1.0) -> LossTerms:
    """relu(1 - x), x = beta (a_w - a_l) - margin: SimPO's margin under a hinge (`loss_type="hinge"` of the authors'
    code, Meng et al., 2024); no gradient where x is above 1. TRL's CPO with a hinge has sums in the place of the means
    a, and no margin (`margin=0`).
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    return LossTerms(
        loss=F.relu(1.0 - (beta * (chosen - rejected) - margin)),
        compute_metrics=lambda: preference_metrics(chosen, rejected),
    )


def cpo(
    chosen: PerPair, rejected: PerPair, chosen_length: Real[Tensor, " p"], *, beta: float = 0.1, likelihood: float = 1.0
) -> LossTerms:
    """-logsigmoid(beta (log pi_w - log pi_l)) - likelihood * a_w: CPO (Xu et al., 2024).

    `chosen`, `rejected` are sums over tokens; a_w = chosen / `chosen_length` is the mean. The authors' code and TRL
    average the likelihood over all tokens of a micro-batch, which depends on how the batch is split; here each pair
    brings its own mean.
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    nll = -chosen / chosen_length.clamp(min=1)
    return LossTerms(
        loss=-F.logsigmoid(beta * (chosen - rejected)) + likelihood * nll,
        compute_metrics=lambda: {**preference_metrics(chosen, rejected), "policy/nll_nats": nll.detach()},
    )


def orpo(chosen: PerPair, rejected: PerPair, *, weight: float = 0.1) -> LossTerms:
    """-a_w - weight * logsigmoid(log odds(a_w) - log odds(a_l)), odds(a) = e^a / (1 - e^a): ORPO (Hong et al., 2024).

    a: mean log-probability per token < 0. log(1 - e^a) is computed by log1mexp, so a near 0 does not overflow. By
    default the authors' code also takes the likelihood over the prompt; here prompts are never imitated.
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    log_odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected))
    return LossTerms(
        loss=-chosen - weight * F.logsigmoid(log_odds),
        compute_metrics=lambda: {
            **preference_metrics(chosen, rejected),
            "preference/log_odds_nats": log_odds.detach(),
            "policy/nll_nats": -chosen.detach(),
        },
    )
