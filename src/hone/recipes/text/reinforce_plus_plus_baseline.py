"""REINFORCE++-baseline: answers are compared within their group, and whitened over the batch (Hu, 2025).

A = whitened over the step's tokens of R - mean of the group; loss = -min(r A, clip(r, 1 - low, 1 + high) A), every
token alike.
"""

from hone.credit.reinforce import reinforce_plus_plus_baseline
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class ReinforcePlusPlusBaselineConfig(recipe.TextGradientRunConfig):
    """REINFORCE++ with a baseline per group."""

    requires = (recipe.require_groups,)
    algorithm: recipe.ClipConfig = recipe.ClipConfig()
    """Clip widths and penalties."""


def method(config: ReinforcePlusPlusBaselineConfig, policies: recipe.TextPolicies) -> recipe.TextMethod:
    """Advantage, objective and options of the recipe, as the text family takes them."""
    chosen = config.algorithm
    loss = recipe.clip_loss(chosen, token_mean)
    return recipe.TextMethod(
        credit=reinforce_plus_plus_baseline, learner=recipe.gradient_learner(config, policies, loss)
    )


ENTRY = recipe.text_recipe_spec(
    summary="scores centred in their group and whitened over the batch, PPO's clip",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusBaselineConfig,
    method=method,
    limitation="one deviation for all questions: those with the widest scores weigh most; groups of equal scores teach "
    "nothing.",
)
