"""GRPO with off-policy sequence masking: failures that the policy would hardly write any more teach it nothing.

GRPO's loss, 0 at all tokens of an answer with A < 0 whose mean of log pi acted - log pi is above `most_nats`
(DeepSeek-V3.2, 2025). Praised answers are kept however old. The bound is TRL's suggestion; the paper gives none.
"""

from functools import partial

from pydantic import Field

from hone.credit.group import group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.mismatch import off_policy_kept
from hone.objectives.policy import clipped
from hone.objectives.terms import Terms, scaled
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, TokenView
from hone.train.text.loss_adapters import Clip, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class OpsmAlgorithm(Clip):
    """Which answers are left out."""

    most_nats: float = Field(default=0.5, gt=0)
    """Mean distance per token from whoever acted, above which a punished answer is left out."""


class Opsm(TextRl):
    """GRPO with off-policy sequence masking."""

    requires = (groups,)
    algorithm: OpsmAlgorithm = OpsmAlgorithm()
    """Clip widths, the bound, penalties."""


def objective(view: TokenView, *, chosen: OpsmAlgorithm) -> Terms:
    terms = clipped(view.now, view.then, view.advantage, low=chosen.clip_low, high=chosen.clip_high)
    kept = off_policy_kept(view.now, view.acted, view.advantage, view.sequence, most_nats=chosen.most_nats)
    return Terms(
        loss=scaled(terms, kept).loss,
        told=lambda: {**terms.metrics, "policy/masked_fraction": 1.0 - kept},
    )


def method(config: Opsm, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = Loss(objective=partial(objective, chosen=chosen), scheme=token_mean, proportional=True)
    return Method(credit=group_relative, learner=by_gradient(config, policies, penalised(loss, chosen)))


ENTRY = text_entry(
    summary="GRPO without punished answers that are far off the policy",
    source="DeepSeek-V3.2, 2025",
    config=Opsm,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(clipped, off_policy_kept, kl_penalty), weights=(token_mean,)),
    limitation="with fresh answers nothing is masked; a mean per token lets long answers with few absurd tokens pass.",
    presets=("off_policy_mask",),
)
