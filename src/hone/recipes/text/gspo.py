"""GSPO: one ratio per answer, the geometric mean of its tokens' (Zheng et al., 2025).

A as in GRPO; s = exp(mean over the answer of logp - logp then); loss = -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), every
answer alike. Noise of single tokens, as from expert routing, averages out.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.sequence import gspo
from hone.objectives.weights import sequence_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_sequences, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class GspoAlgorithm(Penalties):
    """Clip widths of a whole answer's ratio, hundreds of times narrower than a token's."""

    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """An answer's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = Field(default=4e-4, gt=0)
    """An answer's ratio is clipped above 1 + clip_high where its advantage is positive."""


class Gspo(TextRl):
    """Group sequence policy optimisation."""

    requires = (groups,)
    algorithm: GspoAlgorithm = GspoAlgorithm()
    """Clip widths and penalties."""


def method(config: Gspo, policies: Policies) -> Method:
    chosen = config.algorithm
    objective = on_sequences(partial(gspo, low=chosen.clip_low, high=chosen.clip_high))
    loss = penalised(Loss(objective=objective, scheme=sequence_mean, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="one clipped ratio per answer: the geometric mean of its tokens'",
    source="Zheng et al., Group Sequence Policy Optimization, 2025",
    config=Gspo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(gspo, kl_penalty), weights=(sequence_mean,)),
    limitation="no credit within an answer; widths of token ratios (0.2) switch its clip off.",
    presets=("gspo",),
)
