"""SAPO: a smooth gate where others clip (soft adaptive policy optimisation, 2025).

A as in GRPO; loss = -A (4 / t) sigmoid(t (r - 1)), t by the sign of A, every answer alike. The gradient is the policy
gradient's at r = 1 and fades on both sides, faster for tokens of negative advantage.
"""

from functools import partial

from hone.objectives.policy import sapo
from hone.objectives.sequence import sequence_sapo
from hone.text import recipe


class SapoAlgorithm(recipe.PenaltyConfig):
    """Steepness of the gate, and penalties."""

    positive_steepness: float = recipe.Field(default=1.0, gt=0)
    """Steepness of the gate of tokens with positive advantage."""
    negative_steepness: float = recipe.Field(default=1.05, gt=0)
    """Steepness of the gate of tokens with negative advantage."""
    ratio_level: recipe.RatioLevel = "token"
    """Ratio of the gate: the token's, or the geometric mean of its answer's."""
    aggregation: recipe.Aggregation = "sequence_mean"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class SapoConfig(recipe.TextGradientRunConfig):
    """Soft adaptive policy optimisation."""

    algorithm: SapoAlgorithm = SapoAlgorithm()
    """Steepness and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        positive, negative = chosen.positive_steepness, chosen.negative_steepness
        gate = partial(LOSSES[chosen.ratio_level], positive_steepness=positive, negative_steepness=negative)
        objective = recipe.from_ratio_columns(gate, chosen.ratio_level)
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


LOSSES = {"token": sapo, "sequence": sequence_sapo}


ENTRY = recipe.RecipeSpec(
    summary="a sigmoid gate around a ratio of 1 instead of a clip",
    paper="SAPO, 2511.20347, 2025",
    config=SapoConfig,
    limitation="the loss's value is not comparable with PPO's (2 / t at a ratio of 1); gradients never quite end.",
    presets=("sapo",),
)
