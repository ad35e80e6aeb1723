"""ReMax: each answer is compared with the policy's own greedy answer to the same question (Li et al., 2023).

A = R - score of the greedy answer; loss = -A log pi, summed over an answer's tokens, averaged over answers. Every
prompt is answered once more, greedily; that answer is scored, and not learned from.
"""

from hone.core.config import Config
from hone.credit.kl_reward import KlRewardCredit
from hone.credit.reinforce import remax
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


class RemaxAlgorithm(Config):
    """The price of leaving the reference."""

    kl_in_reward: KlCoef = FixedKlCoef()
    """Price of a nat of distance to the policy that the run started from, paid in the reward; off by default."""


class RemaxConfig(TextGradientRunConfig):
    """REINFORCE with a greedy baseline."""

    requires = (require_on_policy,)
    algorithm: RemaxAlgorithm = RemaxAlgorithm()
    """KL."""


def method(config: RemaxConfig, policies: TextPolicies) -> TextMethod:
    credit, memory = with_kl_reward(remax, config.algorithm.kl_in_reward, policies)
    loss = TokenLossSpec(objective=policy_gradient, scheme=sequence_sum, proportional_to_advantage=True)
    return TextMethod(
        credit=credit, learner=gradient_learner(config, policies, loss), greedy_baseline=True, credit_state=memory
    )


ENTRY = text_recipe_spec(
    summary="REINFORCE with the score of a greedy answer as the baseline",
    paper="Li et al., ReMax, 2023",
    config=RemaxConfig,
    method=method,
    parts=RecipeParts(
        source="Live(text task, engine), with a greedy answer to each question",
        credit=(KlRewardCredit, remax),
        loss=(reinforce_loss,),
        weights=(sequence_sum,),
    ),
    limitation="one more answer per question; the baseline is not the one of least variance, least of all for long "
    "answers; one update per rollout.",
)
