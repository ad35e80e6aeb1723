"""Losses of preferences: pairs of answers, one preferred (DPO and its variants, per pair), and single marked answers.

`chosen`, `rejected` are the implicit rewards of `implicit.py` (mostly s = log pi / pi_ref of a whole answer, in nats),
with gradient; D = chosen - rejected. beta is the KL coefficient of the reference. TRL's `rewards/margins` is beta * D;
`preference/margin_nats` here is D, so that runs of different beta can be compared.

Single answers marked desirable or not (KTO, BCO, APO-zero): `score` is s. Micro-batches need not hold both kinds: the
batch statistics of KTO and BCO are data here.

Without a reference (CPO, SimPO, ORPO), the loss itself limits the drift: by the likelihood of the chosen answer, or by
a sufficient margin; each function states whether its log-probabilities are sums or means over an answer's tokens.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from jaxtyping import Real
from torch import Tensor
from torch.nn import functional as F

from hone.core.errors import ConfigError
from hone.objectives.ratios import at_least_float32, linear_tail_exp, log1mexp
from hone.objectives.terms import Flags, LossTerms, Metrics, PerAnswer, PerPair


def preference_metrics(chosen: PerPair, rejected: PerPair) -> Mapping[str, PerPair]:
    """Metrics of every pair loss. A tie counts half in the accuracy: at the first step all pairs tie."""
    margin = chosen - rejected
    return {
        "preference/accuracy": 0.5 * (1.0 + margin.sign()),
        "preference/margin_nats": margin.detach(),
        "preference/chosen_nats": chosen.detach(),
        "preference/rejected_nats": rejected.detach(),
    }


def _terms(loss: PerPair, chosen: PerPair, rejected: PerPair) -> LossTerms:
    return LossTerms(loss=loss, compute_metrics=lambda: preference_metrics(chosen, rejected))


def _smoothed_logistic(scaled: PerPair, smoothing: float) -> PerPair:
    """Cross-entropy of sigmoid(`scaled`) against a label that is right with probability 1 - smoothing."""
    if smoothing == 0.0:
        return -F.logsigmoid(scaled)
    return -(1.0 - smoothing) * F.logsigmoid(scaled) - smoothing * F.logsigmoid(-scaled)


def dpo(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1, smoothing: float = 0.0) -> LossTerms:
    """-(1 - e) logsigmoid(beta D) - e logsigmoid(-beta D): DPO (Rafailov et al., 2023); cDPO where e > 0 (Mitchell,
    2023), e the assumed share of wrong labels.

    It is Bradley-Terry on the rewards beta * s. TRL 1.16 ignores `label_smoothing` here, TRL 0.24, OpenRLHF and the
    authors do not.
    """
    return _terms(_smoothed_logistic(beta * (chosen - rejected), smoothing), chosen, rejected)


def robust_dpo(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1, smoothing: float = 0.1) -> LossTerms:
    """[-(1 - e) logsigmoid(beta D) + e logsigmoid(-beta D)] / (1 - 2e): robust DPO (Chowdhury et al., 2024).

    Its mean over labels flipped with probability e is DPO's loss on the true labels. Raises ConfigError for e >= 1/2.
    """
    if not 0.0 <= smoothing < 0.5:
        raise ConfigError(f"robust DPO needs 0 <= smoothing < 0.5, got {smoothing}: at 0.5 labels are noise")
    scaled = beta * (chosen - rejected)
    right, wrong = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    loss = (smoothing * wrong - (1.0 - smoothing) * right) / (1.0 - 2.0 * smoothing)
    return _terms(loss, chosen, rejected)


def ipo(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1) -> LossTerms:
    """(D - 1 / (2 beta))^2: IPO (Azar et al., 2023); the margin has a target and does not grow beyond it.

    On a pair preferred with probability p, the minimiser is D = (2p - 1) / (2 beta). Sums or means over tokens: see
    `implicit.reference_log_ratio`.
    """
    return _terms((chosen - rejected - 0.5 / beta).square(), chosen, rejected)


def hinge(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1) -> LossTerms:
    """relu(1 - beta D): SLiC-HF's hinge (Zhao et al., 2023) on DPO's margin (Liu et al., 2023); no gradient beyond."""
    return _terms(F.relu(1.0 - beta * (chosen - rejected)), chosen, rejected)


def nca_pair(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1) -> LossTerms:
    """-logsigmoid(beta s_w) - logsigmoid(-beta s_w) / 2 - logsigmoid(-beta s_l) / 2: NCA for two answers (Chen et al.,
    2024). Each answer is contrasted with noise, which raises the chosen one's likelihood and not only the margin.
    """
    won, lost = beta * chosen, beta * rejected
    loss = -F.logsigmoid(won) - 0.5 * F.logsigmoid(-won) - 0.5 * F.logsigmoid(-lost)
    return _terms(loss, chosen, rejected)


def sppo(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1, probability: PerPair | float = 1.0) -> LossTerms:
    """(s_w - (P - 1/2) / beta)^2 + (s_l + (P - 1/2) / beta)^2: SPPO (Wu et al., 2024).

    `probability` P that the chosen answer beats the rejected one; 1 is the hard label of TRL's 'sppo_hard'. beta is the
    paper's 1 / eta.
    """
    goal = (probability - 0.5) / beta
    return _terms((chosen - goal).square() + (rejected + goal).square(), chosen, rejected)


def apo_zero(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1) -> LossTerms:
    """1 - sigmoid(beta s_w) + sigmoid(beta s_l): APO-zero (D'Oosterlinck et al., 2024), for chosen answers better than
    the policy's own: their likelihood rises, the rejected ones' falls.
    """
    return _terms(torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected), chosen, rejected)


def apo_down(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1) -> LossTerms:
    """sigmoid(beta s_w) + 1 - sigmoid(beta D): APO-down (D'Oosterlinck et al., 2024), for policies better than both
    answers: both likelihoods fall, the rejected one's more.
    """
    margin = beta * (chosen - rejected)
    return _terms(torch.sigmoid(beta * chosen) + torch.sigmoid(-margin), chosen, rejected)


def exo_pair(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1, smoothing: float = 1e-3) -> LossTerms:
    """KL(sigmoid(beta D) || smoothed label): EXO for pairs (Ji et al., 2024), the reverse KL where DPO has the forward.

    p (log p - log(1 - e)) + (1 - p) (log(1 - p) - log e), p = sigmoid(beta D). e = 0 is infinite: TRL 0.24 put 1e-3 in
    its place, the paper's; 1.16 refuses it, as is done here with ConfigError.
    """
    if not 0.0 < smoothing < 1.0:
        raise ConfigError(f"EXO needs 0 < smoothing < 1, got {smoothing}: its KL to a hard label is infinite")
    scaled = beta * (chosen - rejected)
    log_right, log_wrong = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    right = log_right.exp() * (log_right - math.log1p(-smoothing))
    wrong = log_wrong.exp() * (log_wrong - math.log(smoothing))
    return _terms(right + wrong, chosen, rejected)


def discopop(chosen: PerPair, rejected: PerPair, *, beta: float = 0.1, sharpness: float = 0.05) -> LossTerms:
    """(1 - q) * -logsigmoid(beta D) + q * exp(-beta D), q = sigmoid(beta D / sharpness): DiscoPOP (Lu et al., 2024).

    A mixture of the logistic and the exponential loss, proposed by a language model. Not convex around D = 0.
    """
    scaled = beta * (chosen - rejected)
    share = scaled / sharpness
    # exp(-x) * sigmoid(x / tau) as one exponent: apart, one factor overflows where the other vanishes.
    exponential = linear_tail_exp(F.logsigmoid(share) - scaled)
    return _terms(torch.sigmoid(-share) * -F.logsigmoid(scaled) + exponential, chosen, rejected)


# --------------------------------------------------------------------------- BCO: a shift from all that came before


def bco_pair(chosen: PerPair, rejected: PerPair, shift: PerPair, *, beta: float = 0.1) -> LossTerms:
    """-logsigmoid(beta (s_w - shift)) - logsigmoid(-beta (s_l - shift)): BCO (Jung et al., 2024), a classifier of
    single answers. `shift` nats is data, from `batchwide.RunningShift`. TRL 1.16's `bco_pair` has none, 0.24 has.
    """
    loss = -F.logsigmoid(beta * (chosen - shift)) - F.logsigmoid(-beta * (rejected - shift))
    return LossTerms(
        loss=loss, compute_metrics=lambda: {**preference_metrics(chosen, rejected), "preference/shift_nats": shift}
    )


# -------------------------------------------------------------- AOT: whole distributions of margins, not single pairs
# Alignment via optimal transport (Melnyk et al., 2024): one distribution of scores is to dominate another. Both are
# sorted over the whole optimizer batch and compared rank by rank. Sorting needs the batch, so it is done once, on
# detached columns; a row then takes its partner's score as data. All pairs must have the same weight.


# A comparison maps beta times the difference of two scores of one rank to a loss, here and in its arguments below.

RankComparison: TypeAlias = Callable[[PerPair], PerPair]
"""beta times a difference of scores -> loss; it must fall with the difference."""


def hinge_comparison(scaled: PerPair) -> PerPair:
    """relu(1 - x): no loss for ranks that differ by enough."""
    return F.relu(1.0 - scaled)


def squared_hinge_comparison(scaled: PerPair) -> PerPair:
    """relu(1 - x)^2: the convex cost whose optimal transport AOT's theory is written for (Melnyk et al., 2024)."""
    return F.relu(1.0 - scaled).square()


def aot(
    margin: PerPair,
    partner: PerPair,
    *,
    beta: float = 0.1,
    smoothing: float = 0.0,
    comparison: RankComparison | None = None,
) -> LossTerms:
    """-logsigmoid(beta (margin - partner)), smoothed as cDPO: paired AOT. `margin` = log pi(y_w) - log pi(y_l),
    `partner` of `batchwide.aot_partners`, data. Another `comparison` takes the logistic loss's place. Metric: the share
    of ranks where the policy's margins are larger.
    """
    loss = _compared(beta * (margin - partner), smoothing, comparison)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "preference/dominance": 0.5 * (1.0 + (margin - partner).sign()),
            "preference/rank_margin_nats": margin - partner,
        },
    )


