"""Decoupled PPO: clip against the policy before the update, weights for the behaviour policy (Hilton et al., 2021).

A as in GRPO; u = pi / pi_prox, w = sg[pi_prox / pi_acted]; loss = w max(-A u, -A clip(u, 1 - low, 1 + high)), every
token alike. Made for stale answers (AReaL, 2025): the clip keeps near the newest policy, w corrects for the oldest.
"""

from functools import partial

from hone.objectives.policy import clipped_surrogate, decoupled_ppo
from hone.text import recipe


class DecoupledAlgorithm(recipe.ClipConfig):
    """Clip widths, and a bound on the correction."""

    weight_cap: float | None = recipe.Field(default=None, gt=0)
    """Largest importance weight w; unset: no bound."""
    weight_floor: float | None = recipe.Field(default=None, ge=0)
    """Least importance weight w: smaller ones are raised to it; unset: no bound."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""

    @recipe.model_validator(mode="after")
    def _ordered(self) -> "DecoupledAlgorithm":
        floor, cap = self.weight_floor, self.weight_cap
        if floor is not None and cap is not None and floor > cap:
            raise ValueError(f"weight_floor = {floor:g} is above weight_cap = {cap:g}")
        return self


def _require_no_correction(config: recipe.TextGradientRunConfig) -> None:
    """Both ratios are this loss's own."""
    ratio = config.learner.ratio
    if ratio.denominator != "auto" or ratio.correction != "none":
        raise ValueError(
            f'learner.ratio.denominator = "{ratio.denominator}", learner.ratio.correction = "{ratio.correction}": '
            "decoupled_ppo takes its ratios against the policy before the update and the behaviour policy itself; "
            "leave both out, and bound its correction by algorithm.weight_cap"
        )


class DecoupledPpoConfig(recipe.TextGradientRunConfig):
    """PPO with three policies."""

    requires = (recipe.require_groups, _require_no_correction)
    needs_old_policy = True
    corrects_itself = True
    algorithm: DecoupledAlgorithm = DecoupledAlgorithm()
    """Clip widths, bound, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm

        clipped = partial(clipped_surrogate, **recipe.clip_range(chosen))
        cap, floor = chosen.weight_cap, chosen.weight_floor
        weighted = partial(decoupled_ppo, clipped=clipped, weight_cap=cap, weight_floor=floor)

        def objective(view: recipe.TokenView) -> recipe.LossTerms:
            return weighted(view.logp, view.behaviour_logp, view.old_logp, view.advantage)

        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(
            objective=objective, scheme=scheme, proportional_to_advantage=True, needs_old_logp=True
        )
        learner = recipe.gradient_learner(self, policies, recipe.with_penalties(loss, chosen))
        return recipe.TextMethod(credit=recipe.group_advantage(chosen.advantage), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="PPO's clip against the newest policy, corrected for the behaviour policy",
    paper="Hilton et al., Batch Size-Invariance for Policy Optimization, 2021; AReaL, 2025",
    config=DecoupledPpoConfig,
    limitation="one more forward pass per step; w is unbounded unless weight_cap is set.",
)
