"""MaxRL: maximum likelihood of being right, as far as N answers can tell (2026).

A = (R - mean of the group) / mean of the group, whose expected gradient is that of the first N - 1 terms of log p
(order "n": N terms, and groups without a right answer get -1); loss = GRPO's clipped surrogate, summed over an answer's
tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import max_rl
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import constant_length
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class MaxRlAlgorithm(ClipConfig):
    """How far the logarithm is followed."""

    order: Literal["n_minus_one", "n"] = "n_minus_one"
    """Terms of log p for N answers; the authors' main code runs N - 1."""


class MaxRlConfig(TextGradientRunConfig):
    """Maximum likelihood reinforcement learning."""

    requires = (require_groups,)
    algorithm: MaxRlAlgorithm = MaxRlAlgorithm()
    """Order, clip widths, penalties."""


def method(config: MaxRlConfig, policies: TextPolicies) -> TextMethod:
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    learner = gradient_learner(config, policies, clip_loss(config.algorithm, scheme))
    return TextMethod(credit=partial(max_rl, order=config.algorithm.order), learner=learner)


ENTRY = text_recipe_spec(
    summary="advantages divided by the group's mean: the likelihood of being right",
    paper="MaxRL, 2602.02710, 2026",
    config=MaxRlConfig,
    method=method,
    parts=RecipeParts(credit=(max_rl,), loss=(clipped_surrogate, kl_penalty), weights=(constant_length,)),
    limitation="scores must be 0 or above; one right answer of many gets an advantage of almost N.",
)