def aot_unpaired(
    chosen: PerPair,
    rejected: PerPair,
    chosen_partner: PerPair,
    rejected_partner: PerPair,
    *,
    beta: float = 0.1,
    smoothing: float = 0.0,
    comparison: RankComparison | None = None,
) -> LossTerms:
    """Unpaired AOT, on sorted implicit rewards: sum over ranks k of l(s_w(k) - s_l(k)), l = -logsigmoid(beta .),
    smoothed, or another `comparison`.

    `chosen_partner` is the rejected score with the rank of this row's chosen one, `batchwide.same_rank` of (chosen,
    rejected); `rejected_partner` that of (rejected, chosen); both data. A rank joins two rows, so a row's loss is l(s_w
    - partner) plus a term of value 0 that carries the gradient of its rejected score: summed over the batch, value and
    gradient are those of the sorted form.
    """
    up = _compared(beta * (chosen - chosen_partner.detach()), smoothing, comparison)
    down = _compared(beta * (rejected_partner.detach() - rejected), smoothing, comparison)
    return LossTerms(
        loss=up + (down - down.detach()),
        compute_metrics=lambda: {
            **preference_metrics(chosen, rejected),
            "preference/dominance": 0.5 * (1.0 + (chosen - chosen_partner).sign()),
            "preference/rank_margin_nats": chosen - chosen_partner,
        },
    )


