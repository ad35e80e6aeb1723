"""VESPO: answers weighed by a gamma-shaped kernel of their sequence ratio (2026).

A as in GRPO; loss = -sg[phi(w)] A log pi, phi(w) = w^k exp(l (1 - w)), w the product of the answer's ratios, every
token alike. phi is 1 at w = 1 and fades on both sides; (k, l) is (2, 3) where A >= 0 and (3, 2) elsewhere.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.sequence import vespo
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_sequences, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class VespoAlgorithm(Penalties):
    """The kernel's shape."""

    positive_power: float = Field(default=2.0, gt=0)
    """k of praised answers."""
    positive_rate: float = Field(default=3.0, gt=0)
    """l of praised answers."""
    negative_power: float = Field(default=3.0, gt=0)
    """k of punished answers."""
    negative_rate: float = Field(default=2.0, gt=0)
    """l of punished answers."""


class Vespo(TextRl):
    """Variational sequence-level soft policy optimisation."""

    requires = (groups,)
    algorithm: VespoAlgorithm = VespoAlgorithm()
    """Kernel and penalties."""


def method(config: Vespo, policies: Policies) -> Method:
    chosen = config.algorithm
    positive = (chosen.positive_power, chosen.positive_rate)
    negative = (chosen.negative_power, chosen.negative_rate)
    objective = on_sequences(partial(vespo, positive=positive, negative=negative))
    loss = penalised(Loss(objective=objective, scheme=token_mean, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="a smooth kernel of the sequence ratio instead of a clip",
    source="VESPO, 2602.10693, 2026",
    config=Vespo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(vespo, kl_penalty), weights=(token_mean,)),
    limitation="the product of ratios of a long answer is soon far from 1, and then the answer teaches almost nothing.",
    presets=("vespo",),
)
