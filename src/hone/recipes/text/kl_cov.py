"""KL-Cov: the few tokens that make entropy fall are held back (Cui et al., "The Entropy Mechanism", 2025).

A as in GRPO; loss = -r A, plus penalty |log r| at the tokens of the largest (A - mean A)(log pi - mean log pi) over the
step, every token alike. No ratio is clipped.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.credit.group import group_relative
from hone.objectives.covariance import kl_cov
from hone.objectives.selection import kl_cov_chosen
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, Whole
from hone.train.text.loss_adapters import on_selected
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class KlCovAlgorithm(Config):
    """Which tokens are held back, and how strongly."""

    share: float = Field(default=2e-4, gt=0, le=1)
    """Of a step's tokens; at least one."""
    penalty: float = Field(default=1.0, ge=0)
    """Weight of |log r| at these tokens."""


class KlCov(TextRl):
    """GRPO that holds back the tokens that make entropy fall."""

    requires = (groups,)
    algorithm: KlCovAlgorithm = KlCovAlgorithm()
    """Tokens that are held back."""


def largest(whole: Whole, *, share: float) -> NDArray[np.floating]:
    return kl_cov_chosen(whole.now, whole.advantage, share=share).astype(np.float64)


def method(config: KlCov, policies: Policies) -> Method:
    loss = Loss(
        objective=on_selected(partial(kl_cov, penalty=config.algorithm.penalty)),
        scheme=token_mean,
        proportional=False,
        select=partial(largest, share=config.algorithm.share),
    )
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="GRPO; a few tokens of large covariance are penalised, which keeps entropy up",
    source="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=KlCov,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(kl_cov, kl_cov_chosen), weights=(token_mean,)),
    limitation="no clip on all other tokens; without several updates per rollout the penalty has no slope.",
    presets=("kl_cov",),
)
