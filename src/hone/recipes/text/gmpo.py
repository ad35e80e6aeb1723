"""GMPO: the geometric mean of an answer's clipped token ratios (geometric-mean policy optimisation, 2025).

A as in GRPO; loss = -A exp(mean over the answer of d), d = min(log r, log_high) where A > 0 and max(log r, -log_low)
where A < 0, every answer alike. Widths are in nats: 0.4 are ratios of 0.67 and 1.49.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.sequence import gmpo
from hone.objectives.weights import sequence_mean
from hone.train.text import recipe


class GmpoAlgorithm(recipe.PenaltyConfig):
    """Clip widths in nats."""

    log_low: float = recipe.Field(default=0.4, gt=0)
    """Clip width downwards, nats: largest fall of the log-probability of a token with negative advantage."""
    log_high: float = recipe.Field(default=0.4, gt=0)
    """Clip width upwards, nats: largest rise of the log-probability of a token with positive advantage."""


class GmpoConfig(recipe.TextGradientRunConfig):
    """Geometric-mean policy optimisation."""

    requires = (recipe.require_groups,)
    algorithm: GmpoAlgorithm = GmpoAlgorithm()
    """Clip widths and penalties."""


def method(config: GmpoConfig, policies: recipe.TextPolicies) -> recipe.TextMethod:
    """Advantage, objective and options of the recipe, as the text family takes them."""
    chosen = config.algorithm
    objective = recipe.from_sequence_columns(partial(gmpo, log_low=chosen.log_low, log_high=chosen.log_high))
    loss = recipe.with_penalties(
        recipe.TokenLossSpec(objective=objective, scheme=sequence_mean, proportional_to_advantage=True), chosen
    )
    return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(config, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="the geometric mean of an answer's clipped token ratios",
    paper="GMPO, 2507.20673, 2025",
    config=GmpoConfig,
    method=method,
    limitation="no credit within an answer: one factor for all of its tokens.",
    presets=("gmpo",),
)
