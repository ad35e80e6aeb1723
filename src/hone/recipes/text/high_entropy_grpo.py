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
from hone.objectives.policy import clipped
from hone.objectives.selection import high_entropy
from hone.objectives.terms import Terms, scaled
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, TokenView, Whole
from hone.train.text.loss_adapters import Clip, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class HighEntropyAlgorithm(Clip):
    """Which tokens are learned from."""

    clip_high: float = Field(default=0.28, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""
    share: float = Field(default=0.2, gt=0, le=1)
    """Of a step's tokens, those of the highest entropy."""


class HighEntropyGrpo(TextRl):
    """GRPO on the tokens of highest entropy."""

    requires = (groups,)
    algorithm: HighEntropyAlgorithm = HighEntropyAlgorithm()
    """Clip widths, share, penalties."""


def forks(whole: Whole, *, share: float) -> NDArray[np.floating]:
    return high_entropy(whole.entropy, share=share).astype(np.float64)


def objective(view: TokenView, *, chosen: HighEntropyAlgorithm) -> Terms:
    assert view.factor is not None
    terms = clipped(view.now, view.then, view.advantage, low=chosen.clip_low, high=chosen.clip_high)
    return scaled(terms, view.factor)


def method(config: HighEntropyGrpo, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = Loss(
        objective=partial(objective, chosen=chosen),
        scheme=token_mean,
        proportional=False,
        select=partial(forks, share=chosen.share),
    )
    return Method(credit=group_relative, learner=by_gradient(config, policies, penalised(loss, chosen)))


ENTRY = text_entry(
    summary="GRPO on the fifth of the tokens with the highest entropy",
    source="Wang et al., Beyond the 80/20 Rule, 2025",
    config=HighEntropyGrpo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(clipped, high_entropy, kl_penalty), weights=(token_mean,)),
    limitation="shown to help large models; small ones miss the other tokens; one more forward pass per update.",
    presets=("high_entropy",),
)
