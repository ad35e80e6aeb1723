"""RPO: DPO and the likelihood of the chosen answer (Pang et al., "Iterative Reasoning Preference Optimization", 2024).

loss = DPO's (or a variant's) + likelihood * -(log pi(chosen) / its tokens), the mean over pairs: chosen answers stay
likely while the margin grows.
"""

from dataclasses import replace

from pydantic import Field

from hone.objectives.preference import dpo
from hone.objectives.terms import LossTerms, add_terms
from hone.run.job import RecipeSpec
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.pair_losses import PairAlgorithm
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


class RpoAlgorithm(PairAlgorithm):
    """Loss on pairs, and the weight of the chosen answer's likelihood."""

    likelihood: float = Field(default=1.0, gt=0)
    """Weight of the chosen answer's mean negative log-likelihood per token (TRL's `rpo_alpha`)."""


def chosen_likelihood(view: AnswerView) -> LossTerms:
    """-log pi(chosen) / tokens of each pair, in nats."""
    chosen, _ = view.pairs()
    nll = -chosen.logp / chosen.length
    return LossTerms(loss=nll, compute_metrics=lambda: {"policy/nll_nats": nll.detach()})


class RpoConfig(PreferenceRunConfig):
    """Preference optimisation with a likelihood term."""

    algorithm: RpoAlgorithm = RpoAlgorithm()
    """The loss, the implicit rewards that it compares, and the likelihood's weight."""

    def loss(self) -> AnswerLossSpec:
        spec, weight = self.algorithm.spec(), self.algorithm.likelihood

        def objective(view: AnswerView) -> LossTerms:
            return add_terms(spec.objective(view), chosen_likelihood(view), weight=weight)

        return replace(spec, objective=objective)

    def reference(self) -> str | None:
        return self.algorithm.reference


ENTRY = RecipeSpec(
    summary="DPO and the likelihood of the chosen answers, which keeps them likely",
    paper="Pang et al., Iterative Reasoning Preference Optimization, 2024",
    config=RpoConfig,
    parts=preference_parts(RpoConfig, dpo, chosen_likelihood),
    limitation="imitates the chosen answers as they are, their faults included.",
)
