"""LUSPO: GSPO whose answers count by their length, which undoes its preference for short ones (2026).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - low, 1 + high) A), summed
over an answer's tokens, averaged over answers.
"""

from functools import partial

from hone.objectives.sequence import luspo
from hone.recipes.text.gspo import GspoAlgorithm
from hone.text import recipe


class LuspoAlgorithm(GspoAlgorithm):
    """Clip widths of a whole answer's ratio."""

    clip_low = recipe.new_default(2e-3)
    clip_high = recipe.new_default(2.5e-3)
    aggregation = recipe.new_default("sequence_sum")


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
