"""Clip-Cov: the few tokens that make entropy fall get no gradient (Cui et al., "The Entropy Mechanism", 2025).

GRPO's clipped loss, 0 at a few tokens: of those whose (A - mean A)(log pi - mean log pi) over the step lies between
`above` and `below` and that the clip has not stopped, a share of all tokens is drawn.
"""

from functools import partial

from hone.objectives.policy import clip_cov
from hone.objectives.selection import clip_cov_mask, clipped_mask
from hone.text import recipe


class ClipCovAlgorithm(recipe.ClipConfig):
    """Bounds of the covariance and share of tokens without gradient, clip widths and penalties."""

    share: float = recipe.Field(default=2e-4, gt=0, le=1)
    """Share of a step's tokens; at least one."""
    above: float = 1.0
    """Least covariance of a token that may be left out."""
    below: float = 5.0
    """Largest covariance of a token that may be left out."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class ClipCovConfig(recipe.TextGradientRunConfig):
    """GRPO without the tokens that make entropy fall."""

    algorithm: ClipCovAlgorithm = ClipCovAlgorithm()
    """Clip widths, tokens that are left out, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen, seed = self.algorithm, self.seed
        objective = recipe.from_selected_columns(partial(clip_cov, **recipe.clip_range(chosen)))
        clipped = partial(clipped_mask, **recipe.clip_range(chosen))
        mask = partial(clip_cov_mask, fraction=chosen.share, min_covariance=chosen.above, max_covariance=chosen.below)

        def select(columns: recipe.StepColumns) -> recipe.TokenFactors:
            stopped = clipped(columns.logp, columns.denominator_logp, columns.advantage)
            uniform = recipe.generator(seed, "clip_cov", columns.update).random(len(columns.logp))
            return mask(columns.logp, columns.advantage, stopped, uniform)

        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.penalised_loss(objective, scheme, chosen, select_tokens=select)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="GRPO; a few tokens of large covariance get no gradient, which keeps entropy up",
    paper="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=ClipCovConfig,
    limitation="bounds and share are in the scale of one task's covariances; one more forward pass per update.",
    presets=("clip_cov",),
)
