"""CISPO: the ratio is capped, and no token is ever without a gradient (MiniMax, "MiniMax-M1", 2025).

A as in GRPO; loss = -sg[min(r, ratio_cap)] A log pi, every token alike. The cap is an absolute ratio: 5, as in ScaleRL
(Khatri et al., 2025), because the paper's own is not published.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import cispo
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import Penalties, on_tokens, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class CispoAlgorithm(Penalties):
    """Bounds of the weight."""

    ratio_cap: float = Field(default=5.0, gt=0)
    """Largest weight of a token: a ratio, not a width around 1."""
    ratio_floor: float = Field(default=0.0, ge=0)
    """Least weight of a token; the paper has none."""


class Cispo(TextRl):
    """Clipped importance sampling policy optimisation."""

    requires = (groups,)
    algorithm: CispoAlgorithm = CispoAlgorithm()
    """Bounds and penalties."""


def method(config: Cispo, policies: Policies) -> Method:
    chosen = config.algorithm
    objective = on_tokens(partial(cispo, ratio_cap=chosen.ratio_cap, ratio_floor=chosen.ratio_floor))
    loss = penalised(Loss(objective=objective, scheme=token_mean, proportional=True), chosen)
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="importance weights capped instead of gradients clipped",
    source="MiniMax, MiniMax-M1, 2025",
    config=Cispo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(cispo, kl_penalty), weights=(token_mean,)),
    limitation="nothing stops a token that has moved far: the step size alone bounds the change of the policy.",
    presets=("cispo",),
)
