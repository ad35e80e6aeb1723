"""OPO: a baseline weighted by length, which has the least variance under on-policy training (Hao et al., 2025).

A = R - sum of L R / sum of L over the group, L the tokens of an answer; loss = -A log pi, summed over an answer's
tokens, averaged over answers. Exactly on-policy: one update per rollout, no ratio, no KL, no deviation.
"""

from hone.credit.group import length_baseline
from hone.objectives.policy import reinforce_loss
from hone.objectives.weights import sequence_sum
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import (
    TextGradientRunConfig,
    TextMethod,
    gradient_learner,
    require_groups,
    require_on_policy,
    text_recipe_spec,
)


class OpoConfig(TextGradientRunConfig):
    """On-policy optimisation with the optimal baseline."""

    requires = (require_groups, require_on_policy)


def method(config: OpoConfig, policies: TextPolicies) -> TextMethod:
    loss = TokenLossSpec(objective=policy_gradient, scheme=sequence_sum, proportional_to_advantage=True)
    return TextMethod(credit=length_baseline, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="exactly on-policy REINFORCE with a length-weighted baseline",
    paper="Hao et al., On-Policy RL with Optimal Reward Baseline, 2025",
    config=OpoConfig,
    method=method,
    parts=RecipeParts(credit=(length_baseline,), loss=(reinforce_loss,), weights=(sequence_sum,)),
    limitation="the baseline is optimal only where an answer's squared gradient grows with its length; one update per "
    "rollout.",
)
