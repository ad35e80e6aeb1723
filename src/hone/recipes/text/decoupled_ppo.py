"""Decoupled PPO: clipped against the policy before the update, weighed against whoever acted (Hilton et al., 2021).

A as in GRPO; u = pi / pi_prox, w = sg[pi_prox / pi_acted]; loss = w max(-A u, -A clip(u, 1 - low, 1 + high)), every
token alike. Made for stale answers (AReaL, 2025): the clip keeps near the newest policy, w corrects for the oldest.
"""

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import decoupled
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, TokenView
from hone.train.text.loss_adapters import Clip, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class DecoupledAlgorithm(Clip):
    """Clip widths, and a bound on the correction."""

    weight_cap: float | None = Field(default=None, gt=0)
    """Largest w; unset: none."""


def three_policies(config: TextRl) -> None:
    """Both ratios are this loss's own."""
    ratio = config.learner.ratio
    if ratio.denominator != "auto" or ratio.correction != "none":
        raise ValueError(
            f'learner.ratio.denominator = "{ratio.denominator}", learner.ratio.correction = "{ratio.correction}": '
            "decoupled_ppo compares with the policy before the update and with whoever acted by itself; leave both "
            "out, and bound its correction by algorithm.weight_cap"
        )


class DecoupledPpo(TextRl):
    """PPO with three policies."""

    requires = (groups, three_policies)
    algorithm: DecoupledAlgorithm = DecoupledAlgorithm()
    """Clip widths, bound, penalties."""


def method(config: DecoupledPpo, policies: Policies) -> Method:
    chosen = config.algorithm

    def objective(view: TokenView) -> Terms:
        return decoupled(
            view.now, view.acted, view.start, view.advantage,
            low=chosen.clip_low, high=chosen.clip_high, weight_cap=chosen.weight_cap,
        )  # fmt: skip

    loss = Loss(objective=objective, scheme=token_mean, proportional=True, start=True)
    return Method(credit=group_relative, learner=by_gradient(config, policies, penalised(loss, chosen)))


ENTRY = text_entry(
    summary="PPO's clip against the newest policy, corrected for whoever acted",
    source="Hilton et al., Batch Size-Invariance for Policy Optimization, 2021; AReaL, 2025",
    config=DecoupledPpo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(decoupled, kl_penalty), weights=(token_mean,)),
    limitation="one more forward pass per step; w is unbounded unless weight_cap is set.",
)
