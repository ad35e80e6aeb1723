"""From functions of tensors to losses on tokens: which columns of a view a function is given, and what is added to it.

Belongs here: adapters that several recipes need. What only one recipe does stands in its file.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal, TypeAlias, TypedDict

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.objectives.kl import kl_loss_estimator, kl_penalty
from hone.objectives.policy import clipped_surrogate, entropy_bonus, importance_weighted, reinforce_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.weights import (
    PromptScheme,
    WeightingScheme,
    Weights,
    constant_length,
    prompt_mean,
    prompt_sequence_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
    token_sum,
)
from hone.text.loss import StepColumns, TokenFactors, TokenLossSpec, TokenView

TokenObjective: TypeAlias = Callable[[TokenView], LossTerms]


class ConstantLength(Config):
    """`constant_length` with a length of its own."""

    constant_length: int = Field(ge=1)
    """Tokens that the sum of each answer is divided by, the same for answers of any length."""


Aggregation = (
    Literal[
        "token_mean",
        "sequence_mean",
        "sequence_sum",
        "constant_length",
        "token_sum",
        "prompt_mean",
        "prompt_sequence_mean",
    ]
    | ConstantLength
)
_BY_LENGTH: Final[Mapping[str, WeightingScheme]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "token_sum": token_sum,
}
AGGREGATIONS: Final[Mapping[str, Callable[..., Weights]]] = {
    **_BY_LENGTH,
    "constant_length": constant_length,
    "prompt_mean": prompt_mean,
    "prompt_sequence_mean": prompt_sequence_mean,
}
RatioLevel = Literal["token", "sequence"]
KlEstimator = Literal["k2", "k3", "weighted_k3", "k3_valued_k2", "k1_valued_k2", "absolute", "absolute_valued_k2"]


class _ClipRange(TypedDict):
    """Clip widths and dual clip of a loss."""

    low: float
    high: float
    negative_cap: float | None


def policy_gradient(view: TokenView) -> LossTerms:
    """-A log pi of each token: right for answers of the policy as it stands, and for one step on them."""
    return reinforce_loss(view.logp, view.advantage)


def importance_objective(view: TokenView) -> LossTerms:
    """-r A of each token."""
    return importance_weighted(view.logp, view.denominator_logp, view.advantage)


def from_token_columns(loss: Callable[[Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss` of (logp, denominator_logp, advantage) on views."""
    return lambda view: loss(view.logp, view.denominator_logp, view.advantage)


def from_sequence_columns(loss: Callable[[Tensor, Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss` of (logp, denominator_logp, advantage, sequence) on views."""
    return lambda view: loss(view.logp, view.denominator_logp, view.advantage, view.sequence)


def from_ratio_columns(loss: Callable[..., LossTerms], level: RatioLevel) -> TokenObjective:
    """`loss` on views: with the tokens' sequences where its ratio is a sequence's."""
    return from_token_columns(loss) if level == "token" else from_sequence_columns(loss)


def from_selected_columns(loss: Callable[[Tensor, Tensor, Tensor, Tensor], LossTerms]) -> TokenObjective:
    """`loss` of (logp, denominator_logp, advantage, factor) on views: the factor is what `select_tokens` returned."""

    def objective(view: TokenView) -> LossTerms:
        assert view.token_factor is not None
        return loss(view.logp, view.denominator_logp, view.advantage, view.token_factor)

    return objective


class AggregationConfig(Config):
    """Aggregation of a recipe's loss."""

    aggregation: Aggregation = "token_mean"
    """Weight of a token in the loss: 1 / tokens of the batch (`token_mean`), 1 / (answers x tokens of its answer)
    (`sequence_mean`), 1 / answers (`sequence_sum`), 1 / (answers x `rollout.max_tokens`) (`constant_length`; `{
    constant_length = 100 }` divides by 100), 1 (`token_sum`), 1 / (prompts x tokens of the prompt's answers)
    (`prompt_mean`), or 1 / (prompts x answers of the prompt x tokens of the answer) (`prompt_sequence_mean`)."""


class PenaltyConfig(AggregationConfig):
    """Aggregation and penalties of a recipe's loss: KL to the reference policy, and an entropy bonus."""

    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty to the initial policy in the loss; 0 loads no reference model."""
    kl_estimator: KlEstimator = "weighted_k3"
    """Estimator of the KL penalty in the loss. The gradients of `k2` and `weighted_k3` are those of KL(policy ||
    reference) per token only, the second also off policy: for whole answers they are biased (20 to 30% for two
    tokens, about half off policy); a KL in the reward is not. `k3` pulls towards KL(reference || policy), `absolute`
    towards twice the total variation, and `..._valued_k2` differ from k2 in the value only. k1 is rejected, because its
    gradient is 0 in expectation."""
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
    negative_cap: float | None = Field(default=None, gt=1)
    """Dual clip: ratio above which a token with negative advantage has no gradient any more; unset: none."""

    @model_validator(mode="after")
    def _cap_beyond_clip(self) -> "ClipConfig":
        require_cap_beyond_clip(self.negative_cap, self.clip_high)
        return self


def require_cap_beyond_clip(negative_cap: float | None, clip_high: float) -> None:
    """Raises ValueError for a dual clip inside the clip range, where it would stop tokens that have hardly moved."""
    if negative_cap is not None and negative_cap < 1.0 + clip_high:
        raise ValueError(
            f"negative_cap = {negative_cap:g} is below 1 + clip_high = {1.0 + clip_high:g}: dual clip bounds ratios "
            "far outside the clip range (3 in verl, 4 in INTELLECT-2); raise it, or leave it out"
        )


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
    scheme: WeightingScheme | PromptScheme,
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


def policy_gradient_loss(scheme: WeightingScheme | PromptScheme) -> TokenLossSpec:
    """REINFORCE's loss on tokens."""
    return TokenLossSpec(objective=policy_gradient, scheme=scheme, proportional_to_advantage=True)


def clip_objective(clip: ClipConfig) -> TokenObjective:
    """PPO's clipped surrogate of each token."""
    return from_token_columns(partial(clipped_surrogate, **clip_range(clip)))


def clip_range(clip: ClipConfig) -> _ClipRange:
    """Keyword arguments of a clipped loss: its widths and its dual clip."""
    return _ClipRange(low=clip.clip_low, high=clip.clip_high, negative_cap=clip.negative_cap)


def clip_loss(clip: ClipConfig, scheme: WeightingScheme | PromptScheme) -> TokenLossSpec:
    """PPO's clipped surrogate on tokens, with its penalties."""
    objective = clip_objective(clip)
    return penalised_loss(objective, scheme, clip)


def aggregation_scheme(config: AggregationConfig, max_tokens: int) -> WeightingScheme | PromptScheme:
    """The scheme that a config names; `constant_length` divides by `max_tokens` unless it has a length of its own."""
    match config.aggregation:
        case "constant_length":
            return partial(constant_length, length=max_tokens)
        case ConstantLength(constant_length=length):
            return partial(constant_length, length=length)
        case "prompt_mean":
            return PromptScheme(prompt_mean)
        case "prompt_sequence_mean":
            return PromptScheme(prompt_sequence_mean)
        case by_length:
            return _BY_LENGTH[by_length]
