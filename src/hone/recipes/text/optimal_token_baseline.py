"""REINFORCE with the optimal token baseline: at each position the baseline of least variance (as in verl).

A_t = G_t - B_t, B_t = sum of G W / sum of W over the group's answers that reach position t, W the squared gradient of
log pi with respect to the logits, summed up to t: 1 - 2 pi + sum over the vocabulary of pi^2; loss = -A log pi, summed
over an answer's tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial

from hone.credit.reinforce import optimal_token_baseline
from hone.objectives.policy import reinforce_loss
from hone.objectives.weights import constant_length
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import (
    TextGradientRunConfig,
    TextMethod,
    gradient_learner,
    require_full_distribution,
    require_groups,
    require_on_policy,
    text_recipe_spec,
)


class OptimalTokenBaselineConfig(TextGradientRunConfig):
    """REINFORCE with the optimal token baseline."""

    requires = (require_groups, require_on_policy, require_full_distribution)


def method(config: OptimalTokenBaselineConfig, policies: TextPolicies) -> TextMethod:
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    loss = TokenLossSpec(objective=policy_gradient, scheme=scheme, proportional_to_advantage=True)
    credit = partial(optimal_token_baseline, collision=policies.collision_probability())
    return TextMethod(credit=credit, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="REINFORCE with a baseline of least variance at each position of an answer",
    paper="optimal token baseline, as in verl, 2026",
    config=OptimalTokenBaselineConfig,
    method=method,
    parts=RecipeParts(credit=(optimal_token_baseline,), loss=(reinforce_loss,), weights=(constant_length,)),
    limitation="beyond the length of all other answers nothing is learned; one more forward pass over the whole "
    "vocabulary; one update per rollout.",
)
