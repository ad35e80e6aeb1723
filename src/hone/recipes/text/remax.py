"""ReMax: each answer is compared with the policy's own greedy answer to the same question (Li et al., 2023).

A = R - score of the greedy answer; loss = -A log pi, summed over an answer's tokens, averaged over answers. Every
prompt is answered once more, greedily; that answer is scored, and not learned from.
"""

from hone.core.config import Config
from hone.credit.kl_reward import KlInReward
from hone.credit.reinforce import remax
from hone.objectives.policy import reinforce
from hone.objectives.weights import sequence_sum
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import FixedPrice, Policies, Price, priced
from hone.train.text.rl_job import Method, TextRl, by_gradient, one_update, text_entry


class RemaxAlgorithm(Config):
    """The price of leaving the reference."""

    kl_in_reward: Price = FixedPrice()
    """Price of a nat of distance to the policy that the run started from, paid in the reward; off by default."""


class Remax(TextRl):
    """REINFORCE with a greedy baseline."""

    requires = (one_update,)
    algorithm: RemaxAlgorithm = RemaxAlgorithm()
    """KL."""


def method(config: Remax, policies: Policies) -> Method:
    credit, memory = priced(remax, config.algorithm.kl_in_reward, policies)
    loss = Loss(objective=policy_gradient, scheme=sequence_sum, proportional=True)
    return Method(credit=credit, learner=by_gradient(config, policies, loss), baseline=True, memory=memory)


ENTRY = text_entry(
    summary="REINFORCE with the score of a greedy answer as the baseline",
    source="Li et al., ReMax, 2023",
    config=Remax,
    method=method,
    parts=Parts(
        source="Live(text task, engine), with a greedy answer to each question",
        credit=(KlInReward, remax),
        loss=(reinforce,),
        weights=(sequence_sum,),
    ),
    limitation="one more answer per question; the baseline is not the one of least variance, least of all for long "
    "answers; one update per rollout.",
)
