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
from hone.objectives.selection import second_moment_kept
from hone.objectives.trust import m2po
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, Whole
from hone.train.text.loss_adapters import Penalties, on_selected, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class M2poAlgorithm(Penalties):
    """The bound."""

    most_second_moment: float = Field(default=0.04, gt=0)
    """Bound on the mean of (log r)^2 over the kept tokens, nats^2."""


class M2po(TextRl):
    """Second-moment trust policy optimisation."""

    requires = (groups,)
    algorithm: M2poAlgorithm = M2poAlgorithm()
    """The bound and penalties."""


def near(whole: Whole, *, most: float) -> NDArray[np.floating]:
    return second_moment_kept(whole.now, whole.then, most=most).astype(np.float64)


def method(config: M2po, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = Loss(
        objective=on_selected(m2po),
        scheme=token_mean,
        proportional=False,
        select=partial(near, most=chosen.most_second_moment),
    )
    return Method(credit=group_relative, learner=by_gradient(config, policies, penalised(loss, chosen)))


ENTRY = text_entry(
    summary="a bound on the second moment of log-ratios instead of a clip, for stale answers",
    source="Zheng et al., Prosperity before Collapse, 2025",
    config=M2po,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(m2po, second_moment_kept, kl_penalty), weights=(token_mean,)),
    limitation="the paper's bound could not be checked; with fresh answers and one update nothing is ever dropped.",
)
