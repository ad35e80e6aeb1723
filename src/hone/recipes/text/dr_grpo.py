"""Dr.GRPO: GRPO without its two biases, of length and of difficulty (Liu et al., 2025).

A = R - mean of the group; loss = (1 / answers) sum over answers of (1 / C) sum over tokens of
-min(r A, clip(r, 1 - low, 1 + high) A), C = `rollout.max_tokens` whatever an answer's length.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.weights import constant_length
from hone.train.text import recipe


class DrGrpoConfig(recipe.GroupRunConfig):
    """GRPO done right."""

    algorithm: recipe.ClipConfig = recipe.ClipConfig()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        scheme = partial(constant_length, length=self.rollout.max_tokens)
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(self.algorithm, scheme))
        return recipe.TextMethod(credit=partial(group_relative, scale="none"), learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="GRPO without division by the deviation or by an answer's length",
    paper="Liu et al., Understanding R1-Zero-Like Training, 2025",
    config=DrGrpoConfig,
    limitation="short answers make small gradients: the constant is the longest that there may be.",
    presets=("dr_grpo",),
)
