"""GPG: the plain policy gradient, scaled up for the groups that say nothing (Chu et al., 2025).

A = alpha (R - mean of the group), alpha = answers / answers in groups with unequal scores; loss = -A log pi, every
token of the step alike. No ratio, no clip, no KL, no critic, no deviation.
"""

from functools import partial

from pydantic import Field

from hone.core.config import Config
from hone.credit.group import group_policy_gradient
from hone.objectives.policy import reinforce_loss
from hone.objectives.weights import token_mean
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


class GpgAlgorithm(Config):
    """The scale of advantages."""

    norm: float = Field(default=1.0, gt=0)
    """What centred scores are divided by."""


class GpgConfig(TextGradientRunConfig):
    """Group policy gradient."""

    requires = (require_groups, require_on_policy)
    algorithm: GpgAlgorithm = GpgAlgorithm()
    """Scale."""


def method(config: GpgConfig, policies: TextPolicies) -> TextMethod:
    loss = TokenLossSpec(objective=policy_gradient, scheme=token_mean, proportional_to_advantage=True)
    learner = gradient_learner(config, policies, loss)
    return TextMethod(credit=partial(group_policy_gradient, norm=config.algorithm.norm), learner=learner)


ENTRY = text_recipe_spec(
    summary="the plain policy gradient of groups, scaled up for those that say nothing",
    paper="Chu et al., GPG, 2025",
    config=GpgConfig,
    method=method,
    parts=RecipeParts(credit=(group_policy_gradient,), loss=(reinforce_loss,), weights=(token_mean,)),
    limitation="where few groups say something, alpha makes their gradient large; one update per rollout.",
)
