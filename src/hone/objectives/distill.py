"""Distillation of a teacher into a student: divergences of distributions, and an advantage from single tokens.

Divergences take log-probabilities `[n, k]`, of the full vocabulary (`softened`) or of k entries of it (`renormalised`,
`with_tail`, or the bare top k); p is the teacher's distribution, data; q the student's, with gradient. Sums are over
the last dimension, per decision; there is no factor T^2 (GKD has none, Hinton et al., 2015, had it).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hone.core.errors import ConfigError
from hone.objectives.ratios import at_least_float32, log1mexp
from hone.objectives.terms import Elementwise, LossTerms, PerDecision, Table

LOWEST = -100.0
"""Nats: floor of log-probabilities, so that 0 * log 0 is 0 and a divergence stays finite."""


# --------------------------------------------------------------------------------------------- single tokens


@torch.no_grad()
def distillation_advantage(student: PerDecision, teacher: PerDecision, *, coefficient: float = 1.0) -> PerDecision:
    """-coefficient * (log q - log p) of the student's own tokens: on-policy distillation (Agarwal et al., 2023; Lu,
    "On-policy distillation", 2025).

    An advantage: data, for a policy loss, without discounting; its policy gradient is that of the reverse KL(q || p)
    token by token. Differentiated directly (as in one branch of AReaL's KDRL), log q - log p has an expected gradient
    of 0 for every teacher; so this returns no gradient.
    """
    return coefficient * (at_least_float32(teacher) - at_least_float32(student))


# --------------------------------------------------------------------------------------------- distributions


def softened(logits: Float[Tensor, "n V"], *, temperature: float = 1.0) -> Float[Tensor, "n V"]:
    """log softmax(logits / temperature), in float32 or wider."""
    return torch.log_softmax(at_least_float32(logits) / temperature, dim=-1)


def renormalised(logp: Table) -> Table:
    """The k entries normalised to a distribution; the probability outside of them is ignored and not constrained."""
    return torch.log_softmax(at_least_float32(logp), dim=-1)


def with_tail(logp: Table) -> Float[Tensor, "n k+1"]:
    """The k entries and the probability of all others together.

    Merging outcomes can only lower a divergence: one between these is a lower bound of that of the full distributions,
    and 0 where they are equal.
    """
    logp = at_least_float32(logp)
    return torch.cat((logp, log1mexp(torch.logsumexp(logp, dim=-1, keepdim=True))), dim=-1)


def _floored(logp: Elementwise) -> Elementwise:
    return at_least_float32(logp).clamp(min=LOWEST)


def _kl(log_p: Table, log_q: Table) -> PerDecision:
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def forward_kl(student: Table, teacher: Table) -> LossTerms:
    """KL(p || q) = sum_v p (log p - log q) nats: covers every answer that the teacher may write (Hinton et al., 2015).

    On the teacher's bare top k the sum is truncated: it can be negative, it differs from the KL by the tail's terms,
    and its minimum is the *renormalised* teacher with an empty tail: the student is sharpened by the tail's mass.
    `renormalised` on both leaves the student's mass outside free; `with_tail` on both has its minimum, 0, at the
    teacher. verl's 'forward_kl_topk' is the bare sum of log-probabilities floored at -10 nats on both sides, then held
    to [0, 10] nats: a token whose sum is negative, because the student's mass on the k entries is above the teacher's,
    has no gradient, and so has one whose sum is above 10.
    """
    log_p, log_q = _floored(teacher).detach(), _floored(student)
    loss = _kl(log_p, log_q)
    return LossTerms(loss=loss, compute_metrics=lambda: {"distill/forward_kl_nats": loss.detach()})


def reverse_kl(student: Table, teacher: Table) -> LossTerms:
    """KL(q || p) = sum_v q (log q - log p) nats: avoids answers that the teacher would not write (MiniLLM, Gu et al.,
    2023). For k entries take the student's top k; the teacher's would miss the student's errors.
    """
    log_p, log_q = _floored(teacher).detach(), _floored(student)
    loss = _kl(log_q, log_p)
    return LossTerms(loss=loss, compute_metrics=lambda: {"distill/reverse_kl_nats": loss.detach()})


def generalised_jsd(student: Table, teacher: Table, *, mixture: float = 0.5) -> LossTerms:
    """b KL(p || m) + (1 - b) KL(q || m), m = b p + (1 - b) q, b = `mixture`: GKD (Agarwal et al., 2023). Nats.

    Divided by b, it tends to KL(p || q) as b -> 0; divided by 1 - b, to KL(q || p) as b -> 1. The loss itself
    vanishes at both ends. TRL puts the forward KL at exactly 0 and the reverse KL at exactly 1, a jump in scale; here
    those are `forward_kl` and `reverse_kl`, and a `mixture` outside (0, 1) raises ConfigError. TRL's other defaults:
    temperature 0.9 of both, half of the batches written by the student.
    """
    if not 0.0 < mixture < 1.0:
        raise ConfigError(
            f"generalised_jsd needs 0 < mixture < 1, got {mixture}: use forward_kl for 0, reverse_kl for 1"
        )
    log_p, log_q = _floored(teacher).detach(), _floored(student)
    log_m = torch.logaddexp(log_p + math.log(mixture), log_q + math.log1p(-mixture))
    loss = mixture * _kl(log_p, log_m) + (1.0 - mixture) * _kl(log_q, log_m)
    return LossTerms(loss=loss, compute_metrics=lambda: {"distill/jsd_nats": loss.detach()})
