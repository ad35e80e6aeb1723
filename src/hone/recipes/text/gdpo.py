"""GDPO: every reward function's scores are compared among themselves before they are added (2026).

A = z over the step of sum over functions of weight (R - mean of the group) / (std of the group + eps), the weights
those of `rewards.functions`; loss = GRPO's clipped surrogate, every token alike.
"""

from functools import partial

from hone.credit.components import gdpo
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class GdpoConfig(TextGradientRunConfig):
    """Group reward-decoupled normalisation policy optimisation."""

    requires = (require_groups,)
    algorithm: ClipConfig = ClipConfig()
    """Clip widths and penalties."""


def method(config: GdpoConfig, policies: TextPolicies) -> TextMethod:
    weights = [function.weight for function in config.rewards.functions]
    learner = gradient_learner(config, policies, clip_loss(config.algorithm, token_mean))
    return TextMethod(credit=partial(gdpo, weights=weights), learner=learner)


ENTRY = text_recipe_spec(
    summary="GRPO with each reward function normalised by itself",
    paper="GDPO, 2601.05242, 2026",
    config=GdpoConfig,
    method=method,
    parts=RecipeParts(credit=(gdpo,), loss=(clipped_surrogate, kl_penalty), weights=(token_mean,)),
    limitation="a reward that hardly differs within a group counts as much as one that does.",
)
