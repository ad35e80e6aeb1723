"""GRPO at forking tokens: a fifth of a step's tokens, those of highest entropy, teach (Wang et al., 2025).

DAPO's clipped loss (0.2 and 0.28) with GRPO's advantage, 0 at tokens whose entropy is below the (1 - share) quantile of
the step; the denominator still counts them.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.selection import high_entropy_mask
from hone.objectives.terms import LossTerms, scale_terms
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import StepColumns, TokenLossSpec, TokenView
from hone.train.text.loss_adapters import ClipConfig, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class HighEntropyAlgorithm(ClipConfig):
    """Which tokens are learned from."""

    clip_high: float = Field(default=0.28, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""
    share: float = Field(default=0.2, gt=0, le=1)
    """Of a step's tokens, those of the highest entropy."""


class HighEntropyGrpoConfig(TextGradientRunConfig):
    """GRPO on the tokens of highest entropy."""

    requires = (require_groups,)
    algorithm: HighEntropyAlgorithm = HighEntropyAlgorithm()
    """Clip widths, share, penalties."""


def select_high_entropy(columns: StepColumns, *, share: float) -> NDArray[np.floating]:
    return high_entropy_mask(columns.entropy, fraction=share).astype(np.float64)


def objective(view: TokenView, *, chosen: HighEntropyAlgorithm) -> LossTerms:
    assert view.token_factor is not None
    terms = clipped_surrogate(
        view.logp, view.denominator_logp, view.advantage, low=chosen.clip_low, high=chosen.clip_high
    )
    return scale_terms(terms, view.token_factor)


def method(config: HighEntropyGrpoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = TokenLossSpec(
        objective=partial(objective, chosen=chosen),
        scheme=token_mean,
        proportional_to_advantage=False,
        select_tokens=partial(select_high_entropy, share=chosen.share),
    )
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, with_penalties(loss, chosen)))


ENTRY = text_recipe_spec(
    summary="GRPO on the fifth of the tokens with the highest entropy",
    paper="Wang et al., Beyond the 80/20 Rule, 2025",
    config=HighEntropyGrpoConfig,
    method=method,
    parts=RecipeParts(
        credit=(group_relative,), loss=(clipped_surrogate, high_entropy_mask, kl_penalty), weights=(token_mean,)
    ),
    limitation="shown to help large models; small ones miss the other tokens; one more forward pass per update.",
    presets=("high_entropy",),
)
