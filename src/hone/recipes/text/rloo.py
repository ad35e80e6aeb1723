"""RLOO: each answer is compared with the mean of the others (Ahmadian et al., "Back to Basics", 2024).

A_i = R_i - mean of the other answers' scores, where R holds the distance to the reference, R - weight * sum of k1;
loss = -A log pi, summed over an answer's tokens, averaged over answers. The weight is TRL's default, 0.05.
"""

from hone.credit.group import leave_one_out
from hone.objectives.weights import sequence_sum
from hone.train.text import recipe


class RlooAlgorithm(recipe.Config):
    """Coefficient of the KL penalty in the reward."""

    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef(weight=0.05)
    """Coefficient of the KL penalty to the initial policy, in the reward."""


class RlooConfig(recipe.TextGradientRunConfig):
    """REINFORCE with a leave-one-out baseline."""

    requires = (recipe.require_groups, recipe.require_on_policy)
    algorithm: RlooAlgorithm = RlooAlgorithm()
    """KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        credit, memory = recipe.with_kl_reward(leave_one_out, self.algorithm.kl_in_reward, policies)
        learner = recipe.gradient_learner(self, policies, recipe.policy_gradient_loss(sequence_sum))
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory)


ENTRY = recipe.text_recipe_spec(
    summary="REINFORCE with the mean of the other answers as the baseline",
    paper="Ahmadian et al., Back to Basics, 2024",
    config=RlooConfig,
    limitation="one update per rollout; TRL's form with a clipped ratio of whole answers is another loss.",
)
