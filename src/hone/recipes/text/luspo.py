"""LUSPO: GSPO whose answers count by their length, which undoes its preference for short ones (2026).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - low, 1 + high) A), summed
over an answer's tokens, averaged over answers.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.sequence import luspo
from hone.objectives.weights import sequence_sum
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_sequences, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class LuspoAlgorithm(Penalties):
    """Clip widths of a whole answer's ratio."""

    clip_low: float = Field(default=2e-3, gt=0, lt=1)
    """An answer's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = Field(default=2.5e-3, gt=0)
    """An answer's ratio is clipped above 1 + clip_high where its advantage is positive."""


class Luspo(TextRl):
    """Length-unbiased sequence policy optimisation."""

    requires = (groups,)
    algorithm: LuspoAlgorithm = LuspoAlgorithm()
    """Clip widths and penalties."""


def method(config: Luspo, policies: Policies) -> Method:
    chosen = config.algorithm
    objective = on_sequences(partial(luspo, low=chosen.clip_low, high=chosen.clip_high))
    loss = penalised(Loss(objective=objective, scheme=sequence_sum, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="sequence ratios, with answers counted by their length",
    source="LUSPO, 2602.05261, 2026",
    config=Luspo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(luspo, kl_penalty), weights=(sequence_sum,)),
    limitation="the gradient grows with length: a learning rate of GSPO is too large; one ratio for all tokens.",
    presets=("luspo",),
)
