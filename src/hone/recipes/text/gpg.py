"""GPG: the plain policy gradient, scaled up for the groups that say nothing (Chu et al., 2025).

A = alpha (R - mean of the group), alpha = answers / answers in groups with unequal scores; loss = -A log pi, every
token of the step alike. No ratio, no clip, no KL, no critic, no deviation.
"""

from functools import partial

from hone.credit.group import group_policy_gradient
from hone.text import recipe


class GpgAlgorithm(recipe.AggregationConfig):
    """Scale of advantages and aggregation."""

    norm: float = recipe.Field(default=1.0, gt=0)
    """Divisor of the centred scores."""


class GpgConfig(recipe.TextGradientRunConfig):
    """Group policy gradient."""

    requires = (recipe.require_groups, recipe.require_on_policy)
    algorithm: GpgAlgorithm = GpgAlgorithm()
    """Scale."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        loss = recipe.policy_gradient_loss(recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=partial(group_policy_gradient, norm=self.algorithm.norm), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="the plain policy gradient of groups, scaled up for those that say nothing",
    paper="Chu et al., GPG, 2025",
    config=GpgConfig,
    limitation="where few groups say something, alpha makes their gradient large; one update per rollout.",
)
