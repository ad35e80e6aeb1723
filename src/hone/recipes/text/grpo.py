"""GRPO: answers to one question judge each other (Shao et al., "DeepSeekMath", 2024).

A = (R - mean of the group) / (std of the group + eps), the same for every token of an answer;
loss = sum over tokens of weight * [-min(r A, clip(r, 1 - low, 1 + high) A) + kl * KL(policy || reference)],
with r = exp(logp - logp of whoever acted). No critic. `clip_high` above `clip_low` is DAPO's "clip higher" (2025).
"""

from functools import partial

from hone.credit.group import Scale, group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Aggregation, Method, TextRl, by_gradient, groups, scheme_of, text_entry


class GrpoAlgorithm(Clip):
    """The numbers of the paper, and where later ones changed them."""

    scale: Scale = "group"
    """What centred scores are divided by: the group's standard deviation, the batch's, or nothing."""
    aggregation: Aggregation = "token_mean"
    """Weight of a token in the loss."""


class Grpo(TextRl):
    """Group-relative policy optimisation."""

    requires = (groups,)
    algorithm: GrpoAlgorithm = GrpoAlgorithm()
    """Clip widths, scaling, KL."""


def method(config: Grpo, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = clip_loss(chosen, scheme_of(chosen.aggregation, config.rollout.max_tokens))
    learner = by_gradient(config, policies, loss)
    return Method(credit=partial(group_relative, scale=chosen.scale), learner=learner)


ENTRY = text_entry(
    summary="group-relative policy optimisation: answers to one question judge each other",
    source="Shao et al., DeepSeekMath, 2024",
    config=Grpo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(clipped, kl_penalty), weights=(token_mean,)),
    limitation="dividing by the group's deviation weighs very easy and very hard questions up; groups of equal scores "
    "teach nothing; entropy falls where clip_high is not above clip_low.",
    presets=("grpo", "kl"),
)
