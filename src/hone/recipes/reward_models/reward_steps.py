"""Verifier of steps: the chance that a step is right, read from its last token.

loss = mean over labelled steps of -y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)), z: the number at the step's last
token. y may be a share: of K continuations from the step that ended well (Math-Shepherd).
"""

from typing import ClassVar

from hone.models.language.scalar_head import ScoredTokens
from hone.objectives.reward_model import step_regression
from hone.objectives.weights import token_mean
from hone.run.job import RecipeSpec
from hone.text.answer_data import AnswerKind
from hone.text.scorers.scorer_job import ScorerRunConfig, evaluate_saved_scorer, scorer_parts
from hone.text.scorers.scorer_loss import ScorerLoss, step_loss


class RewardStepsConfig(ScorerRunConfig):
    """Verifier of the steps of answers."""

    data_kind: ClassVar[AnswerKind] = "stepwise"
    reads: ClassVar[ScoredTokens] = "steps"

    def scorer_loss(self) -> ScorerLoss:
        return step_loss


ENTRY = RecipeSpec(
    summary="verifier of steps: the chance that each step is right (PRM)",
    paper="Lightman et al., Let's Verify Step by Step, 2023; Wang et al., Math-Shepherd, 2023",
    config=RewardStepsConfig,
    parts=scorer_parts(step_regression, weights=(token_mean,)),
    evaluate=evaluate_saved_scorer,
    limitation="steps end where the data say: a policy that writes its steps otherwise is not judged by them.",
)
