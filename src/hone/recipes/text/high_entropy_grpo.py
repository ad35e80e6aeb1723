"""GRPO at forking tokens: a fifth of a step's tokens, those of highest entropy, teach (Wang et al., 2025).

DAPO's clipped loss (0.2 and 0.28) with GRPO's advantage, 0 at tokens whose entropy is below the (1 - share) quantile of
the step; the denominator still counts them.
"""

from hone.objectives.selection import high_entropy_mask
from hone.text import recipe


class HighEntropyAlgorithm(recipe.ClipConfig):
    """Share of tokens that receive a gradient, clip widths and penalties."""

    clip_high = recipe.new_default(0.28)
    share: float = recipe.Field(default=0.2, gt=0, le=1)
    """Share of a step's tokens, those of the highest entropy."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class HighEntropyGrpoConfig(recipe.TextGradientRunConfig):
    """GRPO on the tokens of highest entropy."""

    algorithm: HighEntropyAlgorithm = HighEntropyAlgorithm()
    """Clip widths, share, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm

        def select(columns: recipe.StepColumns) -> recipe.TokenFactors:
            return high_entropy_mask(columns.entropy, fraction=chosen.share)

        clipped = recipe.clip_objective(chosen)

        def objective(view: recipe.TokenView) -> recipe.LossTerms:
            assert view.token_factor is not None
            return recipe.scale_terms(clipped(view), view.token_factor)

        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.penalised_loss(objective, scheme, chosen, select_tokens=select)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="GRPO on the fifth of the tokens with the highest entropy",
    paper="Wang et al., Beyond the 80/20 Rule, 2025",
    config=HighEntropyGrpoConfig,
    limitation="shown to help large models; small ones miss the other tokens; one more forward pass per update.",
    presets=("high_entropy",),
)
