"""From functions of tensors to losses on tokens: which columns of a view a function is given, and what is added to it.

Belongs here: adapters that several recipes need. What only one recipe does stands in its file.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from pydantic import Field, field_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.objectives.entropy import entropy_bonus
from hone.objectives.kl import kl_loss_estimator, kl_penalty
from hone.objectives.policy import clipped_surrogate, importance_weighted, reinforce_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.weights import WeightingScheme, constant_length, sequence_mean, token_mean
from hone.train.text.loss import StepColumns, TokenFactors, TokenLossSpec, TokenView

TokenObjective: TypeAlias = Callable[[TokenView], LossTerms]
Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]
AGGREGATIONS = {"token_mean": token_mean, "sequence_mean": sequence_mean, "constant_length": constant_length}
KlEstimator = Literal["k2", "k3", "weighted_k3", "k3_valued_k2"]


def policy_gradient(view: TokenView) -> LossTerms:
    """-A log pi of each token: right for answers of the policy as it stands, and for one step on them."""
    return reinforce_loss(view.logp, view.advantage)


def importance_objective(view: TokenView) -> LossTerms:
    """-r A of each token."""
    return importance_weighted(view.logp, view.denominator_logp, view.advantage)


def from_token_columns(loss: Callable[[Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss(now, then, advantage)` on views."""
    return lambda view: loss(view.logp, view.denominator_logp, view.advantage)


def from_sequence_columns(loss: Callable[[Tensor, Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss(now, then, advantage, sequence)` on views."""
    return lambda view: loss(view.logp, view.denominator_logp, view.advantage, view.sequence)


def from_selected_columns(loss: Callable[[Tensor, Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss(now, then, advantage, factor)` on views: the factor is what `Loss.select` chose."""

    def objective(view: TokenView) -> LossTerms:
        assert view.token_factor is not None
        return loss(view.logp, view.denominator_logp, view.advantage, view.token_factor)

    return objective


class PenaltyConfig(Config):
    """Penalties of a recipe's loss: KL to the reference policy, and an entropy bonus."""

    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty to the initial policy in the loss; 0 loads no reference model."""
    kl_estimator: KlEstimator = "weighted_k3"
    """Estimator of the KL penalty in the loss; k1 is rejected, because its gradient is 0 in expectation."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; 0 is off, as in most papers on language models."""

    @field_validator("kl_estimator", mode="before")
    @classmethod
    def _with_a_gradient(cls, value: object) -> object:
        if value == "k1":
            try:
                kl_loss_estimator("k1")
            except ConfigError as fault:
                raise ValueError(str(fault)) from None
        return value


class ClipConfig(PenaltyConfig):
    """Clip widths around a ratio of 1, and penalties."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """A token's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""


def with_penalties(loss: TokenLossSpec, penalties: PenaltyConfig) -> TokenLossSpec:
    """loss + kl * distance - entropy * H; the same loss where both weights are 0."""
    distance = kl_loss_estimator(penalties.kl_estimator)

    def objective(view: TokenView) -> LossTerms:
        terms = loss.objective(view)
        if view.ref_logp is not None:
            penalty = kl_penalty(view.logp, view.ref_logp, view.denominator_logp, estimator=distance)
            terms = add_terms(terms, penalty, weight=penalties.kl)
        if penalties.entropy and view.entropy is not None:
            terms = add_terms(terms, entropy_bonus(view.entropy), weight=penalties.entropy)
        return terms

    return replace(
        loss,
        objective=objective,
        proportional_to_advantage=loss.proportional_to_advantage and penalties.kl == 0 and penalties.entropy == 0,
        needs_reference=loss.needs_reference or penalties.kl > 0,
        needs_entropy=loss.needs_entropy or penalties.entropy > 0,
    )


def penalised_loss(
    objective: TokenObjective,
    scheme: WeightingScheme,
    penalties: PenaltyConfig,
    *,
    select_tokens: Callable[[StepColumns], TokenFactors] | None = None,
) -> TokenLossSpec:
    """Loss that is proportional to the advantage, and its penalties. A selection needs the tokens of all sequences."""
    loss = TokenLossSpec(
        objective=objective,
        scheme=scheme,
        proportional_to_advantage=select_tokens is None,
        select_tokens=select_tokens,
    )
    return with_penalties(loss, penalties)


def policy_gradient_loss(scheme: WeightingScheme) -> TokenLossSpec:
    """REINFORCE's loss on tokens."""
    return TokenLossSpec(objective=policy_gradient, scheme=scheme, proportional_to_advantage=True)


def clip_objective(clip: ClipConfig) -> TokenObjective:
    """PPO's clipped surrogate of each token."""
    return from_token_columns(partial(clipped_surrogate, low=clip.clip_low, high=clip.clip_high))


def clip_loss(clip: ClipConfig, scheme: WeightingScheme) -> TokenLossSpec:
    """PPO's clipped surrogate on tokens, with its penalties."""
    objective = clip_objective(clip)
    return penalised_loss(objective, scheme, clip)


def aggregation_scheme(aggregation: Aggregation, max_tokens: int) -> WeightingScheme:
    """The scheme of that name; `max_tokens` is the length that `constant_length` divides by."""
    scheme = AGGREGATIONS[aggregation]
    return partial(scheme, length=max_tokens) if aggregation == "constant_length" else scheme
