"""GSPO: one ratio per answer, the geometric mean of its tokens' (Zheng et al., 2025).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), every
answer alike. Noise of single tokens, as from expert routing, averages out.
"""

from functools import partial

from hone.objectives.sequence import gspo
from hone.text import recipe


class GspoAlgorithm(recipe.ClipConfig):
    """Clip widths of a whole answer's ratio, hundreds of times narrower than a token's."""

    clip_low: float = recipe.Field(default=3e-4, gt=0, lt=1)
    """An answer's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = recipe.Field(default=4e-4, gt=0)
    """An answer's ratio is clipped above 1 + clip_high where its advantage is positive."""
    negative_cap: float | None = recipe.Field(default=None, gt=1)
    """Dual clip: ratio above which an answer with negative advantage has no gradient any more; unset: none."""
    aggregation: recipe.Aggregation = "sequence_mean"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class GspoConfig(recipe.TextGradientRunConfig):
    """Group sequence policy optimisation."""

    algorithm: GspoAlgorithm = GspoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_sequence_columns(partial(gspo, **recipe.clip_range(chosen)))
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="one clipped ratio per answer: the geometric mean of its tokens'",
    paper="Zheng et al., Group Sequence Policy Optimization, 2025",
    config=GspoConfig,
    limitation="no credit within an answer; widths of token ratios (0.2) switch its clip off.",
    presets=("gspo",),
)
