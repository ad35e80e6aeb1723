"""Losses on pairs as alternatives of a config: DPO and its variants, and the implicit rewards that they compare.

Belongs here: names of a config -> one loss on whole answers. The formulas are in `hone.objectives`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.objectives import batchwide, preference
from hone.objectives.implicit import (
    alpha_link,
    forward_kl_link,
    js_link,
    reference_log_ratio,
    weighted_terms,
    wpo_weight,
)
from hone.objectives.terms import LossTerms
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerScore, AnswerView, RunningShiftStatistic

PairTerms: TypeAlias = Callable[[Tensor, Tensor], LossTerms]
"""Implicit rewards of chosen and rejected answers `[P]`, nats -> a term for each pair."""
Smoothing = Annotated[float, Field(gt=0, lt=0.5)]


class _PairLossConfig(Config):
    """A loss on the implicit rewards of chosen and rejected answers."""

    takes_divergence: ClassVar[bool] = False
    """It looks at the margin only, so that an f-divergence may take the place of the KL."""
    takes_weights: ClassVar[bool] = True
    """Its pairs may have different weights."""
    terms: ClassVar[Callable[..., LossTerms]]
    """Implicit rewards of chosen and rejected answers `[P]`, nats, and the config's fields -> a term for each pair."""

    beta: float = Field(default=0.1, gt=0)
    """KL coefficient of the reference: the larger, the closer the policy stays."""

    def spec(self, score: AnswerScore) -> AnswerLossSpec:
        """The loss on answers, whose implicit rewards are `score`."""
        terms = partial(self.terms, **self.model_dump(exclude={"kind"}))

        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            return terms(score(chosen), score(rejected))

        return AnswerLossSpec(objective=objective)


class DpoLoss(_PairLossConfig):
    """DPO (Rafailov et al., 2023): -logsigmoid(beta D), D the difference of the implicit rewards."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.dpo)

    kind: Literal["dpo"] = "dpo"
    """Names this alternative."""


class ConservativeLoss(_PairLossConfig):
    """Conservative DPO (Mitchell, 2023): labels are wrong with probability `smoothing`."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.dpo)

    kind: Literal["conservative"]
    """Names this alternative."""
    smoothing: Smoothing = 0.1
    """Assumed share of wrong labels."""


class RobustLoss(_PairLossConfig):
    """Robust DPO (Chowdhury et al., 2024): unbiased where labels are flipped with probability `smoothing`."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.robust_dpo)

    kind: Literal["robust"]
    """Names this alternative."""
    smoothing: Smoothing = 0.1
    """Share of flipped labels."""


class IpoLoss(_PairLossConfig):
    """IPO (Azar et al., 2023): (D - 1 / (2 beta))^2; the margin has a target. Its authors normalise by length."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.ipo)

    kind: Literal["ipo"]
    """Names this alternative."""


class HingeLoss(_PairLossConfig):
    """Hinge of SLiC-HF (Zhao et al., 2023): relu(1 - beta D); no gradient beyond."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.hinge)

    kind: Literal["hinge"]
    """Names this alternative."""


class ExoLoss(_PairLossConfig):
    """EXO for pairs (Ji et al., 2024): the reverse KL to the smoothed label."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.exo_pair)

    kind: Literal["exo"]
    """Names this alternative."""
    smoothing: Smoothing = 1e-3
    """Probability of the other label."""


class DiscopopLoss(_PairLossConfig):
    """DiscoPOP (Lu et al., 2024): a mixture of the logistic and the exponential loss."""

    takes_divergence: ClassVar[bool] = True
    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.discopop)

    kind: Literal["discopop"]
    """Names this alternative."""
    sharpness: float = Field(default=0.05, gt=0)
    """Width of the step from one loss to the other, in units of beta D."""


class NcaLoss(_PairLossConfig):
    """NCA for pairs (Chen et al., 2024): each answer against noise, which keeps the chosen one likely."""

    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.nca_pair)

    kind: Literal["nca"]
    """Names this alternative."""


class SppoLoss(_PairLossConfig):
    """SPPO (Wu et al., 2024): implicit rewards are drawn to (P - 1/2) / beta and to its negative."""

    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.sppo)

    kind: Literal["sppo"]
    """Names this alternative."""
    probability: float = Field(default=1.0, gt=0.5, le=1)
    """P: probability that the chosen answer beats the rejected one."""


