"""REINFORCE++: PPO's clip on returns that are whitened over the batch, without a critic (Hu, 2025).

A = whitened over the step's tokens of the return to go, whose rewards hold -weight * k1 of each token;
loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike. The weight is verl's default, 0.001.
"""

from functools import partial

from hone.credit.reinforce import reinforce_plus_plus
from hone.text import recipe


class ReinforcePlusPlusAlgorithm(recipe.ClipConfig):
    """Clip widths, and coefficient of the KL penalty in the reward."""

    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef(weight=0.001)
    """Coefficient of the KL penalty to the initial policy, in the reward of each token."""
    whiten_rewards: recipe.RewardWhitening = "none"
    """Divide the rewards of the step's tokens by their standard deviation before they are added up to returns
    (`scale`), with their mean taken off as well (`standardise`), or leave them as they are (`none`)."""
    ddof: recipe.Ddof = 1
    """Degrees of freedom taken from the standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = recipe.Field(default=1e-8, ge=0)
    """Added to the standard deviation of the whitening before it divides."""


class ReinforcePlusPlusConfig(recipe.TextGradientRunConfig):
    """REINFORCE++."""

    requires = ()
    algorithm: ReinforcePlusPlusAlgorithm = ReinforcePlusPlusAlgorithm()
    """Clip widths and KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit, memory = recipe.with_kl_reward(
            recipe.with_whitened_rewards(
                partial(reinforce_plus_plus, ddof=chosen.ddof, epsilon=chosen.epsilon), chosen.whiten_rewards
            ),
            chosen.kl_in_reward,
            policies,
        )
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory)


ENTRY = recipe.RecipeSpec(
    summary="PPO's clip on returns whitened over the batch, without a critic",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusConfig,
    limitation="questions of unequal difficulty share one baseline; long answers weigh more in it.",
)
