"""Importance ratio of a text recipe: its denominator, corrections between engine and trainer, and figures of both.

A config names them; here names become functions, once, before a model is loaded.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.errors import DivergedError
from hone.learner.config import LearnerConfig
from hone.objectives import mismatch
from hone.objectives import mismatch as rejection
from hone.objectives.ratios import sequence_mean, sequence_sum

Denominator = Literal["auto", "self", "recomputed", "recorded"]
Correction = Literal[
    "none",
    "truncated_is",
    "masked_is",
    "icepop",
    "kpop",
    "sequence_truncated_is",
    "sequence_masked_is",
    "geometric_truncated_is",
    "geometric_kept",
]
Statistic = Literal["k1", "k2", "k3", "k3_reverse", "binary_kl"]
StatisticScope = Literal["token", "sequence_sum", "sequence_mean", "sequence_max"]
CorrectionFactor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-probabilities of trainer and behaviour policy `[n]`, and the tokens' sequences `[n]` -> factor `[n]`."""

CORRECTIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "truncated_is": (mismatch.truncated_is, ("weight_floor", "weight_cap")),
    "masked_is": (mismatch.masked_is, ("weight_floor", "weight_cap")),
    "icepop": (mismatch.icepop, ("weight_floor", "weight_cap")),
    "kpop": (mismatch.kpop, ("max_divergence_nats",)),
    "sequence_truncated_is": (mismatch.sequence_truncated_is, ("weight_floor", "weight_cap")),
    "sequence_masked_is": (mismatch.sequence_masked_is, ("weight_floor", "weight_cap")),
    "geometric_truncated_is": (mismatch.geometric_truncated_is, ("weight_floor", "weight_cap")),
    "geometric_kept": (mismatch.geometric_rejection, ("ratio_floor", "ratio_cap")),
}
"""Factor of each correction, and its bounds: the floor, where it has one, and the cap."""
REJECTING_CORRECTIONS = ("geometric_kept",)
"""Those that are no weight: tokens are kept or rejected."""
TOKEN_CORRECTIONS = ("truncated_is", "masked_is", "icepop", "kpop")
"""Those that look at each token by itself."""
STATISTICS: Mapping[str, rejection.DivergenceStatistic] = {
    "k1": rejection.k1_divergence,
    "k2": rejection.k2_divergence,
    "k3": rejection.k3_divergence,
    "k3_reverse": rejection.reverse_k3_divergence,
    "binary_kl": rejection.binary_divergence,
}
SCOPES: Mapping[str, rejection.SequenceStatistic] = {
    "token": rejection.own_divergence,
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "sequence_max": rejection.sequence_max,
}


