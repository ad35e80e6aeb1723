"""A policy's loss on tokens: the columns that an objective sees, how they are computed, and the mismatch of engine and
trainer.

Three policies are told apart: the behaviour policy (its log-probabilities were recorded by an engine), the policy at
the start of the update, and the one being stepped. The ratio is taken between the last and one of the others; the
difference between the first two is mismatch, measured before anything is clipped.

A policy's loss on tokens: what an objective may look at, what has to be found out for it, and how the recorded
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
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.core.reduction import ONE_PROCESS, Reduction, whole_batch
from hone.models.language.expert_config import LossBalance
from hone.models.language.token_logprobs import CHUNK_ELEMENTS, TopKTokens
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.mismatch import mismatch_diagnostics, with_mismatch_correction
from hone.objectives.terms import LossTerms
from hone.objectives.weights import PromptScheme, TermWeights, WeightingScheme
from hone.rewards.config import LearnableConfig
from hone.text.ratio import CorrectionFactor, StepCorrection
from hone.text.rows import (
    PrecomputedColumns,
    RowUnit,
    TokenBatch,
    TokenLayout,
    TokenRows,
    learnable_answers,
    learnable_flags,
)
from hone.text.update_trace import CLIPPED, UpdateTrace

TokenFactors = NDArray[np.floating] | NDArray[np.bool_]
"""`[N]` factor on the loss of each decision of an optimizer step, or whether it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """Data of n decisions for a loss; only `logp`, `entropy` and `top_k_logp` carry a gradient."""

    logp: Tensor
    """`[n]` nats, of the policy being stepped."""
    denominator_logp: Tensor
    """`[n]` nats, of the policy that the ratio is taken against."""
    behaviour_logp: Tensor
    """`[n]` nats, of the behaviour policy, as recorded."""
    old_logp: Tensor
    """`[n]` nats, of the trainer's policy when the update began, where it was asked; otherwise `logp` as data."""
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
    """`[n, K]` nats, of the policy being stepped, for the tokens in `old_top_k`."""
    old_top_k: TopKTokens | None
    """`[n, K]` of the policy when the update began, or of the policy that `TokenLossSpec.top_k_question` asks."""
    token_factor: Tensor | None
    """`[n]` what `TokenLossSpec.select_tokens` returned."""
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
    scheme: WeightingScheme | PromptScheme
    proportional_to_advantage: bool = False
    """The loss is proportional to the advantage, so that sequences with advantage 0 need not be computed."""
    needs_reference: bool = False
    """It compares with the policy as it was at the start of the run: a frozen copy is kept."""
    needs_entropy: bool = False
    """It looks at entropies."""
    top_k: int = 0
    """It looks at this many of the likeliest tokens."""
    top_k_question: Callable[[TokenPolicy, TokenBatch], tuple[Tensor, Tensor]] | None = None
    """Policy as the update begins -> numbers of those tokens `[n, K]` and the log-probabilities that they are compared
    with, nats; None: the policy's own likeliest tokens."""
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
    """A loss ready to be stepped: the policy is asked for log-probabilities here, and nowhere else."""

    loss: TokenLossSpec
    denominator: Literal["self", "recomputed", "recorded"]
    micro_batch_tokens: int
    reference: TokenPolicy | None = None
    correction: CorrectionFactor | None = None
    step_correction: StepCorrection | None = None
    """Takes the place of `correction`, where that needs all tokens of the step."""
    weight_cap: float | None = None
    """Largest weight of a token's correction; the share of tokens beyond it is measured."""
    diagnostics: bool = False
    """Measure perplexities and chi-square divergences of the mismatch, too."""
    learnable: LearnableConfig = field(default_factory=LearnableConfig)
    """Which answers have a part in the loss."""
    trace: UpdateTrace | None = None
    """Takes in the figures of each token as they are computed."""

    def layout(self, layout: TokenLayout, policy: TokenPolicy) -> Callable[[Episodes, Credits], TokenRows]:
        """Rows of a step's episodes, with what has to be known before the first update."""
        if policy.decoder.config.experts is not None:
            # With or without replay, and with every sequence where a loss of the experts' load counts them all.
            training = policy.expert_training
            skips = layout.skip_zero_advantage and not isinstance(training.balance, LossBalance)
            layout = replace(layout, replay_routing=training.replay, skip_zero_advantage=skips)

        def lay(episodes: Episodes, credits: Credits) -> TokenRows:
            _require_draws(episodes)
            if self.trace is not None:
                marks = learnable_flags(episodes, credits, self.learnable)
                self.trace.begin(episodes.decisions, None if marks.all() else np.flatnonzero(marks[episodes.owner]))
            rows = layout(*learnable_answers(episodes, credits, self.learnable))
            return replace(rows, precomputed=self._precompute(rows, policy))

        return lay

    def objective(self, policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        view = self.token_view(policy, batch)
        terms, factor = self.loss.objective(view), batch.correction
        if factor is None and self.correction is not None:
            factor = self.correction(view.old_logp, view.behaviour_logp, view.sequence)
        if factor is not None:
            terms = with_mismatch_correction(terms, factor)
        trace, place = self.trace, batch.place
        if trace is not None:
            trace.see(place, view.logp, view.denominator_logp, old_logp=batch.old_logp, entropy=view.entropy)

        def compute_metrics() -> Mapping[str, Tensor]:
            metrics = {**terms.metrics, **self._measure_mismatch(view)}
            if trace is not None and CLIPPED in metrics:
                trace.see_clipped(place, metrics[CLIPPED])
            return metrics

        return replace(terms, compute_metrics=compute_metrics)

    def token_view(self, policy: TokenPolicy, batch: TokenBatch) -> TokenView:
        look = policy.token_logprobs(
            batch.replayed,
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

    def _measure_mismatch(self, view: TokenView) -> Mapping[str, Tensor]:
        metrics = mismatch_metrics(view, weight_cap=self.weight_cap)
        if not self.diagnostics:
            return metrics
        return {**metrics, **mismatch_diagnostics(view.old_logp, view.behaviour_logp, view.sequence)}

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
        budget, known = self.micro_batch_tokens, rows.precomputed
        if self.reference is not None:
            (anchor,) = rows.evaluate(partial(chosen_logp, self.reference), budget)
            known = replace(known, ref_logp=anchor)
        if self.step_correction is not None:
            known = self._correct_step(self.step_correction, rows, policy, known)
        elif self.denominator == "recomputed" or self.loss.needs_old_logp:
            (proximal,) = rows.evaluate(partial(own_logp, policy), budget)
            known = replace(known, old_logp=proximal)
        if self.loss.top_k:
            named = self.loss.top_k_question
            question = partial(likeliest_tokens, policy, self.loss.top_k) if named is None else partial(named, policy)
            ids, logp = rows.evaluate(question, budget)
            known = replace(known, top_k_ids=ids.astype(np.int64), top_k_logp=logp)
        return known

    def _correct_step(
        self, correction: StepCorrection, rows: TokenRows, policy: TokenPolicy, known: PrecomputedColumns
    ) -> PrecomputedColumns:
        """`known` with the correction of all tokens, also of those without an advantage: they count in its means."""
        every = replace(rows, layout=replace(rows.layout, skip_zero_advantage=False))
        (proximal,) = every.evaluate(partial(own_logp, policy), self.micro_batch_tokens)
        columns = (proximal, rows.episodes.logp, rows.episodes.owner)
        factor, counted = correction.columns(*(torch.from_numpy(np.ascontiguousarray(one)) for one in columns))
        keeps_old = self.denominator == "recomputed" or self.loss.needs_old_logp
        return replace(
            known,
            old_logp=proximal if keeps_old else None,
            correction=factor.numpy(),
            counted=None if counted is None else counted.numpy(),
        )


def _require_draws(episodes: Episodes) -> None:
    """Raise DataError for answers without log-probabilities: a policy gradient is an expectation over the policy's own
    draws, and an answer that a search selected is none."""
    unknown = np.bincount(episodes.owner, weights=np.isnan(episodes.logp), minlength=len(episodes)) > 0
    if unknown.any():
        raise DataError(
            f"{int(unknown.sum())} of {len(episodes)} answers have no log-probabilities: they were selected by a "
            'search, or written by somebody else, and are no draws of the policy; imitate them (recipe = "sft"), or '
            "sample without a search"
        )


def chosen_logp(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor]:
    """`[n]` nats of what was chosen, by any policy: a question for `TokenRows.evaluate`."""
    return (policy.token_logprobs(batch.packed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp,)


def own_logp(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor]:
    """`chosen_logp` of the policy that chose: its tokens take the routes that were recorded with them."""
    return (policy.token_logprobs(batch.replayed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp,)


def _logp_and_entropy(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    asked = (batch.replayed, batch.at, batch.chosen)
    look = policy.token_logprobs(*asked, entropy=True, sampling_mask=batch.sampling_mask)
    assert look.entropy is not None
    return look.logp, look.entropy


def likeliest_tokens(policy: TokenPolicy, count: int, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Numbers and log-probabilities `[n, count]` of the most probable tokens: a question for `TokenRows.evaluate`."""
    top_k = policy.top_k_tokens(batch.replayed, batch.at, count)
    return top_k.ids, top_k.logp


def collision_probability(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor]:
    """`[n]` sum over the vocabulary of pi(v)^2, as many rows at a time as a chunk of logits has room for: a question
    for `TokenRows.evaluate`.
    """
    hidden = policy.decoder.hidden(batch.packed)[batch.at]
    pieces = [
        policy.decoder.top_k_tokens(
            part, policy.vocab_size_used, policy.temperature, vocab_size_used=policy.vocab_size_used
        )
        for part in hidden.split(max(16, CHUNK_ELEMENTS // policy.vocab_size_used))
    ]
    return (torch.cat([part.logp.exp().square().sum(dim=1) for part in pieces]),)


def mismatch_metrics(view: TokenView, *, weight_cap: float | None = None) -> Mapping[str, Tensor]:
    """Distance of the trainer's policy before the update from the behaviour policy, before any clipping; `[n]` each.

    |difference| in nats (mean and largest), the k3 estimate of KL(behaviour || trainer), exp(d) - 1 - d, the shares of
    ratios above 2 and above `weight_cap`, and the ratio itself, of which the learner reports the effective sample size
    (sum w)^2 / (n sum w^2): 1 when nothing has to be corrected.
    """
    gap = (view.old_logp - view.behaviour_logp).double()
    weight = gap.clamp(max=20.0).exp()
    size = gap.abs()
    metrics = {
        "mismatch/mean": size,
        "mismatch/value_max": size,
        "mismatch/k3_nats": torch.expm1(gap.clamp(max=20.0)) - gap.clamp(max=20.0),
        "mismatch/ratio_above_2": (weight > 2.0).to(gap.dtype),
        "mismatch/ratio_ess": weight,
    }
    if weight_cap is not None:
        metrics["mismatch/ratio_above_cap"] = (weight > weight_cap).to(gap.dtype)
    return metrics


# ------------------------------------------------------------------------------------------------------------ imitation


def token_nll(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """-log pi of each imitated token, in nats."""
    now = policy.token_logprobs(batch.packed, batch.at, batch.chosen)
    return LossTerms(loss=-batch.advantage * now.logp, compute_metrics=lambda: {"policy/nll_nats": -now.logp.detach()})
