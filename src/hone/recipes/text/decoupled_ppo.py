"""Decoupled PPO: clipped against the policy before the update, weighed against whoever acted (Hilton et al., 2021).

A as in GRPO; u = pi / pi_prox, w = sg[pi_prox / pi_acted]; loss = w max(-A u, -A clip(u, 1 - low, 1 + high)), every
token alike. Made for stale answers (AReaL, 2025): the clip keeps near the newest policy, w corrects for the oldest.
"""

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import decoupled_ppo
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec, TokenView
from hone.train.text.loss_adapters import ClipConfig, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class DecoupledAlgorithm(ClipConfig):
    """Clip widths, and a bound on the correction."""

    weight_cap: float | None = Field(default=None, gt=0)
    """Largest w; unset: none."""


def require_no_correction(config: TextGradientRunConfig) -> None:
    """Both ratios are this loss's own."""
    ratio = config.learner.ratio
    if ratio.denominator != "auto" or ratio.correction != "none":
        raise ValueError(
            f'learner.ratio.denominator = "{ratio.denominator}", learner.ratio.correction = "{ratio.correction}": '
            "decoupled_ppo compares with the policy before the update and with whoever acted by itself; leave both "
            "out, and bound its correction by algorithm.weight_cap"
        )


class DecoupledPpoConfig(TextGradientRunConfig):
    """PPO with three policies."""

    requires = (require_groups, require_no_correction)
    algorithm: DecoupledAlgorithm = DecoupledAlgorithm()
    """Clip widths, bound, penalties."""


def method(config: DecoupledPpoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm

    def objective(view: TokenView) -> LossTerms:
        return decoupled_ppo(
            view.logp, view.behaviour_logp, view.old_logp, view.advantage,
            low=chosen.clip_low, high=chosen.clip_high, weight_cap=chosen.weight_cap,
        )  # fmt: skip

    loss = TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=True, needs_old_logp=True)
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, with_penalties(loss, chosen)))


ENTRY = text_recipe_spec(
    summary="PPO's clip against the newest policy, corrected for whoever acted",
    paper="Hilton et al., Batch Size-Invariance for Policy Optimization, 2021; AReaL, 2025",
    config=DecoupledPpoConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(decoupled_ppo, kl_penalty), weights=(token_mean,)),
    limitation="one more forward pass per step; w is unbounded unless weight_cap is set.",
)
