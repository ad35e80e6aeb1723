"""Losses on whole answers: log-probabilities summed per answer inside the micro-batch, for pairs and single answers.

An answer's label stands where a token's advantage does (`credit.pairs`): 1 for a chosen answer, -1 for a rejected one,
0 for one without a say. The two answers of a pair are a group, which no micro-batch, minibatch or rank splits; the
prompt that they share is computed once. A pair's (or an answer's) weight is fixed over the whole optimizer step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits
from hone.core.episodes import Episodes, ScoreStatus, concatenate
from hone.core.reduction import ONE_PROCESS, Reduction, whole_batch
from hone.core.state import State
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.batchwide import RunningShift
from hone.objectives.implicit import length_desensitised
from hone.objectives.ratios import sum_by_sequence
from hone.objectives.terms import LossTerms, Metrics
from hone.objectives.weights import TermWeights, sequence_sum
from hone.text.answer_data import answer_episodes
from hone.text.loss import chosen_logp, collision_probability
from hone.text.rows import PrecomputedColumns, TokenBatch, TokenLayout, TokenRows
from hone.text.tasks.scored_rows import AnswerTokens, row_answer
from hone.text.update_trace import UpdateTrace

Floats: TypeAlias = NDArray[np.floating]
AnswerScore: TypeAlias = "Callable[[AnswerView], Tensor]"
"""Answers -> implicit reward of each `[A]`, in nats."""
WEIGHT = "answers"
"""Name of the weights of pairs, or of single answers, among a batch's `term_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """Columns of A whole answers for a loss; only `logp` carries a gradient."""

    logp: Tensor
    """`[A]` nats: sum of the tokens' log-probabilities under the policy being stepped."""
    ref_logp: Tensor | None
    """`[A]` nats: the same sum under the reference policy."""
    length: Tensor
    """`[A]` tokens that were summed."""
    label: Tensor
    """`[A]` 1: chosen or desirable; -1: rejected or undesirable; 0: no label."""
    statistic: Tensor | None = None
    """`[A]` what `AnswerLossSpec.statistic` found over the whole optimizer step."""
    alignment: Tensor | None = None
    """`[A]` nats: mean over the tokens of log p(token) - log sum_v p(v)^2 of the policy being stepped, data."""

    def where(self, flags: Tensor) -> "AnswerView":
        """The answers of `flags` `[A]`, in their order."""
        return AnswerView(
            logp=self.logp[flags],
            ref_logp=None if self.ref_logp is None else self.ref_logp[flags],
            length=self.length[flags],
            label=self.label[flags],
            statistic=None if self.statistic is None else self.statistic[flags],
            alignment=None if self.alignment is None else self.alignment[flags],
        )

    def pairs(self) -> "tuple[AnswerView, AnswerView]":
        """Chosen and rejected answers `[P]`, pair by pair."""
        return self.where(self.label > 0), self.where(self.label < 0)

    def log_ratio(self) -> Tensor:
        """`[A]` nats: log pi / pi_ref of each answer, or log pi where there is no reference."""
        return self.logp if self.ref_logp is None else self.logp - self.ref_logp


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLossSpec:
    """One loss on whole answers: how it is computed, and what it needs."""

    objective: Callable[[AnswerView], LossTerms]
    """Answers of a micro-batch -> one term for each pair, or for each labelled answer."""
    unit: Literal["pair", "answer"] = "pair"
    """What a term of the loss stands for; every one has the same weight: 1 / their number in the optimizer step."""
    needs_reference: bool = True
    """It compares with a reference policy: the log's column, or a frozen copy."""
    needs_alignment: bool = False
    """It looks at `AnswerView.alignment`: one more forward pass of each micro-batch."""
    excess_weight: float = 1.0
    """Weight of the tokens of a pair's longer answer beyond the length of the shorter one (LD-DPO's alpha)."""
    statistic: Callable[[AnswerView], Tensor] | None = None
    """All answers of an optimizer step, as data -> `[A]`, computed before it is split into micro-batches. Costs a
    forward pass per optimizer step."""
    running: "RunningShiftStatistic | None" = None
    """A statistic that goes on from step to step: part of a run's state."""
    needs_unlabelled: bool = False
    """`statistic` looks at answers without a label too; they are left out of the gradient."""


