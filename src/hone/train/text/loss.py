"""A policy's loss on tokens: what an objective may look at, what has to be found out for it, and how the recorded
log-probabilities are held against the trainer's own.

Three policies are told apart: the one that acted (its log-probabilities were recorded by an engine), the one at the
start of the update, and the one being stepped. The loss's ratio is taken between the last and `then`; what lies between
the first two is mismatch, measured before anything is clipped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.ragged import offsets_of
from hone.core.reduction import ONE_PROCESS, Reduction, whole_batch
from hone.models.language.token_logprobs import TopKTokens
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.mismatch import (
    geometric_rejection,
    geometric_truncated_is,
    icepop,
    kpop,
    masked_is,
    sequence_masked_is,
    sequence_truncated_is,
    truncated_is,
    with_mismatch_correction,
)
from hone.objectives.terms import LossTerms
from hone.objectives.weights import TermWeights, WeightingScheme
from hone.train.learner.config import LearnerConfig
from hone.train.text.rows import PrecomputedColumns, RowUnit, TokenBatch, TokenLayout, TokenRows

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
TokenFactors = NDArray[np.floating] | NDArray[np.bool_]
"""`[N]` factor on the loss of each decision of an optimizer step, or whether it is kept."""
CorrectionFactor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-probabilities of trainer and behaviour policy `[n]`, and the tokens' sequences `[n]` -> factor `[n]`."""

CORRECTIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "truncated_is": (truncated_is, ("weight_cap",)),
    "masked_is": (masked_is, ("weight_floor", "weight_cap")),
    "icepop": (icepop, ("weight_floor", "weight_cap")),
    "kpop": (kpop, ("most_nats",)),
    "sequence_truncated_is": (sequence_truncated_is, ("weight_cap",)),
    "sequence_masked_is": (sequence_masked_is, ("weight_floor", "weight_cap")),
    "geometric_truncated_is": (geometric_truncated_is, ("weight_cap",)),
    "geometric_kept": (geometric_rejection, ("ratio_floor", "ratio_cap")),
}
"""Factor of each correction, and its bounds: the floor, where it has one, and the cap."""
TOKEN_CORRECTIONS = ("truncated_is", "masked_is", "icepop", "kpop")
"""Those that look at each token by itself."""


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
    """Factors below this count as 0, for the methods that mask; the method's own by default."""
    max_mismatch_nats: float | None = Field(default=None, gt=0)
    """Mean |trainer - engine| of a step's log-probabilities above which the run stops; unset: never."""


