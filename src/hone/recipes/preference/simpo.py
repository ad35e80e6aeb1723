"""SimPO: the mean log-probability per token as the reward, and a margin to reach; no reference (Meng et al., 2024).

a = mean log-probability per token; loss = -log sigmoid(beta (a_chosen - a_rejected) - margin), the mean over pairs.
`likelihood` adds the chosen answer's negative log-likelihood (CPO-SimPO).
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from hone.core.config import Config
from hone.objectives.preference import simpo, simpo_hinge
from hone.objectives.terms import LossTerms, add_terms
from hone.run.job import RecipeSpec
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.pair_losses import PairTerms
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


class LogisticShape(Config):
    """-log sigmoid(x), x = beta (a_chosen - a_rejected) - margin."""

    kind: Literal["logistic"] = "logistic"
    """Names this alternative."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed share of wrong labels."""

    def terms(self, *, beta: float, margin: float) -> PairTerms:
        return partial(simpo, beta=beta, margin=margin, smoothing=self.smoothing)


class HingeShape(Config):
    """relu(1 - x), x = beta (a_chosen - a_rejected) - margin: no gradient beyond."""

    kind: Literal["hinge"]
    """Names this alternative."""

    def terms(self, *, beta: float, margin: float) -> PairTerms:
        return partial(simpo_hinge, beta=beta, margin=margin)


class SimpoAlgorithm(Config):
    """Scale of the rewards, and the margin between them."""

    loss: Annotated[LogisticShape | HingeShape, Field(discriminator="kind")] = LogisticShape()
    """Shape of the loss, by its `kind`."""
    beta: float = Field(default=2.0, gt=0)
    """Scale of the mean log-probabilities; the paper tunes it in 2 to 2.5, and 10 for some models."""
    margin: float = Field(default=1.0, ge=0)
    """Margin to reach; margin / beta of 0.3 to 0.6 in the paper."""
    likelihood: float = Field(default=0.0, ge=0)
    """Weight of the chosen answer's mean negative log-likelihood per token; TRL's `cpo_alpha`."""


class SimpoConfig(PreferenceRunConfig):
    """Simple preference optimisation."""

    algorithm: SimpoAlgorithm = SimpoAlgorithm()
    """Scale of the rewards, and the margin between them."""

    def loss(self) -> AnswerLossSpec:
        settings = self.algorithm
        terms = settings.loss.terms(beta=settings.beta, margin=settings.margin)

        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = (one.logp / one.length for one in view.pairs())
            loss = terms(chosen, rejected)
            if not settings.likelihood:
                return loss
            likelihood = LossTerms(loss=-chosen, compute_metrics=lambda: {"policy/nll_nats": -chosen.detach()})
            return add_terms(loss, likelihood, weight=settings.likelihood)

        return AnswerLossSpec(objective=objective, needs_reference=False)


ENTRY = RecipeSpec(
    summary="pairs by their mean log-probability per token, with a margin to reach and no reference",
    paper="Meng et al., SimPO: Simple Preference Optimization with a Reference-Free Reward, 2024",
    config=SimpoConfig,
    parts=preference_parts(SimpoConfig, simpo),
    limitation="nothing holds it to where it started: small learning rates and few steps.",
)
