"""LUSPO: GSPO whose answers count by their length, which undoes its preference for short ones (2026).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - low, 1 + high) A), summed
over an answer's tokens, averaged over answers.
"""

from functools import partial

from hone.objectives.sequence import luspo
from hone.text import recipe


class LuspoAlgorithm(recipe.ClipConfig):
    """Clip widths of a whole answer's ratio."""

    clip_low: float = recipe.Field(default=2e-3, gt=0, lt=1)
    """An answer's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = recipe.Field(default=2.5e-3, gt=0)
    """An answer's ratio is clipped above 1 + clip_high where its advantage is positive."""
    negative_cap: float | None = recipe.Field(default=None, gt=1)
    """Dual clip: ratio above which an answer with negative advantage has no gradient any more; unset: none."""
    aggregation: recipe.Aggregation = "sequence_sum"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class LuspoConfig(recipe.TextGradientRunConfig):
    """Length-unbiased sequence policy optimisation."""

    algorithm: LuspoAlgorithm = LuspoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_sequence_columns(partial(luspo, **recipe.clip_range(chosen)))
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="sequence ratios, with answers counted by their length",
    paper="LUSPO, 2602.05261, 2026",
    config=LuspoConfig,
    limitation="the gradient grows with length: a learning rate of GSPO is too large; one ratio for all tokens.",
    presets=("luspo",),
)
