"""REINFORCE++-baseline: answers are compared within their group, and whitened over the batch (Hu, 2025).

A = whitened over the step's tokens of R - mean of the group; loss = -min(r A, clip(r, 1 - low, 1 + high) A), every
token alike.
"""

from functools import partial

from hone.credit.reinforce import reinforce_plus_plus_baseline
from hone.text import recipe


class ReinforcePlusPlusBaselineAlgorithm(recipe.ClipConfig):
    """Whitening, clip widths and penalties."""

    ddof: recipe.Ddof = 1
    """Degrees of freedom taken from the standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = recipe.Field(default=1e-8, ge=0)
    """Added to the standard deviation of the whitening before it divides."""


class ReinforcePlusPlusBaselineConfig(recipe.TextGradientRunConfig):
    """REINFORCE++ with a baseline per group."""

    algorithm: ReinforcePlusPlusBaselineAlgorithm = ReinforcePlusPlusBaselineAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit = partial(reinforce_plus_plus_baseline, ddof=chosen.ddof, epsilon=chosen.epsilon)
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="scores centred in their group and whitened over the batch, PPO's clip",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusBaselineConfig,
    limitation="one deviation for all questions: those with the widest scores weigh most; groups of equal scores teach "
    "nothing.",
)
