"""GDPO: every reward function's scores are compared among themselves before they are added (2026).

A = z over the step of sum over functions of weight (R - mean of the group) / (std of the group + eps), the weights
those of `rewards.functions`; loss = GRPO's clipped surrogate, every token alike.
"""

from functools import partial

from hone.credit.components import gdpo
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class GdpoConfig(recipe.GroupRunConfig):
    """Group reward-decoupled normalisation policy optimisation."""

    algorithm: recipe.ClipConfig = recipe.ClipConfig()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        weights = [function.weight for function in self.rewards.functions]
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(self.algorithm, token_mean))
        return recipe.TextMethod(credit=partial(gdpo, weights=weights), learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="GRPO with each reward function normalised by itself",
    paper="GDPO, 2601.05242, 2026",
    config=GdpoConfig,
    limitation="a reward that hardly differs within a group counts as much as one that does.",
)
