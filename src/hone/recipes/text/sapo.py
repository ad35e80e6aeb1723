"""SAPO: a smooth gate where others clip (soft adaptive policy optimisation, 2025).

A as in GRPO; loss = -A (4 / t) sigmoid(t (r - 1)), t by the sign of A, every answer alike. The gradient is the policy
gradient's at r = 1 and fades on both sides, faster for punished tokens.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import sapo
from hone.objectives.weights import sequence_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import PenaltyConfig, from_token_columns, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class SapoAlgorithm(PenaltyConfig):
    """How fast gradients fade."""

    positive_steepness: float = Field(default=1.0, gt=0)
    """Of the gate of praised tokens."""
    negative_steepness: float = Field(default=1.05, gt=0)
    """Of the gate of punished tokens."""


class SapoConfig(TextGradientRunConfig):
    """Soft adaptive policy optimisation."""

    requires = (require_groups,)
    algorithm: SapoAlgorithm = SapoAlgorithm()
    """Steepness and penalties."""


def method(config: SapoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    gate = partial(
        sapo, positive_steepness=chosen.positive_steepness, negative_steepness=chosen.negative_steepness
    )  # fmt: skip
    loss = with_penalties(
        TokenLossSpec(objective=from_token_columns(gate), scheme=sequence_mean, proportional_to_advantage=True), chosen
    )
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="a sigmoid gate around a ratio of 1 instead of a clip",
    paper="SAPO, 2511.20347, 2025",
    config=SapoConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(sapo, kl_penalty), weights=(sequence_mean,)),
    limitation="the loss's value is not comparable with PPO's (2 / t at a ratio of 1); gradients never quite end.",
    presets=("sapo",),
)
