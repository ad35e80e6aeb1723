"""M2PO: for stale answers; what has moved farthest is left out until the rest is near (Zheng et al., 2025).

A as in GRPO; loss = -r A at the kept tokens, every token alike. As few tokens as possible are dropped, those of the
largest (log r)^2, until its mean over the rest is below the bound. No ratio is clipped.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.selection import second_moment_mask
from hone.objectives.trust import m2po
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import StepColumns, TokenLossSpec
from hone.train.text.loss_adapters import PenaltyConfig, from_selected_columns, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class M2poAlgorithm(PenaltyConfig):
    """The bound."""

    most_second_moment: float = Field(default=0.04, gt=0)
    """Bound on the mean of (log r)^2 over the kept tokens, nats^2."""


class M2poConfig(TextGradientRunConfig):
    """Second-moment trust policy optimisation."""

    requires = (require_groups,)
    algorithm: M2poAlgorithm = M2poAlgorithm()
    """The bound and penalties."""


def select_within_second_moment(columns: StepColumns, *, max_second_moment: float) -> NDArray[np.floating]:
    return second_moment_mask(columns.logp, columns.denominator_logp, max_second_moment=max_second_moment).astype(
        np.float64
    )


def method(config: M2poConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = TokenLossSpec(
        objective=from_selected_columns(m2po),
        scheme=token_mean,
        proportional_to_advantage=False,
        select_tokens=partial(select_within_second_moment, max_second_moment=chosen.most_second_moment),
    )
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, with_penalties(loss, chosen)))


ENTRY = text_recipe_spec(
    summary="a bound on the second moment of log-ratios instead of a clip, for stale answers",
    paper="Zheng et al., Prosperity before Collapse, 2025",
    config=M2poConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(m2po, second_moment_mask, kl_penalty), weights=(token_mean,)),
    limitation="the paper's bound could not be checked; with fresh answers and one update nothing is ever dropped.",
)
