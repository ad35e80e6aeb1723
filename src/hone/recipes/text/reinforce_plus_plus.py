"""REINFORCE++: PPO's clip on returns that are whitened over the batch, without a critic (Hu, 2025).

A = whitened over the step's tokens of the return to go, whose rewards hold -weight * k1 of each token;
loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike. The weight is verl's default, 0.001.
"""

from hone.credit.kl_reward import KlRewardCredit
from hone.credit.reinforce import reinforce_plus_plus
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import FixedKlCoef, KlCoef, TextPolicies, with_kl_reward
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, text_recipe_spec


class ReinforcePlusPlusAlgorithm(ClipConfig):
    """Clip widths, and the price of leaving the reference."""

    kl_in_reward: KlCoef = FixedKlCoef(weight=0.001)
    """Price of a nat of distance to the policy that the run started from, paid in the reward, token by token."""


class ReinforcePlusPlusConfig(TextGradientRunConfig):
    """REINFORCE++."""

    algorithm: ReinforcePlusPlusAlgorithm = ReinforcePlusPlusAlgorithm()
    """Clip widths and KL."""


def method(config: ReinforcePlusPlusConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    credit, memory = with_kl_reward(reinforce_plus_plus, chosen.kl_in_reward, policies)
    loss = clip_loss(chosen, token_mean)
    return TextMethod(credit=credit, learner=gradient_learner(config, policies, loss), credit_state=memory)


ENTRY = text_recipe_spec(
    summary="PPO's clip on returns whitened over the batch, without a critic",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusConfig,
    method=method,
    parts=RecipeParts(
        credit=(KlRewardCredit, reinforce_plus_plus), loss=(clipped_surrogate, kl_penalty), weights=(token_mean,)
    ),
    limitation="questions of unequal difficulty share one baseline; long answers weigh more in it.",
)
