"""The best answer of a group gets what it is better than the second by, the others nothing (Tang et al., 2025).

A of the best = (R_max - R_second) / std of the group: the leave-one-out credit of the maximum of all N scores, which
may be any numbers; loss = GRPO's clipped surrogate, every token alike. No advantage is negative, so `clip_low` plays
no part.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import best_of_group
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class PasskBestAlgorithm(recipe.ClipConfig):
    """Clip widths and the scale of advantages."""

    scale: Literal["group", "none"] = "group"
    """Divisor of the margin: the group's standard deviation, or none, which is unbiased."""


class PasskBestConfig(recipe.GroupRunConfig):
    """Training for the best of a group."""

    algorithm: PasskBestAlgorithm = PasskBestAlgorithm()
    """Clip widths, scale, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(chosen, token_mean))
        return recipe.TextMethod(credit=partial(best_of_group, scale=chosen.scale), learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="only a group's best answer learns, from its margin over the second",
    paper="Tang et al., Optimizing Language Models for Inference Time Objectives, 2025",
    config=PasskBestConfig,
    limitation="two right answers in a group teach nothing, so it learns only where being right is rare.",
)
