"""OPO: a baseline weighted by length, which has the least variance under on-policy training (Hao et al., 2025).

A = R - sum of L R / sum of L over the group, L the tokens of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. Exactly on-policy: one update per rollout, no ratio, no KL, no deviation.
"""

from hone.credit.group import length_baseline
from hone.objectives.policy import reinforce
from hone.objectives.weights import sequence_sum
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, one_update, text_entry


class Opo(TextRl):
    """On-policy optimisation with the optimal baseline."""

    requires = (groups, one_update)


def method(config: Opo, policies: Policies) -> Method:
    loss = Loss(objective=policy_gradient, scheme=sequence_sum, proportional=True)
    return Method(credit=length_baseline, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="exactly on-policy REINFORCE with a length-weighted baseline",
    source="Hao et al., On-Policy RL with Optimal Reward Baseline, 2025",
    config=Opo,
    method=method,
    parts=Parts(credit=(length_baseline,), loss=(reinforce,), weights=(sequence_sum,)),
    limitation="the baseline is optimal only where an answer's squared gradient grows with its length; one update per "
    "rollout.",
)