class ApoZeroLoss(_PairLossConfig):
    """APO-zero (D'Oosterlinck et al., 2024), for chosen answers that are better than the policy's own."""

    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.apo_zero)

    kind: Literal["apo_zero"]
    """Names this alternative."""


class ApoDownLoss(_PairLossConfig):
    """APO-down (D'Oosterlinck et al., 2024), for policies that are better than both answers."""

    terms: ClassVar[Callable[..., LossTerms]] = staticmethod(preference.apo_down)

    kind: Literal["apo_down"]
    """Names this alternative."""


# ------------------------------------------------------------------------------- statistics of a whole optimizer step


class BcoPairLoss(_PairLossConfig):
    """BCO on pairs (Jung et al., 2024): a classifier of answers, shifted by the mean implicit reward so far."""

    kind: Literal["bco_pair"]
    """Names this alternative."""

    def spec(self, score: AnswerScore) -> AnswerLossSpec:
        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            assert chosen.statistic is not None
            return preference.bco_pair(score(chosen), score(rejected), chosen.statistic, beta=self.beta)

        shift = RunningShiftStatistic(score)
        return AnswerLossSpec(objective=objective, statistic=shift, running=shift)


RankComparisonName = Literal["logistic", "hinge", "squared_hinge"]
RANK_COMPARISONS = {
    "logistic": None,
    "hinge": preference.hinge_comparison,
    "squared_hinge": preference.squared_hinge_comparison,
}


class AotLoss(_PairLossConfig):
    """AOT (Melnyk et al., 2024): the policy's margins, sorted over the step, against the reference's of equal rank."""

    takes_weights: ClassVar[bool] = False

    kind: Literal["aot"]
    """Names this alternative."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed share of wrong labels."""
    comparison: RankComparisonName = "logistic"
    """Loss of the difference of two scores of one rank."""

    def spec(self, score: AnswerScore) -> AnswerLossSpec:
        compared = partial(
            preference.aot, beta=self.beta, smoothing=self.smoothing, comparison=RANK_COMPARISONS[self.comparison]
        )

        def margin(view: AnswerView) -> Tensor:
            chosen, rejected = view.pairs()
            return score(chosen) - score(rejected)

        def objective(view: AnswerView) -> LossTerms:
            chosen, _ = view.pairs()
            assert chosen.statistic is not None
            return compared(margin(_policy_alone(view)), chosen.statistic)

        def partners(view: AnswerView) -> Tensor:
            assert view.ref_logp is not None
            reference = replace(view, logp=view.ref_logp, ref_logp=torch.zeros_like(view.logp))
            margins = (margin(one).numpy() for one in (_policy_alone(view), reference))
            partner = torch.from_numpy(batchwide.aot_partners(*margins))
            return _at_answers(view, partner, partner)

        return AnswerLossSpec(objective=objective, statistic=partners)


