"""RLOO: each answer is compared with the mean of the others (Ahmadian et al., "Back to Basics", 2024).

A_i = R_i - mean of the other answers' scores, where R holds the distance to the reference, R - weight * sum of k1;
loss = -A log pi, summed over an answer's tokens, averaged over answers. The weight is TRL's default, 0.05.
"""

from hone.core.config import Config
from hone.credit.group import leave_one_out
from hone.credit.kl_reward import KlRewardCredit
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
    require_groups,
    require_on_policy,
    text_recipe_spec,
)


class RlooAlgorithm(Config):
    """The price of leaving the reference."""

    kl_in_reward: KlCoef = FixedKlCoef(weight=0.05)
    """Price of a nat of distance to the policy that the run started from, paid in the reward."""


class RlooConfig(TextGradientRunConfig):
    """REINFORCE with a leave-one-out baseline."""

    requires = (require_groups, require_on_policy)
    algorithm: RlooAlgorithm = RlooAlgorithm()
    """KL."""


def method(config: RlooConfig, policies: TextPolicies) -> TextMethod:
    credit, memory = with_kl_reward(leave_one_out, config.algorithm.kl_in_reward, policies)
    loss = TokenLossSpec(objective=policy_gradient, scheme=sequence_sum, proportional_to_advantage=True)
    return TextMethod(credit=credit, learner=gradient_learner(config, policies, loss), credit_state=memory)


ENTRY = text_recipe_spec(
    summary="REINFORCE with the mean of the other answers as the baseline",
    paper="Ahmadian et al., Back to Basics, 2024",
    config=RlooConfig,
    method=method,
    parts=RecipeParts(credit=(KlRewardCredit, leave_one_out), loss=(reinforce_loss,), weights=(sequence_sum,)),
    limitation="one update per rollout; TRL's form with a clipped ratio of whole answers is another loss.",
)
