"""GRPO: answers to one question judge each other (Shao et al., "DeepSeekMath", 2024).

A = (R - mean of the group) / (std of the group + eps), the same for every token of an answer;
loss = sum over tokens of weight * [-min(r A, clip(r, 1 - low, 1 + high) A) + kl * KL(policy || reference)],
with r = exp(logp - logp of whoever acted). No critic. `clip_high` above `clip_low` is DAPO's "clip higher" (2025).
"""

from functools import partial

from hone.credit.group import Scale, group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import (
    Aggregation,
    TextGradientRunConfig,
    TextMethod,
    aggregation_scheme,
    gradient_learner,
    require_groups,
    text_recipe_spec,
)


class GrpoAlgorithm(ClipConfig):
    """The numbers of the paper, and where later ones changed them."""

    scale: Scale = "group"
    """What centred scores are divided by: the group's standard deviation, the batch's, or nothing."""
    aggregation: Aggregation = "token_mean"
    """Weight of a token in the loss."""


class GrpoConfig(TextGradientRunConfig):
    """Group-relative policy optimisation."""

    requires = (require_groups,)
    algorithm: GrpoAlgorithm = GrpoAlgorithm()
    """Clip widths, scaling, KL."""


def method(config: GrpoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = clip_loss(chosen, aggregation_scheme(chosen.aggregation, config.rollout.max_tokens))
    learner = gradient_learner(config, policies, loss)
    return TextMethod(credit=partial(group_relative, scale=chosen.scale), learner=learner)


ENTRY = text_recipe_spec(
    summary="group-relative policy optimisation: answers to one question judge each other",
    paper="Shao et al., DeepSeekMath, 2024",
    config=GrpoConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(clipped_surrogate, kl_penalty), weights=(token_mean,)),
    limitation="dividing by the group's deviation weighs very easy and very hard questions up; groups of equal scores "
    "teach nothing; entropy falls where clip_high is not above clip_low.",
    presets=("grpo", "kl"),
)
