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
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import from_token_columns
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class DroAlgorithm(Config):
    """How strongly the policy is held."""

    beta: float = Field(gt=0)
    """Weight of the squared log-ratio, 1 / nat. There is no published default for advantages of tokens."""


class DroConfig(TextGradientRunConfig):
    """Direct reward optimisation."""

    requires = (require_groups,)
    algorithm: DroAlgorithm
    """How strongly the policy is held."""


def method(config: DroConfig, policies: TextPolicies) -> TextMethod:
    objective = from_token_columns(partial(dro, beta=config.algorithm.beta))
    loss = TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=False)
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="off-policy without a ratio: a squared log-ratio holds the policy back",
    paper="Richemond et al., Offline Regularised RL for LLMs Alignment, 2024",
    config=DroConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(dro,), weights=(token_mean,)),
    limitation="beta must be found per task; the group's mean stands in for the paper's value network, as in verl.",
    presets=("dro",),
)
