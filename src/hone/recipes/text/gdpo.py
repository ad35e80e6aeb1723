"""GDPO: every reward function's scores are compared among themselves before they are added (2026).

A = z over the step of sum over functions of weight (R - mean of the group) / (std of the group + eps), the weights
those of `rewards.functions`; loss = GRPO's clipped surrogate, every token alike.
"""

from functools import partial

from hone.credit.components import gdpo
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class Gdpo(TextRl):
    """Group reward-decoupled normalisation policy optimisation."""

    requires = (groups,)
    algorithm: Clip = Clip()
    """Clip widths and penalties."""


def method(config: Gdpo, policies: Policies) -> Method:
    weights = [function.weight for function in config.rewards.functions]
    learner = by_gradient(config, policies, clip_loss(config.algorithm, token_mean))
    return Method(credit=partial(gdpo, weights=weights), learner=learner)


ENTRY = text_entry(
    summary="GRPO with each reward function normalised by itself",
    source="GDPO, 2601.05242, 2026",
    config=Gdpo,
    method=method,
    parts=Parts(credit=(gdpo,), loss=(clipped, kl_penalty), weights=(token_mean,)),
    limitation="a reward that hardly differs within a group counts as much as one that does.",
)
