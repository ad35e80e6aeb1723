"""RLOO: each answer is compared with the mean of the others (Ahmadian et al., "Back to Basics", 2024).

A_i = R_i - mean of the other answers' scores, where R holds the distance to the reference, R - weight * sum of k1;
loss = -A log pi, summed over an answer's tokens, averaged over answers. The weight is TRL's default, 0.05.
"""

from hone.core.config import Config
from hone.credit.group import leave_one_out
from hone.credit.kl_reward import KlInReward
from hone.objectives.policy import reinforce
from hone.objectives.weights import sequence_sum
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import FixedPrice, Policies, Price, priced
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, one_update, text_entry


class RlooAlgorithm(Config):
    """The price of leaving the reference."""

    kl_in_reward: Price = FixedPrice(weight=0.05)
    """Price of a nat of distance to the policy that the run started from, paid in the reward."""


class Rloo(TextRl):
    """REINFORCE with a leave-one-out baseline."""

    requires = (groups, one_update)
    algorithm: RlooAlgorithm = RlooAlgorithm()
    """KL."""


def method(config: Rloo, policies: Policies) -> Method:
    credit, memory = priced(leave_one_out, config.algorithm.kl_in_reward, policies)
    loss = Loss(objective=policy_gradient, scheme=sequence_sum, proportional=True)
    return Method(credit=credit, learner=by_gradient(config, policies, loss), memory=memory)


ENTRY = text_entry(
    summary="REINFORCE with the mean of the other answers as the baseline",
    source="Ahmadian et al., Back to Basics, 2024",
    config=Rloo,
    method=method,
    parts=Parts(credit=(KlInReward, leave_one_out), loss=(reinforce,), weights=(sequence_sum,)),
    limitation="one update per rollout; TRL's form with a clipped ratio of whole answers is another loss.",
)
