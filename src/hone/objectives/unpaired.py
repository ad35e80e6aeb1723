"""Losses on single answers marked desirable or not: KTO, BCO, APO-zero; per answer.

`score` nats is s = log pi / pi_ref of a whole answer (`implicit.py`), with gradient. Micro-batches need not hold both
kinds: the batch statistics of KTO and BCO are data here.
"""

import torch
from torch.nn import functional as F

from hone.objectives.shapes import Flags, Metrics, PerAnswer
from hone.objectives.terms import LossTerms


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
