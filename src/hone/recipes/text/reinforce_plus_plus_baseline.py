"""REINFORCE++-baseline: answers are compared within their group, and whitened over the batch (Hu, 2025).

A = whitened over the step's tokens of R - mean of the group; loss = -min(r A, clip(r, 1 - low, 1 + high) A), every
token alike.
"""

from hone.credit.reinforce import reinforce_plus_plus_baseline
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class ReinforcePlusPlusBaselineConfig(recipe.GroupRunConfig):
    """REINFORCE++ with a baseline per group."""

    algorithm: recipe.ClipConfig = recipe.ClipConfig()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(self.algorithm, token_mean))
        return recipe.TextMethod(credit=reinforce_plus_plus_baseline, learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="scores centred in their group and whitened over the batch, PPO's clip",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusBaselineConfig,
    limitation="one deviation for all questions: those with the widest scores weigh most; groups of equal scores teach "
    "nothing.",
)
