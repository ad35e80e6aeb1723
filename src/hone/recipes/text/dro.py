"""DRO: off-policy without a ratio, held back by a squared log-ratio (Richemond et al., 2024).

A as in GRPO; loss = -(A log pi - beta / 2 (log pi - log pi then)^2), every token alike. Nothing can explode, however
old the answers; answers without an advantage are pulled back to where they came from.
"""

from functools import partial

from hone.objectives.policy import dro
from hone.text import recipe


class DroAlgorithm(recipe.AggregationConfig):
    """Regularisation towards the behaviour policy."""

    beta: float = recipe.Field(gt=0)
    """Weight of the squared log-ratio, 1 / nat. There is no published default for advantages of tokens."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class DroConfig(recipe.TextGradientRunConfig):
    """Direct reward optimisation."""

    algorithm: DroAlgorithm
    """Regularisation towards the behaviour policy."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_token_columns(partial(dro, beta=chosen.beta))
        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(objective=objective, scheme=scheme)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="off-policy without a ratio: a squared log-ratio holds the policy back",
    paper="Richemond et al., Offline Regularised RL for LLMs Alignment, 2024",
    config=DroConfig,
    limitation="beta must be found per task; the group's mean stands in for the paper's value network, as in verl.",
    presets=("dro",),
)
