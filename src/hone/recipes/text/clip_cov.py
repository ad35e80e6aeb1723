"""Clip-Cov: the few tokens that make entropy fall get no gradient (Cui et al., "The Entropy Mechanism", 2025).

GRPO's clipped loss, 0 at a few tokens: of those whose (A - mean A)(log pi - mean log pi) over the step lies between
`above` and `below` and that the clip has not stopped, a share of all tokens is drawn.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.random import generator
from hone.credit.group import group_relative
from hone.objectives.covariance import clip_cov
from hone.objectives.kl import kl_penalty
from hone.objectives.selection import clip_cov_mask, clipped_mask
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import StepColumns, TokenLossSpec
from hone.train.text.loss_adapters import ClipConfig, from_selected_columns, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class ClipCovAlgorithm(ClipConfig):
    """Which tokens are left out."""

    share: float = Field(default=2e-4, gt=0, le=1)
    """Of a step's tokens; at least one."""
    above: float = 1.0
    """Least covariance of a token that may be left out."""
    below: float = 5.0
    """Largest covariance of a token that may be left out."""


class ClipCovConfig(TextGradientRunConfig):
    """GRPO without the tokens that make entropy fall."""

    requires = (require_groups,)
    algorithm: ClipCovAlgorithm = ClipCovAlgorithm()
    """Clip widths, tokens that are left out, penalties."""


def drop_high_covariance(columns: StepColumns, *, chosen: ClipCovAlgorithm, seed: int) -> NDArray[np.floating]:
    stopped = clipped_mask(
        columns.logp, columns.denominator_logp, columns.advantage, low=chosen.clip_low, high=chosen.clip_high
    )
    uniform = generator(seed, "clip_cov", columns.update).random(len(columns.logp))
    mask = clip_cov_mask(
        columns.logp,
        columns.advantage,
        stopped,
        uniform,
        fraction=chosen.share,
        min_covariance=chosen.above,
        max_covariance=chosen.below,
    )
    return mask.astype(np.float64)


def method(config: ClipCovConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = TokenLossSpec(
        objective=from_selected_columns(partial(clip_cov, low=chosen.clip_low, high=chosen.clip_high)),
        scheme=token_mean,
        proportional_to_advantage=False,
        select_tokens=partial(drop_high_covariance, chosen=chosen, seed=config.seed),
    )
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, with_penalties(loss, chosen)))


ENTRY = text_recipe_spec(
    summary="GRPO; a few tokens of large covariance get no gradient, which keeps entropy up",
    paper="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=ClipCovConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(clip_cov, clip_cov_mask, kl_penalty), weights=(token_mean,)),
    limitation="bounds and share are in the scale of one task's covariances; one more forward pass per update.",
    presets=("clip_cov",),
)
