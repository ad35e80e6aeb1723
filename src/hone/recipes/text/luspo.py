"""LUSPO: GSPO whose answers count by their length, which undoes its preference for short ones (2026).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - low, 1 + high) A), summed
over an answer's tokens, averaged over answers.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.sequence import luspo
from hone.objectives.weights import sequence_sum
from hone.train.text import recipe


class LuspoAlgorithm(recipe.PenaltyConfig):
    """Clip widths of a whole answer's ratio."""

    clip_low: float = recipe.Field(default=2e-3, gt=0, lt=1)
    """An answer's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = recipe.Field(default=2.5e-3, gt=0)
    """An answer's ratio is clipped above 1 + clip_high where its advantage is positive."""


class LuspoConfig(recipe.GroupRunConfig):
    """Length-unbiased sequence policy optimisation."""

    algorithm: LuspoAlgorithm = LuspoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_sequence_columns(partial(luspo, low=chosen.clip_low, high=chosen.clip_high))
        loss = recipe.penalised_loss(objective, sequence_sum, chosen)
        return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.text_recipe_spec(
    summary="sequence ratios, with answers counted by their length",
    paper="LUSPO, 2602.05261, 2026",
    config=LuspoConfig,
    limitation="the gradient grows with length: a learning rate of GSPO is too large; one ratio for all tokens.",
    presets=("luspo",),
)
