"""Losses of reward models: pairs (Bradley-Terry), steps of reasoning, whole answers by implicit rewards."""

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.preference import preference_metrics
from hone.objectives.ratios import at_least_float32
from hone.objectives.terms import Indices, LossTerms, PerAnswer, PerDecision, PerPair, Table

UNLABELLED = -100
"""Label of positions where no step ends; their logits are ignored."""


def bradley_terry(
    chosen: PerPair, rejected: PerPair, *, margin: PerPair | float = 0.0, centring: float = 0.0
) -> LossTerms:
    """-logsigmoid(R_w - R_l - margin) + centring * (R_w + R_l)^2 (Bradley and Terry, 1952), on rewards.

    `margin`: by how much annotators preferred the chosen answer (Llama 2, Touvron et al., 2023). Only differences are
    identified; `centring`, 0.01 where used, holds their sum near 0 (Eisenstein et al., 2023). A difference of rewards
    is a log-odds, hence nats in the metrics; accuracy is taken without the margin.
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    loss = -F.logsigmoid(chosen - rejected - margin)
    if centring:
        loss = loss + centring * (chosen + rejected).square()
    return LossTerms(loss=loss, compute_metrics=lambda: preference_metrics(chosen, rejected))


def step_classification(logits: Table, label: Indices) -> LossTerms:
    """-log softmax(logits)[label]: a process reward model as a classifier of steps (Lightman et al., 2023).

    `logits` at positions, mostly of {bad, good}; `label` is `UNLABELLED` where no step ends: there the loss and its
    gradient are 0 for any logits. transformers and TRL average over the labelled tokens of a micro-batch; here the
    weights are the learner's.
    """
    labelled = label != UNLABELLED
    kept = torch.where(labelled[:, None], at_least_float32(logits), 0.0)
    target = torch.where(labelled, label, 0)
    loss = torch.where(labelled, F.cross_entropy(kept, target, reduction="none"), 0.0)
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"steps/accuracy": (kept.argmax(dim=1) == target)[labelled].to(kept.dtype)}
    )


def step_regression(logit: PerDecision, label: PerDecision) -> LossTerms:
    """-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)): steps scored by one number each.

    `label` in [0, 1], soft where it was estimated by continuing from the step (Math-Shepherd, Wang et al., 2023), NaN
    where no step ends: there the loss is 0 and no gradient flows.
    """
    labelled = ~label.isnan()
    kept = torch.where(labelled, at_least_float32(logit), 0.0)
    target = torch.where(labelled, label, 0.5).to(kept.dtype)
    loss = torch.where(labelled, F.binary_cross_entropy_with_logits(kept, target, reduction="none"), 0.0)
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"steps/accuracy": ((kept > 0) == (target > 0.5))[labelled].to(kept.dtype)}
    )


def implicit_process_reward(score: PerAnswer, correct: Shaped[Tensor, " n"], *, beta: float = 0.05) -> LossTerms:
    """Cross-entropy of sigmoid(beta * s) against `correct` in {0, 1}: the implicit process reward model of PRIME (Cui
    et al., 2025). s = sum over tokens of log pi_phi / pi_ref in nats (`implicit.reference_log_ratio`); trained on
    outcomes alone, beta times each token's log-ratio is then that token's reward.
    """
    loss = F.binary_cross_entropy_with_logits(beta * score, correct.to(score.dtype), reduction="none")
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"reward_model/accuracy": ((score > 0) == (correct > 0.5)).to(score.dtype)}
    )
