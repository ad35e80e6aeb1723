"""KL-Cov: the few tokens that make entropy fall are held back (Cui et al., "The Entropy Mechanism", 2025).

A as in GRPO; loss = -r A, plus penalty |log r| at the tokens of the largest (A - mean A)(log pi - mean log pi) over the
step, every token alike. No ratio is clipped.
"""

from functools import partial

from hone.objectives.policy import kl_cov
from hone.objectives.selection import kl_cov_mask
from hone.text import recipe


class KlCovAlgorithm(recipe.AggregationConfig):
    """Share of penalised tokens, its weight, aggregation and advantages."""

    share: float = recipe.Field(default=2e-4, gt=0, le=1)
    """Share of a step's tokens; at least one."""
    penalty: float = recipe.Field(default=1.0, ge=0)
    """Weight of |log r| at these tokens."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class KlCovConfig(recipe.TextGradientRunConfig):
    """GRPO that holds back the tokens that make entropy fall."""

    algorithm: KlCovAlgorithm = KlCovAlgorithm()
    """Share of penalised tokens, clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm

        def select(columns: recipe.StepColumns) -> recipe.TokenFactors:
            return kl_cov_mask(columns.logp, columns.advantage, fraction=chosen.share)

        objective = recipe.from_selected_columns(partial(kl_cov, penalty=chosen.penalty))
        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(objective=objective, scheme=scheme, select_tokens=select)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="GRPO; a few tokens of large covariance are penalised, which keeps entropy up",
    paper="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=KlCovConfig,
    limitation="no clip on all other tokens; without several updates per rollout the penalty has no slope.",
    presets=("kl_cov",),
)
