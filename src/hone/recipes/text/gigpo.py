"""GiGPO: GRPO over dialogues, and turns compared with the turns that began in the same state (Feng et al., 2025).

A = group-relative advantage of the score + step_weight * group-relative advantage of the turn's discounted return among
the turns of the group that read the same text just before; loss = -min(r A, clip(r, 1 - low, 1 + high) A). No critic,
and no further rollouts: dialogues of one group meet the same states by themselves.
"""

from functools import partial
from typing import Literal

from hone.credit.turns import anchored
from hone.text import recipe


class GigpoAlgorithm(recipe.ClipConfig):
    """The numbers of the paper."""

    step_weight: float = recipe.Field(default=1.0, ge=0)
    """Weight of the advantage among turns of equal state (the paper's omega); 0 is GRPO."""
    discount: float = recipe.Field(default=0.95, ge=0, le=1)
    """Discount factor (gamma) of a turn, in the returns of turns."""
    scale: Literal["group", "none"] = "group"
    """Divisor of both advantages: the standard deviation of those that are compared, or none."""
    epsilon: float = recipe.Field(default=1e-6, ge=0)
    """Added to each standard deviation before it divides."""


class GigpoConfig(recipe.TextGradientRunConfig):
    """Group-in-group policy optimisation."""

    algorithm: GigpoAlgorithm = GigpoAlgorithm()
    """Weight and discount of turns, clip widths, KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit = partial(
            anchored,
            step_weight=chosen.step_weight,
            discount=chosen.discount,
            scale=chosen.scale,
            epsilon=chosen.epsilon,
        )
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="GRPO over dialogues, and turns compared with turns that began in the same state",
    paper="Feng et al., Group-in-Group Policy Optimization for LLM Agent Training, 2025",
    config=GigpoConfig,
    limitation="a turn whose state nobody else of the group met gets the dialogue's advantage alone; equal text stands "
    "for equal state, which is wrong where the environment remembers what it does not say.",
    presets=("grpo",),
)
