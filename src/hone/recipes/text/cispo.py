"""CISPO: the ratio is capped, and no token is ever without a gradient (MiniMax, "MiniMax-M1", 2025).

A as in GRPO; loss = -sg[min(r, ratio_cap)] A log pi, every token alike. The cap is an absolute ratio: 5, as in ScaleRL
(Khatri et al., 2025), because the paper's own is not published.
"""

from functools import partial

from hone.objectives.policy import cispo
from hone.objectives.sequence import sequence_cispo
from hone.text import recipe


class CispoAlgorithm(recipe.PenaltyConfig):
    """Bounds of the weight."""

    ratio_cap: float = recipe.Field(default=5.0, gt=0)
    """Largest weight of a token: a ratio, not a width around 1."""
    ratio_floor: float = recipe.Field(default=0.0, ge=0)
    """Least weight of a token; the paper has none."""
    ratio_level: recipe.RatioLevel = "token"
    """Ratio that is capped: the token's, or the geometric mean of its answer's."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class CispoConfig(recipe.TextGradientRunConfig):
    """Clipped importance sampling policy optimisation."""

    algorithm: CispoAlgorithm = CispoAlgorithm()
    """Bounds and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        capped = partial(LOSSES[chosen.ratio_level], ratio_cap=chosen.ratio_cap, ratio_floor=chosen.ratio_floor)
        objective = recipe.from_ratio_columns(capped, chosen.ratio_level)
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


LOSSES = {"token": cispo, "sequence": sequence_cispo}


ENTRY = recipe.RecipeSpec(
    summary="importance weights capped instead of gradients clipped",
    paper="MiniMax, MiniMax-M1, 2025",
    config=CispoConfig,
    limitation="nothing stops a token that has moved far: the step size alone bounds the change of the policy.",
    presets=("cispo",),
)
