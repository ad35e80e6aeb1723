"""PKPO: the gradient of the expected maximum of k scores, without bias (Walder & Karkhanis, 2025).

A = N times the answer's share in the maximum over all subsets of k that hold it, less a baseline that does not depend
on the answer; loss = GRPO's clipped surrogate, summed over an answer's tokens, averaged over answers, over
`max_tokens`.
"""

from functools import partial
from typing import Literal

from pydantic import Field

from hone.credit.passk import pkpo
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import constant_length
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class PkpoAlgorithm(ClipConfig):
    """How many attempts count."""

    k: int = Field(ge=1)
    """Answers of which the best counts; `minus_one` needs at least 2."""
    baseline: Literal["minus_one", "leave_one_out"] = "minus_one"
    """What is taken off: the maximum of a subset without the answer, or the mean maximum of the others."""


def require_k_answers(config: "PkpoConfig") -> None:
    chosen, samples = config.algorithm, config.rollout.samples_per_prompt
    if chosen.baseline == "minus_one" and chosen.k < 2:
        raise ValueError('algorithm.k = 1 with algorithm.baseline = "minus_one": nothing is left without the answer')
    least = chosen.k if chosen.baseline == "minus_one" else chosen.k + 1
    if samples < least:
        raise ValueError(
            f"rollout.samples_per_prompt = {samples}: algorithm.k = {chosen.k} with algorithm.baseline = "
            f'"{chosen.baseline}" needs at least {least}'
        )


class PkpoConfig(TextGradientRunConfig):
    """Pass@k policy optimisation."""

    requires = (require_groups, require_k_answers)
    algorithm: PkpoAlgorithm
    """Attempts, baseline, clip widths, penalties."""


def method(config: PkpoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    learner = gradient_learner(config, policies, clip_loss(chosen, scheme))
    return TextMethod(credit=partial(pkpo, k=chosen.k, baseline=chosen.baseline), learner=learner)


ENTRY = text_recipe_spec(
    summary="unbiased gradient of the expected maximum of k scores of any kind",
    paper="Walder & Karkhanis, Pass@K Policy Optimization, 2025",
    config=PkpoConfig,
    method=method,
    parts=RecipeParts(credit=(pkpo,), loss=(clipped_surrogate, kl_penalty), weights=(constant_length,)),
    limitation="the variance grows with k: take a small one, or one that falls along the run.",
)
