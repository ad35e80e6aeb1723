"""MaxRL: maximum likelihood of being right, as far as N answers can tell (2026).

A = (R - mean of the group) / mean of the group, whose expected gradient is that of the first N - 1 terms of log p
(order "n": N terms, and groups without a right answer get -1); loss = GRPO's clipped surrogate, summed over an answer's
tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import max_rl
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import constant_length
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class MaxRlAlgorithm(Clip):
    """How far the logarithm is followed."""

    order: Literal["n_minus_one", "n"] = "n_minus_one"
    """Terms of log p for N answers; the authors' main code runs N - 1."""


class MaxRl(TextRl):
    """Maximum likelihood reinforcement learning."""

    requires = (groups,)
    algorithm: MaxRlAlgorithm = MaxRlAlgorithm()
    """Order, clip widths, penalties."""


def method(config: MaxRl, policies: Policies) -> Method:
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    learner = by_gradient(config, policies, clip_loss(config.algorithm, scheme))
    return Method(credit=partial(max_rl, order=config.algorithm.order), learner=learner)


ENTRY = text_entry(
    summary="advantages divided by the group's mean: the likelihood of being right",
    source="MaxRL, 2602.02710, 2026",
    config=MaxRl,
    method=method,
    parts=Parts(credit=(max_rl,), loss=(clipped, kl_penalty), weights=(constant_length,)),
    limitation="scores must be 0 or above; one right answer of many gets an advantage of almost N.",
)
