"""Dr.GRPO: GRPO without its two biases, of length and of difficulty (Liu et al., 2025).

A = R - mean of the group; loss = (1 / answers) sum over answers of (1 / C) sum over tokens of
-min(r A, clip(r, 1 - low, 1 + high) A), C = `rollout.max_tokens` whatever an answer's length.
"""

from functools import partial

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import constant_length
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class DrGrpo(TextRl):
    """GRPO done right."""

    requires = (groups,)
    algorithm: Clip = Clip()
    """Clip widths and penalties."""


def method(config: DrGrpo, policies: Policies) -> Method:
    chosen = config.algorithm
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    loss = clip_loss(chosen, scheme)
    return Method(credit=partial(group_relative, scale="none"), learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="GRPO without division by the deviation or by an answer's length",
    source="Liu et al., Understanding R1-Zero-Like Training, 2025",
    config=DrGrpo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(clipped, kl_penalty), weights=(constant_length,)),
    limitation="short answers make small gradients: the constant is the longest that there may be.",
    presets=("dr_grpo",),
)