class AotUnpairedLoss(_PairLossConfig):
    """AOT without pairs (Melnyk et al., 2024): rewards of chosen answers against those of rejected ones of equal
    rank."""

    takes_weights: ClassVar[bool] = False

    kind: Literal["aot_unpaired"]
    """Names this alternative."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed share of wrong labels."""
    comparison: RankComparisonName = "logistic"
    """Loss of the difference of two scores of one rank."""

    def spec(self, score: AnswerScore) -> AnswerLossSpec:
        compared = partial(
            preference.aot_unpaired,
            beta=self.beta,
            smoothing=self.smoothing,
            comparison=RANK_COMPARISONS[self.comparison],
        )

        def objective(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            assert chosen.statistic is not None
            assert rejected.statistic is not None
            return compared(score(chosen), score(rejected), chosen.statistic, rejected.statistic)

        def partners(view: AnswerView) -> Tensor:
            chosen, rejected = (score(one).numpy() for one in view.pairs())
            ranks = (batchwide.same_rank(chosen, rejected), batchwide.same_rank(rejected, chosen))
            return _at_answers(view, *map(torch.from_numpy, ranks))

        return AnswerLossSpec(objective=objective, statistic=partners)


def _policy_alone(view: AnswerView) -> AnswerView:
    """The answers, scored by the policy without a reference."""
    return replace(view, ref_logp=torch.zeros_like(view.logp))


def _at_answers(view: AnswerView, chosen: Tensor, rejected: Tensor) -> Tensor:
    """`[A]` from columns `[P]` of the chosen and of the rejected answers."""
    result = torch.zeros_like(view.logp)
    result[view.label > 0], result[view.label < 0] = chosen, rejected
    return result


PairLoss = Annotated[
    DpoLoss
    | ConservativeLoss
    | RobustLoss
    | IpoLoss
    | HingeLoss
    | ExoLoss
    | DiscopopLoss
    | NcaLoss
    | SppoLoss
    | ApoZeroLoss
    | ApoDownLoss
    | BcoPairLoss
    | AotLoss
    | AotUnpairedLoss,
    Field(discriminator="kind"),
]


# ----------------------------------------------------------------------------------------------------- implicit rewards


class ReverseKlLink(Config):
    """The reverse KL, DPO's own: an answer's implicit reward is its log-ratio."""

    kind: Literal["reverse_kl"] = "reverse_kl"
    """Names this alternative."""

    def link(self, score: Tensor) -> Tensor:
        return score


class ForwardKlLink(Config):
    """The forward KL: implicit rewards are bounded above."""

    link: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(forward_kl_link)

    kind: Literal["forward_kl"]
    """Names this alternative."""


class JensenShannonLink(Config):
    """The Jensen-Shannon divergence."""

    link: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(js_link)

    kind: Literal["jensen_shannon"]
    """Names this alternative."""


class AlphaLink(Config):
    """The alpha divergence, between the reverse KL (alpha towards 0) and the forward KL (1)."""

    kind: Literal["alpha"]
    """Names this alternative."""
    alpha: float = Field(default=0.5, gt=0, le=1)
    """TRL's `f_alpha_divergence_coef` is 1 - alpha."""

    def link(self, score: Tensor) -> Tensor:
        return alpha_link(score, alpha=self.alpha)


Divergence = Annotated[ReverseKlLink | ForwardKlLink | JensenShannonLink | AlphaLink, Field(discriminator="kind")]


class PairAlgorithm(Config):
    """Loss on pairs, and the implicit rewards that it compares."""

    loss: PairLoss = DpoLoss()
    """The loss, by its `kind`."""
    length_normalised: bool = False
    """Divide an answer's log-ratio by its number of tokens (Tülu 3; IPO as TRL 1 and its authors have it). beta then
    has another scale: about the length of an answer times larger."""
    ld_alpha: float = Field(default=1.0, ge=0, le=1)
    """Weight of the tokens of the longer answer beyond the length of the shorter one (LD-DPO); 1: all count alike."""
    divergence: Divergence = ReverseKlLink()
    """Divergence from the reference (f-DPO), for losses of the margin."""
    wpo_cap: float | None = Field(default=None, gt=0)
    """Weigh pairs by their probability under the policy (WPO), at most this much; unset: all alike."""
    reference: str | None = None
    """Folder of the reference policy; unset: the policy as the run starts, which costs no second model."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PairAlgorithm":
        kind = self.loss.kind
        if self.divergence.kind != "reverse_kl" and not self.loss.takes_divergence:
            raise ValueError(
                f'divergence = "{self.divergence.kind}" needs a loss of the margin, in which its normaliser cancels; '
                f'loss.kind = "{kind}" looks at single rewards: take "dpo", or leave divergence out'
            )
        if self.wpo_cap is not None and not self.loss.takes_weights:
            raise ValueError(
                f'wpo_cap = {self.wpo_cap:g}: loss.kind = "{kind}" joins the ranks of different pairs, which cannot '
                "have weights of their own; leave wpo_cap out"
            )
        return self

    def score(self, view: AnswerView) -> Tensor:
        """Implicit reward of each answer `[A]`, in nats (per token where it is normalised)."""
        assert view.ref_logp is not None
        length = view.length if self.length_normalised else None
        return self.divergence.link(reference_log_ratio(view.logp, view.ref_logp, length=length))

    def spec(self) -> AnswerLossSpec:
        """The loss that these settings describe."""
        spec = replace(self.loss.spec(self.score), excess_weight=self.ld_alpha)
        if self.wpo_cap is None:
            return spec
        cap, objective = self.wpo_cap, spec.objective

        def weighted(view: AnswerView) -> LossTerms:
            chosen, rejected = view.pairs()
            assert chosen.alignment is not None
            assert rejected.alignment is not None
            return weighted_terms(objective(view), wpo_weight(chosen.alignment, rejected.alignment, cap=cap))

        return replace(spec, objective=weighted, needs_alignment=True)
