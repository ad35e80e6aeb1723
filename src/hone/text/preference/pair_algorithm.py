"""What a loss on pairs compares: implicit rewards of answers, f-divergences in the place of the KL, weights of pairs.

Belongs here: settings of a config -> one loss on whole answers. The losses are in `pair_losses.py`.
"""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.objectives.implicit import (
    alpha_link,
    forward_kl_link,
    js_link,
    reference_log_ratio,
    weighted_terms,
    wpo_weight,
)
from hone.objectives.terms import LossTerms
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.pair_losses import DpoLoss, PairLoss


class ReverseKlLink(Config):
    """The reverse KL, DPO's own: an answer's implicit reward is its log-ratio."""

    kind: Literal["reverse_kl"] = "reverse_kl"
    """Names this alternative."""

    def link(self, score: Tensor) -> Tensor:
        return score


class ForwardKlLink(Config):
    """The forward KL: implicit rewards are bounded above."""

    kind: Literal["forward_kl"]
    """Names this alternative."""

    def link(self, score: Tensor) -> Tensor:
        return forward_kl_link(score)


class JensenShannonLink(Config):
    """The Jensen-Shannon divergence."""

    kind: Literal["jensen_shannon"]
    """Names this alternative."""

    def link(self, score: Tensor) -> Tensor:
        return js_link(score)


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