class RatioLearnerConfig(LearnerConfig):
    """AdamW, epochs and minibatches, and the importance ratio."""

    ratio: RatioConfig = RatioConfig()
    """Importance ratio: its denominator and correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """Data of n decisions for a loss; only `now`, `entropy` and `among` carry a gradient."""

    logp: Tensor
    """`[n]` nats, of the policy being stepped."""
    denominator_logp: Tensor
    """`[n]` nats, of the policy that the ratio is taken against."""
    behaviour_logp: Tensor
    """`[n]` nats, of the behaviour policy, as recorded."""
    old_logp: Tensor
    """`[n]` nats, of the trainer's policy when the update began, where it was asked; otherwise `now` as data."""
    advantage: Tensor
    """`[n]`."""
    chosen: Tensor
    """`[n]` int64: the tokens that were chosen."""
    sequence: Tensor
    """`[n]` number of the decision's sequence among those of this micro-batch, which holds whole sequences."""
    entropy: Tensor | None
    """`[n]` nats."""
    ref_logp: Tensor | None
    """`[n]` nats, of the reference policy."""
    top_k_logp: Tensor | None
    """`[n, K]` nats, of the policy being stepped, for the tokens in `top_k_tokens`."""
    old_top_k: TopKTokens | None
    """`[n, K]` of the policy when the update began."""
    token_factor: Tensor | None
    """`[n]` what `Loss.select` returned."""
    group: Tensor | None = None
    """`[sequences]` group of each sequence of this micro-batch, which holds whole groups; None: it may not."""
    term_weights: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Weights of the loss terms that have their own, by name: see `TokenLossSpec.term_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """All N decisions of one optimizer step, as data: what a selection over the whole batch may look at."""

    logp: NDArray[np.floating]
    denominator_logp: NDArray[np.floating]
    advantage: NDArray[np.floating]
    entropy: NDArray[np.floating]
    offsets: NDArray[np.int64]
    """`[E+1]` decisions of each sequence."""
    update: int
    """Number of the optimizer step: keys random choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossSpec:
    """One loss on tokens: how it is computed, aggregated, and what it needs."""

    objective: Callable[[TokenView], LossTerms]
    scheme: WeightingScheme
    proportional_to_advantage: bool = False
    """The loss is proportional to the advantage, so that sequences with advantage 0 need not be computed."""
    needs_reference: bool = False
    """It compares with the policy as it was at the start of the run: a frozen copy is kept."""
    needs_entropy: bool = False
    """It looks at entropies."""
    top_k: int = 0
    """It looks at this many of the likeliest tokens."""
    needs_old_logp: bool = False
    """It looks at the policy as it was when the update began, whatever its ratio is taken against."""
    select_tokens: Callable[[StepColumns], TokenFactors] | None = None
    """Selects among all decisions of an optimizer step, before it is split into micro-batches. Costs a forward pass per
    optimizer step."""
    unit: RowUnit = "sample"
    """What is never split: a sequence, or a whole group of them."""
    term_weights: Mapping[str, TermWeights] = field(default_factory=dict[str, TermWeights])
    """Weights of loss terms that are not aggregated by `scheme`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A `Loss`, ready to be stepped: questions are put to the policy here, and nowhere else."""

    loss: TokenLossSpec
    denominator: Literal["self", "recomputed", "recorded"]
    micro_batch_tokens: int
    reference: TokenPolicy | None = None
    correction: CorrectionFactor | None = None

    def layout(self, layout: TokenLayout, policy: TokenPolicy) -> Callable[[Episodes, Credits], TokenRows]:
        """Rows of a step's episodes, with what has to be known before the first update."""

        def lay(episodes: Episodes, credits: Credits) -> TokenRows:
            rows = layout(episodes, credits)
            return replace(rows, precomputed=self._precompute(rows, policy))

        return lay

    def objective(self, policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        view = self.token_view(policy, batch)
        terms = self.loss.objective(view)
        if self.correction is not None:
            terms = with_mismatch_correction(terms, self.correction(view.old_logp, view.behaviour_logp, view.sequence))
        return replace(terms, compute_metrics=lambda: {**terms.metrics, **mismatch_metrics(view)})

    def token_view(self, policy: TokenPolicy, batch: TokenBatch) -> TokenView:
        look = policy.token_logprobs(
            batch.packed,
            batch.at,
            batch.chosen,
            entropy=self.loss.needs_entropy,
            extra_tokens=None if batch.old_top_k is None else batch.old_top_k.ids,
            sampling_mask=batch.sampling_mask,
        )
        start = look.logp.detach() if batch.old_logp is None else batch.old_logp
        return TokenView(
            logp=look.logp,
            denominator_logp=batch.behaviour_logp if self.denominator == "recorded" else start,
            behaviour_logp=batch.behaviour_logp,
            old_logp=start,
            advantage=batch.advantage,
            chosen=batch.chosen,
            sequence=batch.sequence,
            entropy=look.entropy,
            ref_logp=batch.ref_logp,
            top_k_logp=look.extra_logp,
            old_top_k=batch.old_top_k,
            token_factor=batch.token_factor,
            group=batch.group,
            term_weights=batch.term_weights,
        )

    def select_tokens(
        self, policy: TokenPolicy, rows: TokenRows, update: int, reduction: Reduction = ONE_PROCESS
    ) -> TokenRows:
        """Rows of one optimizer step with the factors that `TokenLossSpec.select_tokens` gives them."""
        choose = self.loss.select_tokens
        if choose is None:
            return rows
        episodes = rows.episodes
        now, entropy = rows.evaluate(partial(_logp_and_entropy, policy), self.micro_batch_tokens)
        then = rows.precomputed.old_logp
        if self.denominator == "recorded":
            then = episodes.logp

        def select(*columns: NDArray[Any]) -> TokenFactors:
            logp, denominator_logp, advantage, entropy, lengths = columns
            return choose(
                StepColumns(
                    logp=logp.astype(np.float64),
                    denominator_logp=denominator_logp.astype(np.float64),
                    advantage=advantage,
                    entropy=entropy.astype(np.float64),
                    offsets=offsets_of(lengths),
                    update=update,
                )
            )

        columns = (now, now if then is None else then, rows.advantage, entropy, episodes.lengths)
        factor = whole_batch(select, reduction)(*columns)
        return replace(rows, precomputed=replace(rows.precomputed, token_factor=factor.astype(now.dtype)))

    def _precompute(self, rows: TokenRows, policy: TokenPolicy) -> PrecomputedColumns:
        budget, known = self.micro_batch_tokens, PrecomputedColumns()
        if self.reference is not None:
            (anchor,) = rows.evaluate(partial(chosen_logp, self.reference), budget)
            known = replace(known, ref_logp=anchor)
        if self.denominator == "recomputed" or self.loss.needs_old_logp:
            (proximal,) = rows.evaluate(partial(chosen_logp, policy), budget)
            known = replace(known, old_logp=proximal)
        if self.loss.top_k:
            ids, logp = rows.evaluate(partial(likeliest_tokens, policy, self.loss.top_k), budget)
            known = replace(known, top_k_ids=ids.astype(np.int64), top_k_logp=logp)
        return known


def chosen_logp(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor]:
    """`[n]` nats of what was chosen: a question for `TokenRows.evaluate`."""
    return (policy.token_logprobs(batch.packed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp,)


def _logp_and_entropy(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    look = policy.token_logprobs(batch.packed, batch.at, batch.chosen, entropy=True, sampling_mask=batch.sampling_mask)
    assert look.entropy is not None
    return look.logp, look.entropy


def likeliest_tokens(policy: TokenPolicy, count: int, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Numbers and log-probabilities `[n, count]` of the most probable tokens: a question for `TokenRows.evaluate`."""
    found = policy.top_k_tokens(batch.packed, batch.at, count)
    return found.ids, found.logp


def resolve_denominator(
    config: RatioConfig, *, updates_per_rollout: int, is_stale: bool
) -> Literal["self", "recomputed", "recorded"]:
    """Resolve `auto`. Raises ValueError for `self` if the policy changes between rollouts."""
    if config.denominator == "self" and (updates_per_rollout > 1 or is_stale):
        raise ValueError(
            'learner.ratio.denominator = "self" fits one optimizer step per rollout of the newest policy; here are '
            f'{updates_per_rollout}{" on older answers" if is_stale else ""}; take "recomputed", "recorded" or "auto"'
        )
    found = config.denominator
    if found == "auto":
        found = "recorded" if is_stale else "self" if updates_per_rollout == 1 else "recomputed"
    if found == "recorded" and config.correction != "none":
        raise ValueError(
            f'learner.ratio.correction = "{config.correction}" corrects for the behaviour policy, and so does a ratio '
            'against recorded log-probabilities: twice is wrong. Set learner.ratio.denominator = "recomputed", or '
            "drop the correction"
        )
    return found


def resolve_correction(config: RatioConfig) -> CorrectionFactor | None:
    """The name in a config, resolved; raises ValueError for a bound that the method does not have."""
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
    given = {bounds[-1]: config.weight_cap, bounds[0]: config.weight_floor if len(bounds) > 1 else config.weight_cap}
    factor = partial(method, **{name: value for name, value in given.items() if value is not None})
    if config.correction in TOKEN_CORRECTIONS:
        return lambda trainer, acted, _sequence: factor(trainer, acted)
    return factor


def mismatch_metrics(view: TokenView) -> Mapping[str, Tensor]:
    """Distance of the trainer's policy before the update from the behaviour policy, before any clipping; `[n]` each.

    |difference| in nats (mean and largest), the share of ratios above 2, and the ratio itself, of which the learner
    reports the effective sample size (sum w)^2 / (n sum w^2): 1 when nothing has to be corrected.
    """
    gap = (view.old_logp - view.behaviour_logp).double()
    weight = gap.clamp(max=20.0).exp()
    size = gap.abs()
    return {
        "mismatch/mean": size,
        "mismatch/value_max": size,
        "mismatch/ratio_above_2": (weight > 2.0).to(gap.dtype),
        "mismatch/ratio_ess": weight,
    }


def require_small_mismatch(config: RatioConfig, metrics: Metrics) -> None:
    """Raises DivergedError when engine and trainer differ by more than the config allows."""
    found, limit = metrics.get("mismatch/mean"), config.max_mismatch_nats
    if limit is None or found is None or found <= limit:
        return
    raise DivergedError(
        f"the trainer's log-probabilities are {found:.3g} nats a token from the recorded ones, above "
        f"learner.ratio.max_mismatch_nats = {limit:g}: the behaviour policy is not the policy that is trained. Look at "
        "mismatch/* in the run's metrics; usual causes: an engine of lower precision, stale answers, weights that were "
        "not handed over."
    )
