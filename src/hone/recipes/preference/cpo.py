"""CPO: DPO without the reference, and the likelihood of the chosen answer in its place (Xu et al., 2024).

loss = -log sigmoid(beta (log pi(chosen) - log pi(rejected))) - likelihood * log pi(chosen) / its tokens, the mean over
pairs.
"""

from pydantic import Field

from hone.core.config import Config
from hone.objectives.preference import cpo
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


class CpoAlgorithm(Config):
    """Scale of the margin, and the weight of the likelihood."""

    beta: float = Field(default=0.1, gt=0)
    """Scale of the difference of the answers' log-probabilities."""
    likelihood: float = Field(default=1.0, ge=0)
    """Weight of the chosen answer's mean negative log-likelihood per token; TRL's `cpo_alpha`."""


class CpoConfig(PreferenceRunConfig):
    """Contrastive preference optimisation."""

    algorithm: CpoAlgorithm = CpoAlgorithm()
    """Scale of the margin, and the weight of the likelihood."""

    def loss(self) -> AnswerLossSpec:
        settings = self.algorithm

        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            return cpo(chosen.logp, rejected.logp, chosen.length, beta=settings.beta, likelihood=settings.likelihood)

        return AnswerLossSpec(objective=objective, needs_reference=False)


ENTRY = RecipeSpec(
    summary="DPO without a reference: the likelihood of the chosen answers takes its place",
    paper="Xu et al., Contrastive Preference Optimization, 2024",
    config=CpoConfig,
    parts=preference_parts(CpoConfig, cpo),
    limitation="sums of log-probabilities prefer the shorter answer where lengths differ much.",
)