@dataclass
class RunningShiftStatistic:
    """BCO's shift as a statistic: the mean implicit reward of all labelled answers so far, those of this step included.

    It moves on when the optimizer step has been taken (`commit`), so that looking at a batch twice changes nothing.
    """

    score: AnswerScore
    shift: RunningShift = field(default_factory=RunningShift)
    pending: RunningShift | None = None
    """The shift with the answers of the step under way."""

    def __call__(self, view: AnswerView) -> Tensor:
        known = torch.where(view.label != 0, self.score(view), torch.nan)
        self.pending = replace(self.shift)
        return torch.from_numpy(self.pending.update(known.numpy()))

    def commit(self, _policy: TokenPolicy) -> None:
        """Take the answers of the step for good."""
        self.shift, self.pending = self.pending or self.shift, None

    def state(self) -> State:
        """The mean and its number of answers, for a checkpoint."""
        return self.shift.state()

    def restore(self, state: State) -> None:
        """Load a state that `state` returned."""
        self.shift.restore(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLoss:
    """A loss on whole answers, ready to be stepped."""

    loss: AnswerLossSpec
    micro_batch_tokens: int
    reference: TokenPolicy | None = None
    """Asked at every step, where the episodes bring no column of it."""
    trace: UpdateTrace | None = None
    """Takes in the log-probabilities of each token as they are computed."""

    def layout(self, layout: TokenLayout) -> Callable[[Episodes, Credits], TokenRows]:
        """Rows of a step's episodes, of which a group is never split, with the reference's log-probabilities."""
        per: Literal["group", "sequence"] = "group" if self.loss.unit == "pair" else "sequence"
        weights = {WEIGHT: TermWeights(scheme=sequence_sum, per=per)}
        own = replace(layout, scheme=sequence_sum, unit="group", term_weights=weights, skip_zero_advantage=False)

        def lay(episodes: Episodes, credits: Credits) -> TokenRows:
            advantage, decisions, places = credits.advantage, episodes.decisions, None
            if not self.loss.needs_unlabelled:
                kept = np.flatnonzero(np.bincount(episodes.owner, weights=np.abs(advantage), minlength=len(episodes)))
                places = np.flatnonzero(np.isin(episodes.owner, kept))
                episodes, advantage = episodes.take(kept), advantage[places]
            if self.trace is not None:
                self.trace.begin(decisions, places)
            # As if nothing had been cut off in sampling: answers are compared under whole distributions.
            episodes = replace(episodes, seen=replace(episodes.transcript, kept=None))
            rows = own(episodes, replace(credits, advantage=advantage))
            return replace(rows, precomputed=self._precompute(rows))

        return lay

    def objective(self, policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        """The loss of a micro-batch, one term per pair (or labelled answer), with its own weights."""
        view = self.answer_view(policy, batch)
        terms, weight = self.loss.objective(view), batch.term_weights[WEIGHT]
        if self.loss.unit == "answer":
            weight = weight[view.label != 0]
        return replace(terms, weight=weight, compute_metrics=lambda: {**terms.metrics, **answer_metrics(view)})

    def answer_view(self, policy: TokenPolicy, batch: TokenBatch) -> AnswerView:
        """Answers of a micro-batch: one pass of the policy, summed per answer."""
        logp = policy.token_logprobs(batch.packed, batch.at, batch.chosen).logp
        assert batch.group is not None
        if self.trace is not None:
            compared = logp if batch.ref_logp is None else batch.ref_logp
            self.trace.see(batch.place, logp, compared, old_logp=None, entropy=None)
        view = self._summed(logp, batch.ref_logp, batch.sequence, batch.advantage, batch.group)
        if batch.token_factor is not None:
            view = replace(view, statistic=_first_of_each(batch.token_factor, batch.sequence, len(view.length)))
        if self.loss.needs_alignment:
            with torch.no_grad():
                (collision,) = collision_probability(policy, batch)
                aligned = sum_by_sequence(logp - collision.log(), batch.sequence, count=len(view.length))
            view = replace(view, alignment=aligned / view.length)
        return view

    def prepare(
        self, policy: TokenPolicy, rows: TokenRows, _update: int, reduction: Reduction = ONE_PROCESS
    ) -> TokenRows:
        """Rows of one optimizer step with the statistic over all of their answers, without those that have no label."""
        statistic = self.loss.statistic
        if statistic is None:
            return rows
        logp = self._chosen_logp(policy, rows)

        def whole(logp: Floats, ref_logp: Floats, length: Floats, label: Floats) -> Floats:
            columns = [torch.from_numpy(np.ascontiguousarray(one)) for one in (logp, ref_logp, length, label)]
            names = ("logp", "ref_logp", "length", "label")
            return statistic(AnswerView(**dict(zip(names, columns, strict=True)))).numpy()

        statistics = whole_batch(whole, reduction)(*self._answer_columns(rows, logp))
        factor = np.repeat(statistics, rows.episodes.lengths).astype(logp.dtype)
        rows = replace(rows, precomputed=replace(rows.precomputed, token_factor=factor))
        return rows.without_zero_advantage() if self.loss.needs_unlabelled else rows

    def _answer_columns(self, rows: TokenRows, logp: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Sums per answer `[E]`: log-probability of policy and reference (NaN without one), length, label."""
        ref, owner = rows.precomputed.ref_logp, rows.episodes.owner
        group = np.repeat(np.arange(len(rows)), np.diff(rows.unit_sequences))
        view = self._summed(
            torch.from_numpy(logp.astype(np.float64)),
            None if ref is None else torch.from_numpy(ref.astype(np.float64)),
            torch.from_numpy(owner),
            torch.from_numpy(rows.advantage.astype(np.float64)),
            torch.from_numpy(group),
        )
        sums = view.logp.new_full(view.logp.shape, torch.nan) if view.ref_logp is None else view.ref_logp
        return view.logp.numpy(), sums.numpy(), view.length.double().numpy(), view.label.numpy()

    def _summed(
        self, logp: Tensor, ref_logp: Tensor | None, sequence: Tensor, advantage: Tensor, group: Tensor
    ) -> AnswerView:
        count = len(group)
        length = torch.bincount(sequence, minlength=count)
        own = partial(sum_by_sequence, sequence=sequence, count=count)
        if self.loss.excess_weight != 1.0:
            shared = torch.full_like(length, 1 << 62).scatter_reduce(0, group, length, "amin")[group]
            own = partial(length_desensitised, sequence=sequence, shared_length=shared, alpha=self.loss.excess_weight)
        return AnswerView(
            logp=own(logp),
            ref_logp=None if ref_logp is None else own(ref_logp),
            length=length,
            label=_first_of_each(advantage, sequence, count),
        )

    def _chosen_logp(self, policy: TokenPolicy, rows: TokenRows) -> Floats:
        """`[N]` nats of every token; a rank, or a step without a pair, may have none."""
        if len(rows) == 0:
            return np.zeros(0, np.float32)
        (logp,) = rows.evaluate(partial(chosen_logp, policy), self.micro_batch_tokens)
        return logp.astype(np.promote_types(logp.dtype, np.float32))

    def _precompute(self, rows: TokenRows) -> PrecomputedColumns:
        known = PrecomputedColumns(counted=rows.advantage != 0, place=rows.precomputed.place)
        if not self.loss.needs_reference:
            return known
        if self.reference is not None:
            return replace(known, ref_logp=self._chosen_logp(self.reference, rows))
        assert rows.episodes.ref_logp is not None, "neither a reference policy nor a column of one"
        return replace(known, ref_logp=rows.episodes.ref_logp)


def answer_metrics(view: AnswerView) -> Metrics:
    """Metrics of every loss on answers, in nats per answer: log pi / pi_ref (log pi without a reference) of the chosen
    and of the rejected answers, and, for pairs, their difference."""
    chosen, rejected = (one.log_ratio().detach() for one in view.pairs())
    metrics = {"preference/chosen_nats": chosen, "preference/rejected_nats": rejected}
    return metrics if len(chosen) != len(rejected) else {**metrics, "preference/margin_nats": chosen - rejected}


def _first_of_each(values: Tensor, sequence: Tensor, count: int) -> Tensor:
    """`[count]`: the value of each sequence, which is the same at all of its decisions."""
    return values.new_zeros(count).index_copy(0, sequence, values)


# --------------------------------------------------------------------------------------------------- mismatched answers


def with_mismatched_answers(log: Episodes, context: int) -> Episodes:
    """The log, in which each answer's group has the next answer of another prompt as well, to this answer's prompt.

    Such an answer has no score. It is cut where it would not fit in the `context`; where all prompts are the same,
    there is none.
    """
    seen, count = log.transcript, len(log)
    ends = seen.at[log.offsets[:-1]]
    prompts = [seen.tokens[begin:end] for begin, end in zip(seen.offsets[:-1], ends, strict=True)]
    answers = [seen.tokens[begin:end] for begin, end in zip(ends, seen.offsets[1:], strict=True)]
    places = np.split(seen.at - np.repeat(ends, log.lengths), log.offsets[1:-1])
    names = np.unique([prompt.tobytes() for prompt in prompts], return_inverse=True)[1]
    nexts = _next_of_another(names)
    kept = np.flatnonzero((nexts >= 0) & (np.array([len(prompt) for prompt in prompts]) < context))
    if not len(kept):
        return log
    pairs: list[AnswerTokens] = []
    for row in kept.tolist():
        room, of = context - len(prompts[row]), nexts[row]
        at = places[of][places[of] < room] + len(prompts[row])
        pairs.append(row_answer(np.concatenate([prompts[row], answers[of][:room]]), at))
    others = answer_episodes(pairs, scores=[np.nan] * len(kept), groups=log.group[kept].tolist())
    others = replace(
        others,
        reward=np.zeros(others.decisions, np.float32),
        status=np.full(len(kept), ScoreStatus.UNSCORABLE, np.uint8),
    )
    whole = concatenate([log, others])
    order = np.argsort(np.append(np.arange(count), kept + 0.5), kind="stable")
    return whole.take(order)


def _next_of_another(names: np.ndarray) -> np.ndarray:
    """`[E]`: the next row, from the end on from the first, with another name; -1 where all have one name."""
    count = len(names)
    if len(set(names.tolist())) < 2:
        return np.full(count, -1)
    result = np.empty(count, np.int64)
    following = 0
    twice = np.append(names, names)
    for row in reversed(range(2 * count)):
        if row + 1 < 2 * count and twice[row + 1] != twice[row]:
            following = (row + 1) % count
        if row < count:
            result[row] = following
    return result
