"""REINFORCE: what went better than the batch on average is made likelier (Williams, 1992).

A = R - mean score of the batch, the same for every token of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. `baseline = "none"` takes R itself.
"""

from functools import partial
from typing import Literal

from hone.credit.group import batch_relative
from hone.credit.returns import discounted_returns
from hone.text import recipe


class ReinforceAlgorithm(recipe.AggregationConfig):
    """Baseline, and coefficient of the KL penalty in the reward."""

    baseline: Literal["batch", "none"] = "batch"
    """Baseline of a score: the mean of the step's scores, or none."""
    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef()
    """Coefficient of the KL penalty to the initial policy, in the reward; off by default."""
    aggregation: recipe.Aggregation = "sequence_sum"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class ReinforceConfig(recipe.TextGradientRunConfig):
    """The policy gradient."""

    requires = (recipe.require_on_policy,)
    algorithm: ReinforceAlgorithm = ReinforceAlgorithm()
    """Baseline and KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit, memory = recipe.with_kl_reward(BASELINES[chosen.baseline], chosen.kl_in_reward, policies)
        loss = recipe.policy_gradient_loss(recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory)


BASELINES = {"batch": partial(batch_relative, scale="none"), "none": partial(discounted_returns, discount=1.0)}


ENTRY = recipe.RecipeSpec(
    summary="the policy gradient, with the batch's mean as the baseline",
    paper="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=ReinforceConfig,
    limitation="questions of unequal difficulty share one baseline, so the variance is large; one update per rollout.",
    presets=("reinforce",),
)
