"""REINFORCE: what went better than the batch on average is made likelier (Williams, 1992).

A = R - mean score of the batch, the same for every token of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. `baseline = "none"` takes R itself.
"""

from functools import partial
from typing import Literal

from hone.core.config import Config
from hone.credit.group import batch_relative
from hone.credit.kl_reward import KlInReward
from hone.credit.returns import returns
from hone.objectives.policy import reinforce
from hone.objectives.weights import sequence_sum
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import FixedPrice, Policies, Price, priced
from hone.train.text.rl_job import Method, TextRl, by_gradient, one_update, text_entry


class ReinforceAlgorithm(Config):
    """The baseline, and the price of leaving the reference."""

    baseline: Literal["batch", "none"] = "batch"
    """What a score is compared with: the mean of the step's scores, or nothing."""
    kl_in_reward: Price = FixedPrice()
    """Price of a nat of distance to the policy that the run started from, paid in the reward; off by default."""


class Reinforce(TextRl):
    """The policy gradient."""

    requires = (one_update,)
    algorithm: ReinforceAlgorithm = ReinforceAlgorithm()
    """Baseline and KL."""


def method(config: Reinforce, policies: Policies) -> Method:
    batch = config.algorithm.baseline == "batch"
    judged = partial(batch_relative, scale="none") if batch else partial(returns, discount=1.0)
    credit, memory = priced(judged, config.algorithm.kl_in_reward, policies)
    loss = Loss(objective=policy_gradient, scheme=sequence_sum, proportional=True)
    return Method(credit=credit, learner=by_gradient(config, policies, loss), memory=memory)


ENTRY = text_entry(
    summary="the policy gradient, with the batch's mean as the baseline",
    source="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=Reinforce,
    method=method,
    parts=Parts(credit=(KlInReward, batch_relative), loss=(reinforce,), weights=(sequence_sum,)),
    limitation="questions of unequal difficulty share one baseline, so the variance is large; one update per rollout.",
    presets=("reinforce",),
)
