"""Reward model from preferences: the preferred answer of each pair is to score more.

loss = mean over questions of the mean over their pairs of -log sigmoid(R_w - R_l - margin (s_w - s_l)) + centring (R_w
+ R_l)^2, R: the number at an answer's last token, s: the scores in the data. A question may have any number of answers:
every two with different scores are a pair (Ouyang et al., 2022).
"""

from typing import ClassVar

from pydantic import Field

from hone.core.config import Config
from hone.models.language.scalar_head import ScoredTokens
from hone.objectives.reward_model import bradley_terry
from hone.objectives.weights import sequence_sum
from hone.run.job import RecipeSpec
from hone.text.answer_data import AnswerKind
from hone.text.scorers.scorer_job import ScorerRunConfig, evaluate_saved_scorer, scorer_parts
from hone.text.scorers.scorer_loss import PairwiseLoss


class RewardPairsAlgorithm(Config):
    """Terms of the pairwise loss."""

    margin: float = Field(default=0.0, ge=0)
    """Factor of the difference of the data's scores that the difference of rewards is to exceed (Llama 2)."""
    centring: float = Field(default=0.0, ge=0)
    """Weight of the squared sum of a pair's rewards, which holds them near 0; 0.01 where it is used."""


class RewardPairsConfig(ScorerRunConfig):
    """Reward model from pairs of answers."""

    data_kind: ClassVar[AnswerKind] = "preference"
    reads: ClassVar[ScoredTokens] = "last"
    algorithm: RewardPairsAlgorithm = RewardPairsAlgorithm()
    """Margin and centring."""

    def scorer_loss(self) -> PairwiseLoss:
        return PairwiseLoss(margin=self.algorithm.margin, centring=self.algorithm.centring)


ENTRY = RecipeSpec(
    summary="reward model from pairs of answers, one preferred (Bradley-Terry)",
    paper="Bradley and Terry, 1952; Ouyang et al., Training language models to follow instructions, 2022",
    config=RewardPairsConfig,
    parts=scorer_parts(bradley_terry, weights=(sequence_sum,)),
    evaluate=evaluate_saved_scorer,
    limitation="only differences of its rewards mean anything, and only near the answers that it has seen.",
)
