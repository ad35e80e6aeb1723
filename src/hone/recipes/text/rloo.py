"""RLOO: each answer is compared with the mean of the others (Ahmadian et al., "Back to Basics", 2024).

A_i = R_i - mean of the other answers' scores, where R holds the distance to the reference, R - weight * sum of k1;
loss = -A log pi, summed over an answer's tokens, averaged over answers. The weight is TRL's default, 0.05.
"""

from hone.credit.group import leave_one_out
from hone.text import recipe


class RlooAlgorithm(recipe.AggregationConfig):
    """Coefficient of the KL penalty in the reward, whitening and aggregation."""

    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef(weight=0.05)
    """Coefficient of the KL penalty to the initial policy, in the reward."""
    whiten: recipe.Whitening = "none"
    """Standardise the advantages over the step: over its answers (TRL's `normalize_advantages`), or over its tokens,
    where long answers count more; none is off."""
    epsilon: float = recipe.Field(default=1e-4, ge=0)
    """Added to the standard deviation of the whitening before it divides."""
    aggregation: recipe.Aggregation = "sequence_sum"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class RlooConfig(recipe.TextGradientRunConfig):
    """REINFORCE with a leave-one-out baseline."""

    requires = (recipe.require_groups, recipe.require_on_policy)
    algorithm: RlooAlgorithm = RlooAlgorithm()
    """KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit, memory = recipe.with_kl_reward(
            recipe.with_whitening(leave_one_out, chosen.whiten, epsilon=chosen.epsilon), chosen.kl_in_reward, policies
        )
        loss = recipe.policy_gradient_loss(recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory)


ENTRY = recipe.RecipeSpec(
    summary="REINFORCE with the mean of the other answers as the baseline",
    paper="Ahmadian et al., Back to Basics, 2024",
    config=RlooConfig,
    limitation="one update per rollout; TRL's form with a clipped ratio of whole answers is another loss.",
)
