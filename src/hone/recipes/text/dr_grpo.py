"""Dr.GRPO: GRPO without its two biases, of length and of difficulty (Liu et al., 2025).

A = R - mean of the group; loss = (1 / answers) sum over answers of (1 / C) sum over tokens of
-min(r A, clip(r, 1 - low, 1 + high) A), C = `rollout.max_tokens` whatever an answer's length.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import constant_length
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class DrGrpoConfig(TextGradientRunConfig):
    """GRPO done right."""

    requires = (require_groups,)
    algorithm: ClipConfig = ClipConfig()
    """Clip widths and penalties."""


def method(config: DrGrpoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    loss = clip_loss(chosen, scheme)
    return TextMethod(credit=partial(group_relative, scale="none"), learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="GRPO without division by the deviation or by an answer's length",
    paper="Liu et al., Understanding R1-Zero-Like Training, 2025",
    config=DrGrpoConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(clipped_surrogate, kl_penalty), weights=(constant_length,)),
    limitation="short answers make small gradients: the constant is the longest that there may be.",
    presets=("dr_grpo",),
)
