"""VESPO: answers weighed by a gamma-shaped kernel of their sequence ratio (2026).

A as in GRPO; loss = -sg[phi(w)] A log pi, phi(w) = w^k exp(l (1 - w)), w the product of the answer's ratios, every
token alike. phi is 1 at w = 1 and fades on both sides; (k, l) is (2, 3) where A >= 0 and (3, 2) elsewhere.
"""

from functools import partial

from hone.objectives.sequence import vespo
from hone.text import recipe


class VespoAlgorithm(recipe.PenaltyConfig):
    """The kernel's shape."""

    positive_power: float = recipe.Field(default=2.0, gt=0)
    """k of answers with positive advantage."""
    positive_rate: float = recipe.Field(default=3.0, gt=0)
    """l of answers with positive advantage."""
    negative_power: float = recipe.Field(default=3.0, gt=0)
    """k of answers with negative advantage."""
    negative_rate: float = recipe.Field(default=2.0, gt=0)
    """l of answers with negative advantage."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class VespoConfig(recipe.TextGradientRunConfig):
    """Variational sequence-level soft policy optimisation."""

    algorithm: VespoAlgorithm = VespoAlgorithm()
    """Kernel and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        positive = (chosen.positive_power, chosen.positive_rate)
        negative = (chosen.negative_power, chosen.negative_rate)
        objective = recipe.from_sequence_columns(partial(vespo, positive=positive, negative=negative))
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="a smooth kernel of the sequence ratio instead of a clip",
    paper="VESPO, 2602.10693, 2026",
    config=VespoConfig,
    limitation="the product of ratios of a long answer is soon far from 1, and then the answer teaches almost nothing.",
    presets=("vespo",),
)
