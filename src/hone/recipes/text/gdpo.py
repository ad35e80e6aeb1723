"""GDPO: every reward function's scores are compared among themselves before they are added (2026).

A = z over the step of sum over functions of weight (R - mean of the group) / (std of the group + eps), the weights
those of `rewards.functions`; loss = GRPO's clipped surrogate, every token alike.
"""

from functools import partial

from hone.credit.components import gdpo
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class GdpoConfig(recipe.TextGradientRunConfig):
    """Group reward-decoupled normalisation policy optimisation."""

    requires = (recipe.require_groups,)
    algorithm: recipe.ClipConfig = recipe.ClipConfig()
    """Clip widths and penalties."""


def method(config: GdpoConfig, policies: recipe.TextPolicies) -> recipe.TextMethod:
    """Advantage, objective and options of the recipe, as the text family takes them."""
    weights = [function.weight for function in config.rewards.functions]
    learner = recipe.gradient_learner(config, policies, recipe.clip_loss(config.algorithm, token_mean))
    return recipe.TextMethod(credit=partial(gdpo, weights=weights), learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="GRPO with each reward function normalised by itself",
    paper="GDPO, 2601.05242, 2026",
    config=GdpoConfig,
    method=method,
    limitation="a reward that hardly differs within a group counts as much as one that does.",
)
