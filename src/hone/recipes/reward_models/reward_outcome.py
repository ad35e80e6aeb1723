"""Verifier of outcomes: the chance that an answer is right, read from its last token.

loss = mean over answers of -y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)), z: the number at the last token.
"""

from typing import ClassVar

from hone.models.language.scalar_head import ScoredTokens
from hone.objectives.reward_model import step_regression
from hone.objectives.weights import token_mean
from hone.run.job import RecipeSpec
from hone.text.answer_data import AnswerKind
from hone.text.scorers.scorer_job import ScorerRunConfig, evaluate_saved_scorer, scorer_parts
from hone.text.scorers.scorer_loss import ScorerLoss, outcome_loss


class RewardOutcomeConfig(ScorerRunConfig):
    """Verifier of whole answers."""

    data_kind: ClassVar[AnswerKind] = "outcome"
    reads: ClassVar[ScoredTokens] = "last"

    def scorer_loss(self) -> ScorerLoss:
        return outcome_loss


ENTRY = RecipeSpec(
    summary="verifier of outcomes: the chance that an answer is right (ORM)",
    paper="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021",
    config=RewardOutcomeConfig,
    parts=scorer_parts(step_regression, weights=(token_mean,)),
    evaluate=evaluate_saved_scorer,
    limitation="it judges answers like those that it has seen: of a stronger policy's answers it knows less.",
)
