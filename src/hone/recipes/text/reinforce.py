"""REINFORCE: what went better than the batch on average is made likelier (Williams, 1992).

A = R - mean score of the batch, the same for every token of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. `baseline = "none"` takes R itself.
"""

from functools import partial
from typing import Literal

from hone.core.config import Config
from hone.credit.group import batch_relative
from hone.credit.kl_reward import KlRewardCredit
from hone.credit.returns import discounted_returns
from hone.objectives.policy import reinforce_loss
from hone.objectives.weights import sequence_sum
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import FixedKlCoef, KlCoef, TextPolicies, with_kl_reward
from hone.train.text.rl_job import (
    TextGradientRunConfig,
    TextMethod,
    gradient_learner,
    require_on_policy,
    text_recipe_spec,
)


class ReinforceAlgorithm(Config):
    """The baseline, and the price of leaving the reference."""

    baseline: Literal["batch", "none"] = "batch"
    """What a score is compared with: the mean of the step's scores, or nothing."""
    kl_in_reward: KlCoef = FixedKlCoef()
    """Price of a nat of distance to the policy that the run started from, paid in the reward; off by default."""


class ReinforceConfig(TextGradientRunConfig):
    """The policy gradient."""

    requires = (require_on_policy,)
    algorithm: ReinforceAlgorithm = ReinforceAlgorithm()
    """Baseline and KL."""


def method(config: ReinforceConfig, policies: TextPolicies) -> TextMethod:
    batch = config.algorithm.baseline == "batch"
    judged = partial(batch_relative, scale="none") if batch else partial(discounted_returns, discount=1.0)
    credit, memory = with_kl_reward(judged, config.algorithm.kl_in_reward, policies)
    loss = TokenLossSpec(objective=policy_gradient, scheme=sequence_sum, proportional_to_advantage=True)
    return TextMethod(credit=credit, learner=gradient_learner(config, policies, loss), credit_state=memory)


ENTRY = text_recipe_spec(
    summary="the policy gradient, with the batch's mean as the baseline",
    paper="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=ReinforceConfig,
    method=method,
    parts=RecipeParts(credit=(KlRewardCredit, batch_relative), loss=(reinforce_loss,), weights=(sequence_sum,)),
    limitation="questions of unequal difficulty share one baseline, so the variance is large; one update per rollout.",
    presets=("reinforce",),
)
