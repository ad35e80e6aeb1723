"""REINFORCE++: PPO's clip on returns that are whitened over the batch, without a critic (Hu, 2025).

A = whitened over the step's tokens of the return to go, whose rewards hold -weight * k1 of each token;
loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike. The weight is verl's default, 0.001.
"""

from hone.credit.reinforce import reinforce_plus_plus
from hone.objectives.weights import token_mean
from hone.train.text import recipe


class ReinforcePlusPlusAlgorithm(recipe.ClipConfig):
    """Clip widths, and coefficient of the KL penalty in the reward."""

    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef(weight=0.001)
    """Coefficient of the KL penalty to the initial policy, in the reward of each token."""


class ReinforcePlusPlusConfig(recipe.TextGradientRunConfig):
    """REINFORCE++."""

    algorithm: ReinforcePlusPlusAlgorithm = ReinforcePlusPlusAlgorithm()
    """Clip widths and KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit, memory = recipe.with_kl_reward(reinforce_plus_plus, chosen.kl_in_reward, policies)
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(chosen, token_mean))
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory)


ENTRY = recipe.text_recipe_spec(
    summary="PPO's clip on returns whitened over the batch, without a critic",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusConfig,
    limitation="questions of unequal difficulty share one baseline; long answers weigh more in it.",
)
