"""OPO: a baseline weighted by length, which has the least variance under on-policy training (Hao et al., 2025).

A = R - sum of L R / sum of L over the group, L the tokens of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. Exactly on-policy: one update per rollout, no ratio, no KL, no deviation.
"""

from hone.credit.group import length_baseline
from hone.text import recipe


class OpoAlgorithm(recipe.AggregationConfig):
    """Aggregation of the loss."""

    aggregation: recipe.Aggregation = "sequence_sum"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class OpoConfig(recipe.TextGradientRunConfig):
    """On-policy optimisation with the optimal baseline."""

    requires = (recipe.require_groups, recipe.require_on_policy)
    algorithm: OpoAlgorithm = OpoAlgorithm()
    """Aggregation."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        scheme = recipe.aggregation_scheme(self.algorithm, self.rollout.max_tokens)
        loss = recipe.policy_gradient_loss(scheme)
        return recipe.TextMethod(credit=length_baseline, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="exactly on-policy REINFORCE with a length-weighted baseline",
    paper="Hao et al., On-Policy RL with Optimal Reward Baseline, 2025",
    config=OpoConfig,
    limitation="the baseline is optimal only where an answer's squared gradient grows with its length; one update per "
    "rollout.",
)
