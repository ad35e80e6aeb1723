"""GMPO: the geometric mean of an answer's clipped token ratios (geometric-mean policy optimisation, 2025).

A as in GRPO; loss = -A exp(mean over the answer of d), d = min(log r, log_high) where A > 0 and max(log r, -log_low)
where A < 0, every answer alike. Widths are in nats: 0.4 are ratios of 0.67 and 1.49.
"""

from collections.abc import Callable
from functools import partial

from hone.objectives.selection import high_entropy_mask
from hone.objectives.sequence import gmpo
from hone.text import recipe


class GmpoAlgorithm(recipe.PenaltyConfig):
    """Clip widths in nats."""

    log_low: float = recipe.Field(default=0.4, gt=0)
    """Clip width downwards, nats: largest fall of the log-probability of a token with negative advantage."""
    log_high: float = recipe.Field(default=0.4, gt=0)
    """Clip width upwards, nats: largest rise of the log-probability of a token with positive advantage."""
    entropy_share: float = recipe.Field(default=1.0, gt=0, le=1)
    """Share of a step's tokens, those of the highest entropy, that enter the geometric mean; 1: all."""
    aggregation: recipe.Aggregation = "sequence_mean"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class GmpoConfig(recipe.TextGradientRunConfig):
    """Geometric-mean policy optimisation."""

    algorithm: GmpoAlgorithm = GmpoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        mean = partial(gmpo, log_low=chosen.log_low, log_high=chosen.log_high)
        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        if chosen.entropy_share == 1:
            loss = recipe.penalised_loss(recipe.from_sequence_columns(mean), scheme, chosen)
        else:
            loss = recipe.penalised_loss(partial(_kept, mean=mean), scheme, chosen, select_tokens=self._select)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )

    def _select(self, columns: recipe.StepColumns) -> recipe.TokenFactors:
        return high_entropy_mask(columns.entropy, fraction=self.algorithm.entropy_share)


def _kept(view: recipe.TokenView, *, mean: Callable[..., recipe.LossTerms]) -> recipe.LossTerms:
    """The mean over the tokens that were selected."""
    return mean(view.logp, view.denominator_logp, view.advantage, view.sequence, keep=view.token_factor)


ENTRY = recipe.RecipeSpec(
    summary="the geometric mean of an answer's clipped token ratios",
    paper="GMPO, 2507.20673, 2025",
    config=GmpoConfig,
    limitation="no credit within an answer: one factor for all of its tokens.",
    presets=("gmpo",),
)
