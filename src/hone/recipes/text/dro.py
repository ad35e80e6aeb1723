"""DRO: off-policy without a ratio, held back by a squared log-ratio (Richemond et al., 2024).

A as in GRPO; loss = -(A log pi - beta / 2 (log pi - log pi then)^2), every token alike. Nothing can explode, however
old the answers; answers without an advantage are pulled back to where they came from.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.policy import dro
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class DroAlgorithm(recipe.Config):
    """Regularisation towards the behaviour policy."""

    beta: float = recipe.Field(gt=0)
    """Weight of the squared log-ratio, 1 / nat. There is no published default for advantages of tokens."""


class DroConfig(recipe.GroupRunConfig):
    """Direct reward optimisation."""

    algorithm: DroAlgorithm
    """Regularisation towards the behaviour policy."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        objective = recipe.from_token_columns(partial(dro, beta=self.algorithm.beta))
        loss = recipe.TokenLossSpec(objective=objective, scheme=token_mean)
        return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="off-policy without a ratio: a squared log-ratio holds the policy back",
    paper="Richemond et al., Offline Regularised RL for LLMs Alignment, 2024",
    config=DroConfig,
    limitation="beta must be found per task; the group's mean stands in for the paper's value network, as in verl.",
    presets=("dro",),
)
