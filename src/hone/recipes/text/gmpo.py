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


class GmpoConfig(recipe.GroupRunConfig):
    """Geometric-mean policy optimisation."""

    algorithm: GmpoAlgorithm = GmpoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_sequence_columns(partial(gmpo, log_low=chosen.log_low, log_high=chosen.log_high))
        loss = recipe.penalised_loss(objective, sequence_mean, chosen)
        return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="the geometric mean of an answer's clipped token ratios",
    paper="GMPO, 2507.20673, 2025",
    config=GmpoConfig,
    limitation="no credit within an answer: one factor for all of its tokens.",
    presets=("gmpo",),
)
