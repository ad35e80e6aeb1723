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
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_tokens, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class SapoAlgorithm(Penalties):
    """How fast gradients fade."""

    positive_steepness: float = Field(default=1.0, gt=0)
    """Of the gate of praised tokens."""
    negative_steepness: float = Field(default=1.05, gt=0)
    """Of the gate of punished tokens."""


class Sapo(TextRl):
    """Soft adaptive policy optimisation."""

    requires = (groups,)
    algorithm: SapoAlgorithm = SapoAlgorithm()
    """Steepness and penalties."""


def method(config: Sapo, policies: Policies) -> Method:
    chosen = config.algorithm
    gate = partial(
        sapo, positive_steepness=chosen.positive_steepness, negative_steepness=chosen.negative_steepness
    )  # fmt: skip
    loss = penalised(Loss(objective=on_tokens(gate), scheme=sequence_mean, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="a sigmoid gate around a ratio of 1 instead of a clip",
    source="SAPO, 2511.20347, 2025",
    config=Sapo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(sapo, kl_penalty), weights=(sequence_mean,)),
    limitation="the loss's value is not comparable with PPO's (2 / t at a ratio of 1); gradients never quite end.",
    presets=("sapo",),
)
