"""Implicit rewards: from log-probabilities of whole answers to the scores that preference losses compare.

Log-ratios to a reference, length normalisation, f-divergence links, and pair weights. A loss of `preference.py` takes
any of these scores, so variants are composed: `dpo(alpha_link(reference_log_ratio(now, ref)), ...)`.
"""

import math

import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.ratios import at_least_float32, linear_tail_exp, sum_by_sequence
from hone.objectives.terms import Indices, LossTerms, PerAnswer, PerDecision, PerPair


def reference_log_ratio(now: PerAnswer, reference: PerAnswer, *, length: Real[Tensor, " n"] | None = None) -> PerAnswer:
    """s = log pi(y | x) - log pi_ref(y | x) of each answer in nats; in nats per token where `length` is given.

    `now`, `reference` are sums over the answer's tokens; the reference is data. Length normalisation makes DPO the
    length-normalised DPO of Tülu 3 (Lambert et al., 2024), and IPO the form its authors later confirmed: TRL >= 1 and
    AReaL divide by the length there; the authors' DPO repository, OpenRLHF and TRL <= 0.24 do not. beta has another
    scale in each: per token it is about the length of an answer times larger. TRL divides by the count of tokens before
    the shift by one; `length` here is the number of summed tokens.
    """
    difference = at_least_float32(now) - at_least_float32(reference).detach()
    return difference if length is None else difference / length.clamp(min=1)


def length_desensitised(
    logp: PerDecision, sequence: Indices, shared_length: Int64[Tensor, " count"], *, alpha: float
) -> Float[Tensor, " count"]:
    """Sum over each answer's tokens of log p, tokens beyond `shared_length` times `alpha`: LD-DPO (Liu et al., 2024,
    2409.06411); in nats, before `reference_log_ratio`, for policy and reference alike.

    `shared_length` is the length of the shorter answer of the pair, for both of them; the longer one's excess counts
    less, so that length alone makes no margin. alpha = 1 is DPO, 0 cuts the longer answer off. An answer's tokens stand
    in their order, `sequence` numbers the answer of each; TRL's `ld_alpha`.
    """
    order = torch.argsort(sequence, stable=True)
    lengths = torch.bincount(sequence)
    begins = torch.cumsum(lengths, 0) - lengths
    place = torch.empty_like(sequence)
    place[order] = torch.arange(len(sequence), device=sequence.device) - begins[sequence[order]]
    values = at_least_float32(logp)
    weight = torch.full_like(values, alpha).masked_fill(place < shared_length[sequence], 1.0)
    return sum_by_sequence(weight * values, sequence, count=len(shared_length))


# ------------------------------------------------------------------------ f-divergences in the place of the KL
# f-DPO (Wang et al., "Beyond Reverse KL", 2023): DPO's comparison on f'(u), u = pi / pi_ref = exp(s), up to constants
# that cancel in the comparison. Reverse KL, DPO's own, is f'(u) = log u + 1: the score itself, no link. Only losses of
# the margin take a link (dpo, robust_dpo, ipo, hinge, exo_pair, discopop): elsewhere the normaliser does not cancel.


def forward_kl_link(score: PerAnswer) -> PerAnswer:
    """1 - exp(-s): f'(u) = -1/u of the forward KL. Bounded above: a likelier chosen answer soon earns nothing."""
    return 1.0 - linear_tail_exp(-score)


def js_link(score: PerAnswer) -> PerAnswer:
    """log 2 + logsigmoid(s): f'(u) = log(2u / (1 + u)) of the Jensen-Shannon divergence; 0 at s = 0."""
    return math.log(2.0) + F.logsigmoid(score)


def alpha_link(score: PerAnswer, *, alpha: float = 0.5) -> PerAnswer:
    """(1 - exp(-alpha * s)) / alpha of the alpha divergence, alpha in (0, 1].

    alpha -> 0 is the reverse KL (s itself), 1 the forward KL. TRL >= 1 writes (exp((a - 1) s) - 1) / (a - 1):
    a = 1 - alpha. On mean log-probabilities in the place of s this is AlphaPO's reward (Gupta et al., 2025).
    """
    return (1.0 - linear_tail_exp(-alpha * score)) / alpha


# ------------------------------------------------------------------------------------------------------ weight


def wpo_weight(chosen: PerPair, rejected: PerPair, *, cap: float = 1.0) -> PerPair:
    """WPO (Zhou et al., 2024): relative probability of this pair under the policy, in (0, cap], data.

    min(cap, exp(a_w + a_l)), a the mean over an answer's tokens of log p(token) - log sum_v p(v)^2
    (`wpo_aligned_logp`): 0 nats for a token as likely as the policy's own samples are on average. `chosen`, `rejected`
    are these means. TRL 0.24 caps at 1, TRL 1.16 does not (`cap=math.inf`).
    """
    return (at_least_float32(chosen) + at_least_float32(rejected)).detach().clamp(max=math.log(cap)).exp()


def wpo_aligned_logp(logp: PerDecision, logits: Float[Tensor, "n V"]) -> PerDecision:
    """log p(token) - log sum_v p(v)^2 in nats, detached: a token relative to the policy's own samples, for
    `wpo_weight`.

    `logp` of the tokens, `logits` of their positions.
    """
    with torch.no_grad():
        return at_least_float32(logp) - torch.logsumexp(2.0 * torch.log_softmax(at_least_float32(logits), dim=1), dim=1)


def weighted_terms(terms: LossTerms, weight: PerAnswer) -> LossTerms:
    """`terms` with each loss times its `weight`, which is data. Metrics stay unweighted; the weight is added as one.

    TRL 1.16 multiplies in place, which breaks the backward pass of some of its losses; here the product is new. Not for
    AOT, whose ranks join rows of different weights.
    """
    return LossTerms(
        loss=terms.loss * weight.detach(), compute_metrics=lambda: {**terms.metrics, "preference/weight": weight}
    )
