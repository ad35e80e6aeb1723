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
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec
from hone.train.text.loss_adapters import PenaltyConfig, from_token_columns, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class CispoAlgorithm(PenaltyConfig):
    """Bounds of the weight."""

    ratio_cap: float = Field(default=5.0, gt=0)
    """Largest weight of a token: a ratio, not a width around 1."""
    ratio_floor: float = Field(default=0.0, ge=0)
    """Least weight of a token; the paper has none."""


class CispoConfig(TextGradientRunConfig):
    """Clipped importance sampling policy optimisation."""

    requires = (require_groups,)
    algorithm: CispoAlgorithm = CispoAlgorithm()
    """Bounds and penalties."""


def method(config: CispoConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    objective = from_token_columns(partial(cispo, ratio_cap=chosen.ratio_cap, ratio_floor=chosen.ratio_floor))
    loss = with_penalties(TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=True), chosen)
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="importance weights capped instead of gradients clipped",
    paper="MiniMax, MiniMax-M1, 2025",
    config=CispoConfig,
    method=method,
    parts=RecipeParts(credit=(group_relative,), loss=(cispo, kl_penalty), weights=(token_mean,)),
    limitation="nothing stops a token that has moved far: the step size alone bounds the change of the policy.",
    presets=("cispo",),
)