class RejectionConfig(Config):
    """Bounds on a divergence between trainer and engine; what is outside gets no gradient."""

    statistic: Statistic = "k3"
    """Divergence of a token, in nats: `k1` = -d, `k2` = d^2 / 2, `k3` = exp(d) - 1 - d, d the trainer's log-probability
    minus the engine's; `k3_reverse` is k3 of -d; `binary_kl` is the larger KL of "this token or another"."""
    over: StatisticScope = "token"
    """Unit that is rejected: the token, or its whole answer by the sum, mean or maximum of the statistic."""
    min_nats: float | None = None
    """Least value that is kept; only `k1` can be negative."""
    max_nats: float | None = None
    """Largest value that is kept."""

    @model_validator(mode="after")
    def _bounded(self) -> "RejectionConfig":
        if self.min_nats is None and self.max_nats is None:
            raise ValueError("a rejection needs max_nats, or min_nats, or both: without a bound nothing is rejected")
        if self.min_nats is not None and self.max_nats is not None and self.min_nats > self.max_nats:
            raise ValueError(f"min_nats = {self.min_nats:g} is above max_nats = {self.max_nats:g}: all is rejected")
        if self.statistic != "k1" and self.min_nats is not None:
            raise ValueError(
                f'min_nats = {self.min_nats:g}: {self.statistic} is never negative, and small is good; take "k1", '
                "or leave min_nats out"
            )
        if self.statistic != "k1" and self.max_nats is not None and self.max_nats < 0:
            raise ValueError(f"max_nats = {self.max_nats:g}: {self.statistic} is never negative: all is rejected")
        if self.statistic == "k1" and self.over == "sequence_max":
            raise ValueError('over = "sequence_max" of k1 sees only one of its two signs; take "k2" or "k3"')
        return self

    def mask(self) -> CorrectionFactor:
        """The mask that these bounds describe."""
        return partial(
            rejection.divergence_mask,
            statistic=STATISTICS[self.statistic],
            over=SCOPES[self.over],
            min_nats=self.min_nats,
            max_nats=self.max_nats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """Correction and rejections that are computed once, over all tokens of a step."""

    weight: CorrectionFactor | None
    """The correction, already normalised where that is asked for; None: 1."""
    mask: CorrectionFactor | None
    """1 for the tokens that are kept, 0 for those that are rejected; None: all are kept."""
    count_rejected: bool
    """Rejected tokens count in the denominator of the aggregation."""

    def columns(self, trainer: Tensor, behaviour: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor | None]:
        """Factor `[N]` on each token's loss, and flags `[N]` of the tokens that count in the denominator (None: all).

        Arguments: log-probabilities of the trainer's policy before the update and of the behaviour policy `[N]`, and
        the tokens' sequences `[N]`.
        """
        factor, counted = torch.ones_like(trainer), None
        if self.weight is not None:
            factor = self.weight(trainer, behaviour, sequence)
        if self.mask is not None:
            mask = self.mask(trainer, behaviour, sequence)
            factor = factor * mask
            counted = None if self.count_rejected else mask > 0
        return factor, counted


class RatioConfig(Config):
    """Denominator of the importance ratio, its correction, and the mismatch that stops a run."""

    denominator: Denominator = "auto"
    """`self`: the policy as it is, so that the ratio is exactly 1 (one optimizer step per rollout); `recomputed`: the
    trainer's own log-probability before the update, one more forward pass; `recorded`: that of the behaviour policy.
    `auto` is the first that fits: `self`, else `recomputed`, and `recorded` where answers may be older than the
    policy."""
    correction: Correction = "none"
    """Factor on each token's loss that corrects from the behaviour policy to the trainer's policy before the update."""
    weight_cap: float | None = Field(default=None, gt=0)
    """Largest factor (`kpop`: largest divergence in nats); the method's own by default."""
    weight_floor: float | None = Field(default=None, ge=0)
    """Least factor: smaller ones are raised to it by the methods that truncate, and count as 0 for those that mask; the
    method's own by default."""
    rejections: list[RejectionConfig] = []
    """Bounds on divergences between trainer and engine; a token must pass all of them. They multiply the correction."""
    normalise_weights: bool = False
    """Divide the correction's factors by their mean over the step, so that it is 1: the mean over tokens or, where an
    answer has one factor, over answers; rejected tokens count in it. Where the ratio's denominator is `self`, this
    costs one more forward pass."""
    count_rejected: bool = True
    """Count rejected tokens (of `rejections` and `geometric_kept`) in the denominator of the aggregation. False: they
    leave it, so that the others weigh more; an answer that is rejected whole is no answer to it. Factors of 0 that are
    no rejection always count. Where the ratio's denominator is `self`, false costs one more forward pass."""
    diagnostics: bool = False
    """Add metrics of the mismatch: perplexities of trainer and engine, and chi-square divergences."""
    max_mismatch_nats: float | None = Field(default=None, gt=0)
    """Mean |trainer - engine| of a step's log-probabilities above which the run stops; unset: never."""

    def resolve_denominator(
        self, *, updates_per_rollout: int, is_stale: bool
    ) -> Literal["self", "recomputed", "recorded"]:
        """Resolve `auto`. Raises ValueError for `self` if the policy changes between rollouts."""
        if self.denominator == "self" and (updates_per_rollout > 1 or is_stale):
            raise ValueError(
                'learner.ratio.denominator = "self" fits one optimizer step per rollout of the newest policy; here are '
                f'{updates_per_rollout}{" on older answers" if is_stale else ""}; take "recomputed", "recorded" or '
                '"auto"'
            )
        denominator = self.denominator
        if denominator == "auto":
            denominator = "recorded" if is_stale else "self" if updates_per_rollout == 1 else "recomputed"
        if denominator == "recorded" and self.correction != "none":
            raise ValueError(
                f'learner.ratio.correction = "{self.correction}" corrects for the behaviour policy, and so does a '
                "ratio against recorded log-probabilities: twice is wrong. Set learner.ratio.denominator = "
                '"recomputed", or drop the correction'
            )
        return denominator

    def resolve_correction(self) -> CorrectionFactor | None:
        """The correction and the rejections of a config, as one factor; None for neither.

        Raises ValueError for a bound that the method does not have, and for a floor above the cap.
        """
        weight = _weight(self)
        return _product([*([] if weight is None else [weight]), *(bounds.mask() for bounds in self.rejections)])

    def resolve_step_correction(self) -> StepCorrection | None:
        """The correction and the rejections of a config whose tokens cannot be corrected one micro-batch after another;
        None where they can.

        Raises ValueError as `resolve_correction`, and for weights that are to be normalised, and rejected tokens that
        are not to count, where there are none.
        """
        weight, masks = _weight(self), [bounds.mask() for bounds in self.rejections]
        if self.normalise_weights and self.correction in ("none", *REJECTING_CORRECTIONS):
            raise ValueError(
                "learner.ratio.normalise_weights = true divides the weights of a correction by their mean, and "
                f'learner.ratio.correction = "{self.correction}" has no weights; choose another, as "truncated_is", or '
                "leave normalise_weights out"
            )
        rejects = bool(self.rejections) or self.correction in REJECTING_CORRECTIONS
        if not self.count_rejected and not rejects:
            raise ValueError(
                "learner.ratio.count_rejected = false takes rejected tokens out of the denominator, and nothing is "
                'rejected; add learner.ratio.rejections, or correction = "geometric_kept", or leave count_rejected out'
            )
        if self.count_rejected and not self.normalise_weights:
            return None
        if weight is not None and self.correction in REJECTING_CORRECTIONS:
            masks.insert(0, weight)
            weight = None
        if weight is not None and self.normalise_weights:
            weight = _normalised(weight, per_token=self.correction in TOKEN_CORRECTIONS)
        return StepCorrection(weight=weight, mask=_product(masks), count_rejected=self.count_rejected)

    def token_weight_cap(self) -> float | None:
        """The largest weight of a token's correction; None where no token is weighted by its own ratio."""
        if self.correction not in TOKEN_CORRECTIONS or self.correction == "kpop":
            return None
        if self.weight_cap is not None:
            return self.weight_cap
        method, _ = CORRECTIONS[self.correction]
        return float(inspect.signature(method).parameters["weight_cap"].default)

    def require_small_mismatch(self, metrics: Metrics) -> None:
        """Raises DivergedError when engine and trainer differ by more than the config allows."""
        nats, limit = metrics.get("mismatch/mean"), self.max_mismatch_nats
        if limit is None or nats is None or nats <= limit:
            return
        raise DivergedError(
            f"the trainer's log-probabilities are {nats:.3g} nats a token from the recorded ones, above "
            f"learner.ratio.max_mismatch_nats = {limit:g}: the behaviour policy is not the policy that is trained. "
            "Look at mismatch/* in the run's metrics; usual causes: an engine of lower precision, stale answers, "
            "weights that were not handed over."
        )


class RatioLearnerConfig(LearnerConfig):
    """AdamW, epochs and minibatches, and the importance ratio."""

    ratio: RatioConfig = RatioConfig()
    """Importance ratio: its denominator and correction."""


def _product(factors: Sequence[CorrectionFactor]) -> CorrectionFactor | None:
    """The product of `factors`; None for no factor."""
    if len(factors) < 2:
        return factors[0] if factors else None

    def factor(trainer: Tensor, behaviour: Tensor, sequence: Tensor) -> Tensor:
        product = factors[0](trainer, behaviour, sequence)
        for other in factors[1:]:
            product = product * other(trainer, behaviour, sequence)
        return product

    return factor


def _normalised(weight: CorrectionFactor, *, per_token: bool) -> CorrectionFactor:
    """`weight`, of mean 1 over the tokens that it is given, or over their answers."""

    def factor(trainer: Tensor, behaviour: Tensor, sequence: Tensor) -> Tensor:
        weights = weight(trainer, behaviour, sequence)
        if per_token:
            return mismatch.normalised_weight(weights)
        return mismatch.sequence_normalised_weight(weights, sequence)

    return factor


def _weight(config: RatioConfig) -> CorrectionFactor | None:
    if config.correction == "none":
        if config.weight_cap is not None or config.weight_floor is not None:
            raise ValueError(
                'learner.ratio.weight_cap and weight_floor are bounds of a learner.ratio.correction; it is "none"'
            )
        return None
    method, bounds = CORRECTIONS[config.correction]
    if config.weight_floor is not None and not bounds[0].endswith("floor"):
        raise ValueError(
            f'learner.ratio.correction = "{config.correction}" has no lower bound; leave out learner.ratio.weight_floor'
        )
    own = {bounds[-1]: config.weight_cap, bounds[0]: config.weight_floor if len(bounds) > 1 else config.weight_cap}
    factor = partial(method, **{name: value for name, value in own.items() if value is not None})
    _require_order(config, method, bounds)
    if config.correction in TOKEN_CORRECTIONS:
        return lambda trainer, behaviour, _sequence: factor(trainer, behaviour)
    return factor


def _require_order(config: RatioConfig, method: Callable[..., Tensor], bounds: tuple[str, ...]) -> None:
    """Raises ValueError for a floor above the cap, one of which may be the method's own."""
    if len(bounds) < 2:
        return
    own = inspect.signature(method).parameters
    floor, cap = (
        own[name].default if bound is None else bound
        for name, bound in zip(bounds, (config.weight_floor, config.weight_cap), strict=True)
    )
    if floor > cap:
        raise ValueError(
            f'learner.ratio.correction = "{config.correction}": weight_floor = {floor:g} is above weight_cap = {cap:g}'
            f"{' (a default)' if config.weight_floor is None or config.weight_cap is None else ''}; set both"
        )
