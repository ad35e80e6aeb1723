"""SimKO: right answers lift the likeliest tokens together, wrong ones press the top one down (Peng et al., 2025).

A as in GRPO; PPO's clip of r' and A' at forking tokens (entropy above the `fork_share` quantile of their answer), of r
and A elsewhere. Right answers: r' = (1 - mix) r + mix / K sum over the K likeliest tokens of sg[r / r_k] r_k, in value
r. Wrong answers: A' = boost A where the likeliest token was chosen. Every token alike.
"""

from hone.objectives.policy import SimkoStrength, TopKCandidates, forking_tokens, simko
from hone.text import recipe


class SimkoAlgorithm(recipe.AggregationConfig):
    """The numbers of the authors' scripts."""

    likeliest: int = recipe.Field(default=3, ge=1)
    """K: tokens over which the gradient of right answers is spread."""
    fork_share: float = recipe.Field(default=0.8, ge=0, lt=1)
    """Quantile of an answer's entropies above which a token is a fork."""
    mix: float = recipe.Field(default=0.01, ge=0, le=1)
    """Part of the gradient that is spread."""
    boost: float = recipe.Field(default=1.1, ge=1)
    """Factor of the advantage of wrong answers at positions where the most likely token was chosen."""
    clip_low: float = recipe.Field(default=0.2, gt=0, lt=1)
    """A token's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = recipe.Field(default=0.2, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""
    negative_cap: float | None = recipe.Field(default=None, gt=1)
    """Dual clip: ratio above which a token with negative advantage has no gradient any more; unset: none."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""

    @recipe.model_validator(mode="after")
    def _cap_beyond_clip(self) -> "SimkoAlgorithm":
        recipe.require_cap_beyond_clip(self.negative_cap, self.clip_high)
        return self


class SimkoConfig(recipe.TextGradientRunConfig):
    """Simple pass@k optimisation."""

    requires = (recipe.require_groups, recipe.require_full_distribution)
    needs_entropy = True
    algorithm: SimkoAlgorithm = SimkoAlgorithm()
    """Forks, candidates and weights."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        strength = SimkoStrength(
            smoothing=chosen.mix,
            penalty_scale=chosen.boost,
            low=chosen.clip_low,
            high=chosen.clip_high,
            negative_cap=chosen.negative_cap,
        )

        def objective(view: recipe.TokenView) -> recipe.LossTerms:
            assert view.top_k_logp is not None
            assert view.old_top_k is not None
            assert view.entropy is not None
            first = view.chosen == view.old_top_k.ids[:, 0]
            candidates = TopKCandidates(logp=view.top_k_logp, old_logp=view.old_top_k.logp, drawn_is_top=first)
            forks = forking_tokens(view.entropy, view.sequence, quantile=chosen.fork_share)
            both = (view.logp, view.denominator_logp)
            return simko(*both, view.advantage, candidates, forks, strength)

        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(
            objective=objective, scheme=scheme, proportional_to_advantage=True, needs_entropy=self.needs_entropy,
            top_k=chosen.likeliest
        )  # fmt: skip
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage),
            learner=recipe.gradient_learner(self, policies, loss),
        )


ENTRY = recipe.RecipeSpec(
    summary="probability spread over the top candidates of right answers, for pass@k",
    paper="Peng et al., SimKO: Simple Pass@K Policy Optimization, 2025",
    config=SimkoConfig,
    limitation="the sign of the advantage stands for right and wrong: meant for scores of 0 and 1.",
)
