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
from hone.objectives.selection import clip_cov_dropped, clip_stopped
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, Whole
from hone.train.text.loss_adapters import Clip, on_selected, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class ClipCovAlgorithm(Clip):
    """Which tokens are left out."""

    share: float = Field(default=2e-4, gt=0, le=1)
    """Of a step's tokens; at least one."""
    above: float = 1.0
    """Least covariance of a token that may be left out."""
    below: float = 5.0
    """Largest covariance of a token that may be left out."""


class ClipCov(TextRl):
    """GRPO without the tokens that make entropy fall."""

    requires = (groups,)
    algorithm: ClipCovAlgorithm = ClipCovAlgorithm()
    """Clip widths, tokens that are left out, penalties."""


def dropped(whole: Whole, *, chosen: ClipCovAlgorithm, seed: int) -> NDArray[np.floating]:
    stopped = clip_stopped(whole.now, whole.then, whole.advantage, low=chosen.clip_low, high=chosen.clip_high)
    uniform = generator(seed, "clip_cov", whole.update).random(len(whole.now))
    mask = clip_cov_dropped(
        whole.now, whole.advantage, stopped, uniform, share=chosen.share, above=chosen.above, below=chosen.below
    )
    return mask.astype(np.float64)


def method(config: ClipCov, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = Loss(
        objective=on_selected(partial(clip_cov, low=chosen.clip_low, high=chosen.clip_high)),
        scheme=token_mean,
        proportional=False,
        select=partial(dropped, chosen=chosen, seed=config.seed),
    )
    return Method(credit=group_relative, learner=by_gradient(config, policies, penalised(loss, chosen)))


ENTRY = text_entry(
    summary="GRPO; a few tokens of large covariance get no gradient, which keeps entropy up",
    source="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=ClipCov,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(clip_cov, clip_cov_dropped, kl_penalty), weights=(token_mean,)),
    limitation="bounds and share are in the scale of one task's covariances; one more forward pass per update.",
    presets=("clip_cov",),
)
