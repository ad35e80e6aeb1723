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
from hone.objectives.selection import kl_cov_mask
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import StepColumns, TokenLossSpec
from hone.train.text.loss_adapters import from_selected_columns
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class KlCovAlgorithm(Config):
    """Which tokens are held back, and how strongly."""

    share: float = Field(default=2e-4, gt=0, le=1)
    """Of a step's tokens; at least one."""
    penalty: float = Field(default=1.0, ge=0)
    """Weight of |log r| at these tokens."""


class KlCovConfig(TextGradientRunConfig):
    """GRPO that holds back the tokens that make entropy fall."""

    requires = (require_groups,)
    algorithm: KlCovAlgorithm = KlCovAlgorithm()
    """Tokens that are held back."""


def select_high_covariance(columns: StepColumns, *, share: float) -> NDArray[np.floating]:
    return kl_cov_mask(columns.logp, columns.advantage, fraction=share).astype(np.float64)


def method(config: KlCovConfig, policies: TextPolicies) -> TextMethod:
    loss = TokenLossSpec(
        objective=from_selected_columns(partial(kl_cov, penalty=config.algorithm.penalty)),
        scheme=token_mean,
        proportional_to_advantage=False,
        select_tokens=partial(select_high_covariance, share=config.algorithm.share),
    )
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="GRPO; a few tokens of large covariance are penalised, which keeps entropy up",
    paper="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, 2025",
    config=KlCovConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(kl_cov, kl_cov_mask), weights=(token_mean,)),
    limitation="no clip on all other tokens; without several updates per rollout the penalty has no slope.",
    presets=("kl_cov",),
)
