"""GRPO with off-policy sequence masking: failures that the policy would hardly write any more teach it nothing.

GRPO's loss, 0 at all tokens of an answer with A < 0 whose mean of log pi acted - log pi is above `max_nats`
(DeepSeek-V3.2, 2025). Praised answers are kept however old. The bound is TRL's suggestion; the paper gives none.
"""

from hone.objectives.mismatch import off_policy_sequence_mask
from hone.text import recipe


class OpsmAlgorithm(recipe.ClipConfig):
    """Bound on off-policy answers, clip widths and penalties."""

    max_nats: float = recipe.Field(default=0.5, gt=0)
    """Mean distance per token from the behaviour policy, above which an answer of negative advantage is left out."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class OpsmConfig(recipe.TextGradientRunConfig):
    """GRPO with off-policy sequence masking."""

    algorithm: OpsmAlgorithm = OpsmAlgorithm()
    """Clip widths, the bound, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        clipped = recipe.clip_objective(chosen)

        def objective(view: recipe.TokenView) -> recipe.LossTerms:
            terms = clipped(view)
            kept = off_policy_sequence_mask(
                view.logp, view.behaviour_logp, view.advantage, view.sequence, max_kl_nats=chosen.max_nats
            )
            return recipe.LossTerms(
                loss=recipe.scale_terms(terms, kept).loss,
                compute_metrics=lambda: {**terms.metrics, "policy/masked_fraction": 1.0 - kept},
            )

        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="GRPO without answers of negative advantage that are far off the policy",
    paper="DeepSeek-V3.2, 2025",
    config=OpsmConfig,
    limitation="with fresh answers nothing is masked; a mean per token lets long answers with few absurd tokens pass.",
    presets=("off_policy_mask",),
)
