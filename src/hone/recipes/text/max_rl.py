"""MaxRL: maximum likelihood of being right, as far as N answers can tell (2026).

A = (R - mean of the group) / mean of the group, whose expected gradient is that of the first N - 1 terms of log p
(order "n": N terms, and groups without a right answer get -1); loss = GRPO's clipped surrogate, summed over an answer's
tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import max_rl
from hone.objectives.weights import constant_length
from hone.train.text import recipe


class MaxRlAlgorithm(recipe.ClipConfig):
    """Order of the maximum-likelihood expansion, clip widths and penalties."""

    order: Literal["n_minus_one", "n"] = "n_minus_one"
    """Terms of log p for N answers; the authors' main code runs N - 1."""


class MaxRlConfig(recipe.GroupRunConfig):
    """Maximum likelihood reinforcement learning."""

    algorithm: MaxRlAlgorithm = MaxRlAlgorithm()
    """Order, clip widths, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        scheme = partial(constant_length, length=self.rollout.max_tokens)
        learner = recipe.gradient_learner(self, policies, recipe.clip_loss(self.algorithm, scheme))
        return recipe.TextMethod(credit=partial(max_rl, order=self.algorithm.order), learner=learner)


ENTRY = recipe.text_recipe_spec(
    summary="advantages divided by the group's mean: the likelihood of being right",
    paper="MaxRL, 2602.02710, 2026",
    config=MaxRlConfig,
    limitation="scores must be 0 or above; one right answer of many gets an advantage of almost N.",
)
