"""REINFORCE with the optimal token baseline: at each position the baseline of least variance (as in verl).

A_t = G_t - B_t, B_t = sum of G W / sum of W over the group's answers that reach position t, W the squared gradient of
log pi with respect to the logits, summed up to t: 1 - 2 pi + sum over the vocabulary of pi^2; loss = -A log pi, summed
over an answer's tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial

from hone.credit.reinforce import optimal_token_baseline
from hone.text import recipe


class OptimalTokenBaselineAlgorithm(recipe.AggregationConfig):
    """Aggregation of the loss."""

    aggregation: recipe.Aggregation = "constant_length"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class OptimalTokenBaselineConfig(recipe.TextGradientRunConfig):
    """REINFORCE with the optimal token baseline."""

    requires = (recipe.require_groups, recipe.require_on_policy, recipe.require_full_distribution)
    algorithm: OptimalTokenBaselineAlgorithm = OptimalTokenBaselineAlgorithm()
    """Aggregation."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        scheme = recipe.aggregation_scheme(self.algorithm, self.rollout.max_tokens)
        loss = recipe.policy_gradient_loss(scheme)
        credit = partial(optimal_token_baseline, collision=policies.collision_probability())
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="REINFORCE with a baseline of least variance at each position of an answer",
    paper="optimal token baseline, as in verl, 2026",
    config=OptimalTokenBaselineConfig,
    limitation="beyond the length of all other answers nothing is learned; one more forward pass over the whole "
    "vocabulary; one update per rollout.",
)
