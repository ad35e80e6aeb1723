"""GRPO with off-policy sequence masking: failures that the policy would hardly write any more teach it nothing.

GRPO's loss, 0 at all tokens of an answer with A < 0 whose mean of log pi acted - log pi is above `most_nats`
(DeepSeek-V3.2, 2025). Praised answers are kept however old. The bound is TRL's suggestion; the paper gives none.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.mismatch import off_policy_sequence_mask
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms, scale_terms
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss import TokenLossSpec, TokenView
from hone.train.text.loss_adapters import ClipConfig, with_penalties
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class OpsmAlgorithm(ClipConfig):
    """Which answers are left out."""

    most_nats: float = Field(default=0.5, gt=0)
    """Mean distance per token from whoever acted, above which a punished answer is left out."""


class OpsmConfig(TextGradientRunConfig):
    """GRPO with off-policy sequence masking."""

    requires = (require_groups,)
    algorithm: OpsmAlgorithm = OpsmAlgorithm()
    """Clip widths, the bound, penalties."""


def objective(view: TokenView, *, chosen: OpsmAlgorithm) -> LossTerms:
    terms = clipped_surrogate(
        view.logp, view.denominator_logp, view.advantage, low=chosen.clip_low, high=chosen.clip_high
    )
    kept = off_policy_sequence_mask(
        view.logp, view.behaviour_logp, view.advantage, view.sequence, max_kl_nats=chosen.most_nats
    )
    return LossTerms(
        loss=scale_terms(terms, kept).loss,
        compute_metrics=lambda: {**terms.metrics, "policy/masked_fraction": 1.0 - kept},
    )


def method(config: OpsmConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = TokenLossSpec(objective=partial(objective, chosen=chosen), scheme=token_mean, proportional_to_advantage=True)
    return TextMethod(credit=group_relative, learner=gradient_learner(config, policies, with_penalties(loss, chosen)))


ENTRY = text_recipe_spec(
    summary="GRPO without punished answers that are far off the policy",
    paper="DeepSeek-V3.2, 2025",
    config=OpsmConfig,
    method=method,
    parts=RecipeParts(
        credit=(group_relative,), loss=(clipped_surrogate, off_policy_sequence_mask, kl_penalty), weights=(token_mean,)
    ),
    limitation="with fresh answers nothing is masked; a mean per token lets long answers with few absurd tokens pass.",
    presets=("off_policy_mask",),
)
