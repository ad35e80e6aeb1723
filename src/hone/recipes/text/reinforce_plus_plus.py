"""REINFORCE++: PPO's clip on returns that are whitened over the batch, without a critic (Hu, 2025).

A = whitened over the step's tokens of the return to go, whose rewards hold -weight * k1 of each token;
loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike. The weight is verl's default, 0.001.
"""

from hone.credit.kl_reward import KlInReward
from hone.credit.reinforce import reinforce_plus_plus
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import FixedPrice, Policies, Price, priced
from hone.train.text.rl_job import Method, TextRl, by_gradient, text_entry


class ReinforcePlusPlusAlgorithm(Clip):
    """Clip widths, and the price of leaving the reference."""

    kl_in_reward: Price = FixedPrice(weight=0.001)
    """Price of a nat of distance to the policy that the run started from, paid in the reward, token by token."""


class ReinforcePlusPlus(TextRl):
    """REINFORCE++."""

    algorithm: ReinforcePlusPlusAlgorithm = ReinforcePlusPlusAlgorithm()
    """Clip widths and KL."""


def method(config: ReinforcePlusPlus, policies: Policies) -> Method:
    chosen = config.algorithm
    credit, memory = priced(reinforce_plus_plus, chosen.kl_in_reward, policies)
    loss = clip_loss(chosen, token_mean)
    return Method(credit=credit, learner=by_gradient(config, policies, loss), memory=memory)


ENTRY = text_entry(
    summary="PPO's clip on returns whitened over the batch, without a critic",
    source="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlus,
    method=method,
    parts=Parts(credit=(KlInReward, reinforce_plus_plus), loss=(clipped, kl_penalty), weights=(token_mean,)),
    limitation="questions of unequal difficulty share one baseline; long answers weigh more in it.",
)
