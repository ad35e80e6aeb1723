"""DAPO: clip higher, token mean, dynamic sampling and a soft limit on length (Yu et al., 2025).

GRPO's advantage of R + p(L), where p falls from 0 to -1 over the last fifth of `rollout.max_tokens`; loss =
-min(r A, clip(r, 1 - 0.2, 1 + 0.28) A), every token alike. Groups of equal scores are replaced: the source asks on,
up to `max_rounds` times, and tells what that cost (`dynamic_sampling/*`). They are chosen before lengths are punished.
"""

from functools import partial

from hone.credit.group import has_score_variance
from hone.credit.shaping import overlong_penalty, with_shaped_scores
from hone.text import recipe


class DapoAlgorithm(recipe.ClipConfig):
    """The numbers of the paper."""

    clip_high = recipe.new_default(0.28)
    overlong_share: float = recipe.Field(default=0.2, ge=0, le=1)
    """Share of `rollout.max_tokens` over which the punishment of long answers rises (4096 of 20480); 0 is off."""
    max_rounds: int = recipe.Field(default=10, ge=1)
    """Rollouts that a step may take to find enough groups of unequal scores."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class DapoConfig(recipe.TextGradientRunConfig):
    """Decoupled clip and dynamic sampling policy optimisation."""

    algorithm: DapoAlgorithm = DapoAlgorithm()
    """Clip widths, length, sampling."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen, limit = self.algorithm, self.rollout.max_tokens
        buffer = max(1, round(chosen.overlong_share * limit))
        credit = partial(
            with_shaped_scores,
            shapings=[partial(overlong_penalty, max_tokens=limit, buffer_tokens=buffer)]
            if chosen.overlong_share
            else [],
            credit=recipe.group_advantage(chosen.advantage),
        )
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        wrap = partial(recipe.DynamicSampling, is_informative=has_score_variance, max_rounds=chosen.max_rounds)
        return recipe.TextMethod(credit=credit, learner=learner, wrap_source=wrap)


ENTRY = recipe.RecipeSpec(
    summary="GRPO with clip-higher, token mean, dynamic sampling and overlong shaping",
    paper="Yu et al., DAPO, 2025",
    config=DapoConfig,
    limitation="dynamic sampling multiplies the cost of generation where most questions are all right or all wrong.",
    presets=("grpo",),
)
