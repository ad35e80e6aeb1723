"""GMPO: the geometric mean of an answer's clipped token ratios (geometric-mean policy optimisation, 2025).

A as in GRPO; loss = -A exp(mean over the answer of d), d = min(log r, log_high) where A > 0 and max(log r, -log_low)
where A < 0, every answer alike. Widths are in nats: 0.4 are ratios of 0.67 and 1.49.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.sequence import gmpo
from hone.objectives.weights import sequence_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_sequences, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class GmpoAlgorithm(Penalties):
    """Clip widths in nats."""

    log_low: float = Field(default=0.4, gt=0)
    """How far the log-probability of a punished token may fall before its gradient stops, nats."""
    log_high: float = Field(default=0.4, gt=0)
    """How far that of a praised one may rise, nats."""


class Gmpo(TextRl):
    """Geometric-mean policy optimisation."""

    requires = (groups,)
    algorithm: GmpoAlgorithm = GmpoAlgorithm()
    """Clip widths and penalties."""


def method(config: Gmpo, policies: Policies) -> Method:
    chosen = config.algorithm
    objective = on_sequences(partial(gmpo, log_low=chosen.log_low, log_high=chosen.log_high))
    loss = penalised(Loss(objective=objective, scheme=sequence_mean, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="the geometric mean of an answer's clipped token ratios",
    source="GMPO, 2507.20673, 2025",
    config=Gmpo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(gmpo, kl_penalty), weights=(sequence_mean,)),
    limitation="no credit within an answer: one factor for all of its tokens.",
    presets=("gmpo",),
)
