"""ORPO: imitation and preferences in one loss, without a reference (Hong et al., 2024).

a = mean log-probability per token, odds(a) = e^a / (1 - e^a); loss = -a_chosen - weight * log sigmoid(log odds of the
chosen answer - log odds of the rejected one), the mean over pairs. It takes the place of fine-tuning and DPO after it.
"""

from pydantic import Field

from hone.core.config import Config
from hone.objectives.preference import orpo
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


class OrpoAlgorithm(Config):
    """Weight of the odds ratio."""

    weight: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio beside the likelihood; lambda of the paper, `beta` in TRL."""


class OrpoConfig(PreferenceRunConfig):
    """Odds-ratio preference optimisation."""

    algorithm: OrpoAlgorithm = OrpoAlgorithm()
    """Weight of the odds ratio."""

    def loss(self) -> AnswerLossSpec:
        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            means = (one.logp / one.length for one in (chosen, rejected))
            return orpo(*means, weight=self.algorithm.weight)

        return AnswerLossSpec(objective=objective, needs_reference=False)


ENTRY = RecipeSpec(
    summary="imitation of the chosen answers and an odds ratio against the rejected ones, without a reference",
    paper="Hong et al., ORPO: Monolithic Preference Optimization without Reference Model, 2024",
    config=OrpoConfig,
    parts=preference_parts(OrpoConfig, orpo),
    limitation="nothing holds it to where it started, but the likelihood of the chosen answers.",
)
