"""The best answer of a group gets what it is better than the second by, the others nothing (Tang et al., 2025).

A of the best = (R_max - R_second) / std of the group: the leave-one-out credit of the maximum of all N scores, which
may be any numbers; loss = GRPO's clipped surrogate, every token alike. No advantage is negative, so `clip_low` plays
no part.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import best_of_group
from hone.text import recipe


class PasskBestAlgorithm(recipe.ClipConfig):
    """Clip widths and the scale of advantages."""

    scale: Literal["group", "none"] = "group"
    """Divisor of the margin: the group's standard deviation, or none, which is unbiased."""
    ddof: recipe.Ddof = 1
    """Degrees of freedom taken from the standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = recipe.Field(default=1e-6, ge=0)
    """Added to the standard deviation before it divides."""


class PasskBestConfig(recipe.TextGradientRunConfig):
    """Training for the best of a group."""

    algorithm: PasskBestAlgorithm = PasskBestAlgorithm()
    """Clip widths, scale, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit = partial(best_of_group, scale=chosen.scale, ddof=chosen.ddof, epsilon=chosen.epsilon)
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="only a group's best answer learns, from its margin over the second",
    paper="Tang et al., Optimizing Language Models for Inference Time Objectives, 2025",
    config=PasskBestConfig,
    limitation="two right answers in a group teach nothing, so it learns only where being right is rare.",
)