def _compared(scaled: PerPair, smoothing: float, comparison: RankComparison | None) -> PerPair:
    """The smoothed comparison; without one, the logistic."""
    if comparison is None:
        return _smoothed_logistic(scaled, smoothing)
    if smoothing == 0.0:
        return comparison(scaled)
    return (1.0 - smoothing) * comparison(scaled) + smoothing * comparison(-scaled)


# ------------------------------------------------------------------------------------------------------------- unpaired


def _metrics(score: PerAnswer, desirable: Flags, threshold: PerAnswer) -> Metrics:
    side = torch.where(desirable, score - threshold, threshold - score)
    return {
        "preference/accuracy": 0.5 * (1.0 + side.sign()),
        "preference/desirable_nats": score[desirable].detach(),
        "preference/undesirable_nats": score[~desirable].detach(),
    }


def kto(
    score: PerAnswer,
    desirable: Flags,
    baseline: PerAnswer,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> LossTerms:
    """w_D (1 - sigmoid(beta (s - z0))) or w_U (1 - sigmoid(beta (z0 - s))): KTO (Ethayarajh et al., 2024).

    `baseline` is z0 of `batchwide.kto_baseline`, data. With unequal numbers of the two kinds, TRL's documentation
    advises (w_D * desirable) : (w_U * undesirable) between 1:1 and 4:3. TRL averages over each rank's answers, so that
    ranks with fewer have larger weights; here the weights are the learner's, over the whole batch.
    """
    reach = beta * (score - baseline)
    gained = desirable_weight * torch.sigmoid(-reach)
    lost = undesirable_weight * torch.sigmoid(reach)
    return LossTerms(
        loss=torch.where(desirable, gained, lost),
        compute_metrics=lambda: {**_metrics(score, desirable, baseline), "preference/baseline_nats": baseline},
    )


def bco(score: PerAnswer, desirable: Flags, shift: PerAnswer, *, beta: float = 0.1) -> LossTerms:
    """-logsigmoid(±beta (s - shift)): BCO (Jung et al., 2024), a binary classifier of answers; + where desirable.

    `shift` nats is data, from `batchwide.RunningShift`. TRL 0.24 could also weight undesirable answers by how alike
    their prompts are to desirable ones (UDM): multiply by `implicit.weighted_terms`.
    """
    reach = beta * (score - shift)
    return LossTerms(
        loss=-F.logsigmoid(torch.where(desirable, reach, -reach)),
        compute_metrics=lambda: {**_metrics(score, desirable, shift), "preference/shift_nats": shift},
    )


def apo_zero_unpaired(score: PerAnswer, desirable: Flags, *, beta: float = 0.1) -> LossTerms:
    """1 - sigmoid(±beta s): APO-zero on single answers (D'Oosterlinck et al., 2024): KTO with z0 = 0."""
    reach = beta * score
    return LossTerms(
        loss=torch.sigmoid(torch.where(desirable, -reach, reach)),
        compute_metrics=lambda: _metrics(score, desirable, torch.zeros_like(score)),
    )


# ------------------------------------------------------------------------------------------------------- reference free


def simpo(
    chosen: PerPair, rejected: PerPair, *, beta: float = 2.0, margin: float = 1.0, smoothing: float = 0.0
) -> LossTerms:
    """-logsigmoid(x), x = beta (a_w - a_l) - margin: SimPO (Meng et al., 2024). a: mean log-probability per token.

    `smoothing` e, the assumed share of wrong labels: -(1 - e) logsigmoid(x) - e logsigmoid(-x), as in the authors' code
    and TRL (`label_smoothing`).

    The paper tunes beta in 2-2.5 (10 for some models) and margin / beta in about 0.3-0.6. TRL reaches it through
    CPO with `loss_type="simpo"`, where beta is 0.1 and the margin 0.5 by default, and 'cpo_alpha' must be set to 0: its
    default of 1 adds the likelihood (CPO-SimPO).
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    return LossTerms(
        loss=_smoothed_logistic(beta * (chosen - rejected) - margin, smoothing),
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
