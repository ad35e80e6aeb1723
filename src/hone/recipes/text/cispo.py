"""CISPO: the ratio is capped, and no token is ever without a gradient (MiniMax, "MiniMax-M1", 2025).

A as in GRPO; loss = -sg[min(r, ratio_cap)] A log pi, every token alike. The cap is an absolute ratio: 5, as in ScaleRL
(Khatri et al., 2025), because the paper's own is not published.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.policy import cispo
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class CispoAlgorithm(recipe.PenaltyConfig):
    """Bounds of the weight."""

    ratio_cap: float = recipe.Field(default=5.0, gt=0)
    """Largest weight of a token: a ratio, not a width around 1."""
    ratio_floor: float = recipe.Field(default=0.0, ge=0)
    """Least weight of a token; the paper has none."""


class CispoConfig(recipe.GroupRunConfig):
    """Clipped importance sampling policy optimisation."""

    algorithm: CispoAlgorithm = CispoAlgorithm()
    """Bounds and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        capped = partial(cispo, ratio_cap=chosen.ratio_cap, ratio_floor=chosen.ratio_floor)
        objective = recipe.from_token_columns(capped)
        loss = recipe.penalised_loss(objective, token_mean, chosen)
        return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="importance weights capped instead of gradients clipped",
    paper="MiniMax, MiniMax-M1, 2025",
    config=CispoConfig,
    limitation="nothing stops a token that has moved far: the step size alone bounds the change of the policy.",
    presets=("cispo",),
)
