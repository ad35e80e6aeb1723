"""GPG: the plain policy gradient, scaled up for the groups that say nothing (Chu et al., 2025).

A = alpha (R - mean of the group), alpha = answers / answers in groups with unequal scores; loss = -A log pi, every
token of the step alike. No ratio, no clip, no KL, no critic, no deviation.
"""

from functools import partial

from pydantic import Field

from hone.core.config import Config
from hone.credit.group import group_policy_gradient
from hone.objectives.policy import reinforce
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, one_update, text_entry


class GpgAlgorithm(Config):
    """The scale of advantages."""

    norm: float = Field(default=1.0, gt=0)
    """What centred scores are divided by."""


class Gpg(TextRl):
    """Group policy gradient."""

    requires = (groups, one_update)
    algorithm: GpgAlgorithm = GpgAlgorithm()
    """Scale."""


def method(config: Gpg, policies: Policies) -> Method:
    loss = Loss(objective=policy_gradient, scheme=token_mean, proportional=True)
    learner = by_gradient(config, policies, loss)
    return Method(credit=partial(group_policy_gradient, norm=config.algorithm.norm), learner=learner)


ENTRY = text_entry(
    summary="the plain policy gradient of groups, scaled up for those that say nothing",
    source="Chu et al., GPG, 2025",
    config=Gpg,
    method=method,
    parts=Parts(credit=(group_policy_gradient,), loss=(reinforce,), weights=(token_mean,)),
    limitation="where few groups say something, alpha makes their gradient large; one update per rollout.",
)
