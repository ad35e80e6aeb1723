"""DRO: off-policy without a ratio, held back by a squared log-ratio (Richemond et al., 2024).

A as in GRPO; loss = -(A log pi - beta / 2 (log pi - log pi then)^2), every token alike. Nothing can explode, however
old the answers; answers without an advantage are pulled back to where they came from.
"""

from functools import partial

from pydantic import Field

from hone.core.config import Config
from hone.credit.group import group_relative
from hone.objectives.policy import dro
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import on_tokens
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class DroAlgorithm(Config):
    """How strongly the policy is held."""

    beta: float = Field(gt=0)
    """Weight of the squared log-ratio, 1 / nat. There is no published default for advantages of tokens."""


class Dro(TextRl):
    """Direct reward optimisation."""

    requires = (groups,)
    algorithm: DroAlgorithm
    """How strongly the policy is held."""


def method(config: Dro, policies: Policies) -> Method:
    objective = on_tokens(partial(dro, beta=config.algorithm.beta))
    loss = Loss(objective=objective, scheme=token_mean, proportional=False)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="off-policy without a ratio: a squared log-ratio holds the policy back",
    source="Richemond et al., Offline Regularised RL for LLMs Alignment, 2024",
    config=Dro,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(dro,), weights=(token_mean,)),
    limitation="beta must be found per task; the group's mean stands in for the paper's value network, as in verl.",
    presets=("dro",),
)
