"""Losses of scorers: the number at the last token of an answer, or of a step, against a label.

Labels travel as advantages: a pair's is the score of each answer, an outcome's or a step's its own number in [0, 1].
Every labelled token is a decision; all others are context.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from hone.models.language.scalar_head import TokenScorer
from hone.objectives.reward_model import bradley_terry, step_regression
from hone.objectives.terms import LossTerms
from hone.objectives.weights import TermWeights, sequence_sum
from hone.text.rows import TokenBatch

ScorerLoss: TypeAlias = Callable[[TokenScorer, TokenBatch], LossTerms]
PER_PAIR: Final = "pairs"
"""Name of the weights of the groups, within which answers are compared."""
PAIR_WEIGHTS: Final = {PER_PAIR: TermWeights(scheme=sequence_sum, per="group")}
"""1 / groups: each question counts alike, whatever the number of its pairs (Ouyang et al., 2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseLoss:
    """Bradley-Terry loss of all pairs of a group in which one answer has the higher score, meaned over these pairs."""

    margin: float = 0.0
    """Factor of the difference of the scores that the difference of the rewards is to exceed."""
    centring: float = 0.0
    """Weight of (R_w + R_l)^2."""

    def __call__(self, scorer: TokenScorer, batch: TokenBatch) -> LossTerms:
        assert batch.group is not None, "pairs are compared within groups, which a micro-batch must not split"
        rewards, labels = scorer.scores(batch.packed, batch.at), batch.advantage
        winner, loser = preferred_pairs(labels, batch.group)
        gap = self.margin * (labels[winner] - labels[loser])
        pairs = bradley_terry(rewards[winner], rewards[loser], margin=gap, centring=self.centring)
        groups, owner = len(batch.term_weights[PER_PAIR]), batch.group[winner]
        share = 1.0 / torch.bincount(owner, minlength=groups)[owner]
        loss = torch.zeros(groups, dtype=rewards.dtype, device=rewards.device)
        return LossTerms(
            loss=loss.index_add(0, owner, pairs.loss * share.to(rewards.dtype)),
            weight=batch.term_weights[PER_PAIR],
            compute_metrics=lambda: _pair_metrics(rewards[winner], rewards[loser]),
        )


def _pair_metrics(chosen: Tensor, rejected: Tensor) -> Mapping[str, Tensor]:
    """Metrics `[p]` of the pairs; a tie counts half in the accuracy."""
    margin = chosen - rejected
    return {
        "reward_model/accuracy": 0.5 * (1.0 + margin.sign()),
        "reward_model/margin": margin,
        "reward_model/chosen": chosen,
        "reward_model/rejected": rejected,
    }


def preferred_pairs(scores: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Places `[p]` of the better and of the worse answer of every pair within a group whose scores differ.

    `scores`, `group` `[n]`; groups are numbered from 0 in ascending order.
    """
    sizes = torch.bincount(group)
    starts = torch.cumsum(sizes, 0) - sizes
    count = sizes[group]
    first = torch.repeat_interleave(torch.arange(len(group), device=group.device), count)
    within = torch.arange(len(first), device=group.device) - (torch.cumsum(count, 0) - count)[first]
    second = starts[group[first]] + within
    better = scores[first] > scores[second]
    return first[better], second[better]


def outcome_loss(scorer: TokenScorer, batch: TokenBatch) -> LossTerms:
    """Cross-entropy of sigmoid(score at the answer's last token) against its outcome in [0, 1] (Cobbe et al., 2021)."""
    terms = step_regression(scorer.scores(batch.packed, batch.at), batch.advantage)
    return LossTerms(
        loss=terms.loss, compute_metrics=lambda: {"reward_model/accuracy": terms.metrics["steps/accuracy"]}
    )


def step_loss(scorer: TokenScorer, batch: TokenBatch) -> LossTerms:
    """Cross-entropy of sigmoid(score at a step's last token) against its label in [0, 1] (Lightman et al., 2023)."""
    return step_regression(scorer.scores(batch.packed, batch.at), batch.advantage)
