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


class DroConfig(recipe.TextGradientRunConfig):
    """Direct reward optimisation."""

    requires = (recipe.require_groups,)
    algorithm: DroAlgorithm
    """Regularisation towards the behaviour policy."""


def method(config: DroConfig, policies: recipe.TextPolicies) -> recipe.TextMethod:
    """Advantage, objective and options of the recipe, as the text family takes them."""
    objective = recipe.from_token_columns(partial(dro, beta=config.algorithm.beta))
    loss = recipe.TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=False)
    return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(config, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="off-policy without a ratio: a squared log-ratio holds the policy back",
    paper="Richemond et al., Offline Regularised RL for LLMs Alignment, 2024",
    config=DroConfig,
    method=method,
    limitation="beta must be found per task; the group's mean stands in for the paper's value network, as in verl.",
    presets=("dro",),
)
