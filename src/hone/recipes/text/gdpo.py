"""GDPO: every reward function's scores are compared among themselves before they are added (2026).

A = z over the step of sum over functions of weight (R - mean of the group) / (std of the group + eps), the weights
those of `rewards.functions`; loss = GRPO's clipped surrogate, every token alike.
"""

from functools import partial
from typing import Literal

from hone.credit.group import gdpo
from hone.text import recipe


class GdpoAlgorithm(recipe.ClipConfig):
    """Standardisation of each reward function and of their sum, clip widths and penalties."""

    ddof: recipe.Ddof = 1
    """Degrees of freedom taken from each standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = recipe.Field(default=1e-4, ge=0)
    """Added to each standard deviation before it divides."""
    over: Literal["answers", "decisions"] = "answers"
    """The sum is standardised over the step's answers, or over its tokens, where long answers count more."""


class GdpoConfig(recipe.TextGradientRunConfig):
    """Group reward-decoupled normalisation policy optimisation."""

    algorithm: GdpoAlgorithm = GdpoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        weights = [function.weight for function in self.rewards.functions]
        chosen = self.algorithm
        credit = partial(gdpo, weights=weights, ddof=chosen.ddof, epsilon=chosen.epsilon, over=chosen.over)
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="GRPO with each reward function normalised by itself",
    paper="GDPO, 2601.05242, 2026",
    config=GdpoConfig,
    limitation="a reward that hardly differs within a group counts as much as one that does.",
)
