"""How episodes of tokens are laid out for a gradient, and the micro-batches of tensors that come of it.

A row is a few sequences that begin alike: what they share (a question, a system prompt) is computed once as the row's
trunk, and each sequence branches off it, so a group of eight answers to a long question costs little more than one.
A minibatch, a micro-batch or a rank takes whole units: single rows or, where a loss compares the sequences of a group,
all rows of a group.
No padding is laid out, and only positions at which the policy decided are ever turned into log-probabilities, so that
nothing a prompt or a tool said can reach a loss.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits
from hone.core.episodes import Episodes, is_recorded, routing_coverage
from hone.core.errors import DivergedError
from hone.core.ragged import Ints, offsets_of, owner_of, ranges
from hone.core.reduction import ONE_PROCESS, Reduction, whole_batch
from hone.learner.share import UNBOUNDED, evaluated_pieces
from hone.models.language.token_logprobs import SamplingMask, TopKTokens
from hone.models.packing import PackedBatch
from hone.objectives.weights import PromptScheme, TermWeights, WeightingScheme
from hone.rewards.config import LearnableConfig

# --------------------------------------------------------------------------------------------- micro-batches as tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Where the decisions of an optimizer step go, over all micro-batches and ranks."""

    shares: NDArray[np.float64]
    """`[L, E]` share of the decisions that went to each expert of each layer."""
    decisions: float
    """Number of the decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """n decisions of some rows, as tensors."""

    packed: PackedBatch
    at: Tensor
    """`[n]` position in the packed tokens whose hidden state decided; of the decision's own token in a layout
    `after`."""
    chosen: Tensor
    """`[n]` int64."""
    behaviour_logp: Tensor
    """`[n]` nats, of the behaviour policy."""
    advantage: Tensor
    """`[n]`."""
    weight: Tensor
    """`[n]`."""
    ref_logp: Tensor | None
    """`[n]` nats, of the reference policy."""
    sequence: Tensor
    """`[n]` number of the decision's sequence within this batch."""
    old_logp: Tensor | None = None
    """`[n]` nats, of the policy as it was when the update began."""
    old_top_k: TopKTokens | None = None
    """`[n, K]` of the policy as it was when the update began."""
    token_factor: Tensor | None = None
    """`[n]` what a selection over the whole optimizer batch decided."""
    correction: Tensor | None = None
    """`[n]` factor of the mismatch correction, where it was computed over the whole step."""
    value_target: Tensor | None = None
    """`[n]` target of the critic."""
    old_value: Tensor | None = None
    """`[n]` the critic's value when the update began."""
    sampling_mask: SamplingMask | None = None
    """What sampling left to choose from, where it cut anything off."""
    group: Tensor | None = None
    """`[sequences]` number of each sequence's group within this batch, ascending; None: groups may be split."""
    term_weights: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Weights of the loss terms that have their own, by name: `[n]`, `[sequences]` or `[groups]`."""
    routing: Tensor | None = None
    """`[T, L, k]` int64 experts that were recorded with the packed tokens, -1 for none; None: nothing is replayed."""
    expert_load: ExpertLoad | None = None
    """Load of the experts over the optimizer step, where a loss needs it."""
    place: Ints | None = None
    """`[n]` place of each decision among those of the step's episodes that were laid out."""

    @property
    def replayed(self) -> PackedBatch:
        """The packed tokens with their recorded routes: for the policy that drew them, and for no other model."""
        return self.packed if self.routing is None else replace(self.packed, routing=self.routing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputedColumns:
    """Columns computed for each decision before a gradient; None: not requested."""

    ref_logp: NDArray[np.floating] | None = None
    """`[N]` log-probability under the reference policy, nats."""
    old_logp: NDArray[np.floating] | None = None
    """`[N]` log-probability under the policy as it was when the update began, nats."""
    top_k_ids: NDArray[np.int64] | None = None
    """`[N, K]` the tokens that policy found likeliest."""
    top_k_logp: NDArray[np.floating] | None = None
    """`[N, K]` their log-probabilities, nats."""
    token_factor: NDArray[np.floating] | None = None
    """`[N]` of a selection over the whole optimizer batch."""
    correction: NDArray[np.floating] | None = None
    """`[N]` factor of the mismatch correction, over the whole step."""
    counted: NDArray[np.bool_] | None = None
    """`[N]` flags of the decisions that count in the weights' denominators; None: all."""
    value_target: NDArray[np.floating] | None = None
    """`[N]` target of the critic."""
    old_value: NDArray[np.floating] | None = None
    """`[N]` the critic's value when the update began."""
    place: Ints | None = None
    """`[N]` place of each decision among those that were laid out."""

    def take(self, where: Ints) -> "PrecomputedColumns":
        """The columns of decisions `where` `[K]`."""

        def chosen(column: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if column is None else column[where]

        return PrecomputedColumns(
            ref_logp=chosen(self.ref_logp),
            old_logp=chosen(self.old_logp),
            top_k_ids=chosen(self.top_k_ids),
            top_k_logp=chosen(self.top_k_logp),
            token_factor=chosen(self.token_factor),
            correction=chosen(self.correction),
            counted=chosen(self.counted),
            value_target=chosen(self.value_target),
            old_value=chosen(self.old_value),
            place=chosen(self.place),
        )


# ------------------------------------------------------------------------------------------------------ shared prefixes


MIN_SHARED_PART = 3
"""A sequence shares a row's trunk with answers to other questions when that is at least one part in so many of it."""


def _shared_rows(episodes: Episodes, row_tokens: int, begins: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """First sequence of each row `[R]`, and the tokens that its sequences share `[R]`; `begins` `[E]` begin a row.

    A sequence joins the row before it while that saves tokens (k sequences that share t tokens save (k - 1) t), where
    both answer one question or a third of it is shared. So answers to one question stay together, however short it is,
    and examples that share only a system prompt share just that; those that share less stay apart, so that minibatches
    still mix them.
    """
    seen = episodes.transcript
    asked = seen.at[episodes.offsets[:-1]] - seen.offsets[:-1]
    prompts, lengths = asked.tolist(), np.diff(seen.offsets).tolist()
    like_before = np.where(begins, 0, _common_prefix_lengths(seen.tokens, seen.offsets[:-1], asked)).tolist()
    same_question = (np.diff(episodes.group, prepend=episodes.group[:1] - 1) == 0).tolist()
    starts: list[int] = []
    trunks: list[int] = []
    together, read = 0, 0
    sequences = zip(prompts, lengths, like_before, same_question, strict=True)
    for number, (prompt, length, alike, same) in enumerate(sequences):
        if together:
            alike = min(trunks[-1], alike)  # the one before begins with the trunk, as the row's first does
            grown = read + length - (together + 1) * alike
            saves = together * alike > (together - 1) * trunks[-1] and (same or MIN_SHARED_PART * alike >= length)
            if saves and alike + grown <= row_tokens:
                trunks[-1], together, read = alike, together + 1, read + length
                continue
        starts.append(number)
        trunks.append(prompt)
        together, read = 1, length
    return np.array(starts, dtype=np.int64), np.array(trunks, dtype=np.int64)


def _common_prefix_lengths(tokens: NDArray[np.integer], begins: Ints, most: Ints) -> Ints:
    """`[E]` tokens in which each sequence and the one before it begin alike, of the first `most` `[E]` of both."""
    alike = np.minimum(most, np.roll(most, 1))
    alike[:1] = 0
    places = ranges(np.zeros_like(alike), alike)
    here, before = (np.repeat(first, alike) + places for first in (begins, np.roll(begins, 1)))
    differ = np.flatnonzero(tokens[here] != tokens[before])
    owner, first = np.unique(np.repeat(np.arange(len(alike)), alike)[differ], return_index=True)
    alike[owner] = places[differ[first]]
    return alike


# -------------------------------------------------------------------------------------------------------------- routing


def _require_whole_routing(episodes: Episodes) -> None:
    """Raise DivergedError where routes were recorded, but not of every token that a decision depends on."""
    seen = episodes.transcript
    if seen.routing is None or not len(seen.at):
        return
    # Up to each episode's last decision; of one without decisions up to its first token.
    ends = np.where(episodes.lengths > 0, seen.at[np.maximum(episodes.offsets[1:] - 1, 0)], seen.offsets[:-1])
    coverage = routing_coverage(seen.routing, seen.offsets, ends)
    if coverage < 1:
        raise DivergedError(
            f"the engine recorded the experts of {coverage:.6g} of the (token, layer) places that the answers depend "
            "on, and routing replay needs all: for the others the trainer would choose, and its log-probabilities "
            "would be those of neither policy. Nothing was updated. Set model.experts.replay = false to train without "
            "replay"
        )


def _replayed_routes(episodes: Episodes, read: Ints, size: int) -> NDArray[np.int64] | None:
    """`[size, L, k]` experts of the transcript's tokens `read`, -1 where none was recorded and behind them; None where
    nothing was recorded."""
    routing = episodes.transcript.routing
    if routing is None:
        return None
    routes = np.full((size, *routing.shape[1:]), -1, np.int64)
    known = is_recorded(routing[read])[:, :, None]
    routes[: len(read)] = np.where(known, routing[read].astype(np.int64), -1)
    return routes


# ---------------------------------------------------------------------------------------------------- learnable answers


def learnable_answers(episodes: Episodes, credits: Credits, learnable: LearnableConfig) -> tuple[Episodes, Credits]:
    """The episodes with a part in the loss, and their credits; both as they are where all have one.

    An answer without a score has no advantage, so that it adds nothing to the gradient. Were it counted, the others
    would weigh less the more scores are missing: half of them missing would halve a token mean. What is left out has no
    part in any term of the loss (surrogate, KL, entropy, critic). A dialogue of several rows is one answer. Where
    nothing is learnable everything stays, so that a step always has rows; their advantages are 0.
    """
    flags = learnable_flags(episodes, credits, learnable)
    if flags.all():
        return episodes, credits
    kept = np.flatnonzero(flags)
    where = ranges(episodes.offsets[:-1][kept], episodes.lengths[kept])
    return episodes.take(kept), replace(
        credits,
        advantage=credits.advantage[where],
        target=None if credits.target is None else credits.target[where],
        discount=None if credits.discount is None else credits.discount[where],
    )


def learnable_flags(episodes: Episodes, credits: Credits, learnable: LearnableConfig) -> NDArray[np.bool_]:
    """`[E]` whether each episode has a part in the loss (`learnable_answers`); True everywhere where none has."""
    last = episodes.last_rows
    answer = np.cumsum(last) - last
    flags = np.ones(len(episodes), np.bool_)
    if not learnable.count_missing:
        # An answer may be taught without a score: a teacher grades its tokens, say.
        taught = np.bincount(answer[episodes.owner], weights=credits.advantage != 0, minlength=int(last.sum()))
        flags &= (episodes.scored[last] | (taught > 0))[answer]
    if learnable.truncated != "score":
        flags &= ~episodes.truncated[last][answer]
    return flags if flags.any() else np.ones(len(episodes), np.bool_)


# ----------------------------------------------------------------------------------------------------------------- rows


_PADDING_ROW_TOKENS = 32
"""Tokens of a row that only fills a batch up: attention within a row costs the square of its length."""
RowUnit: TypeAlias = Literal["sample", "group"]
"""What minibatches, micro-batches and ranks never split: a sequence, or all sequences of one `Episodes.group`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """Layout shared by all rows of a run."""

    scheme: WeightingScheme | PromptScheme
    """Aggregation: lengths (and groups) of the step's sequences -> weight of a decision of each."""
    unit: RowUnit = "sample"
    """What is never split."""
    term_weights: Mapping[str, TermWeights] = field(default_factory=dict[str, TermWeights])
    """Weights of loss terms that `scheme` does not aggregate, by name; those per group need `unit = "group"`."""
    share_prefixes: bool = True
    """Lay sequences that begin alike in one row; the result is the same, the work is less."""
    skip_zero_advantage: bool = False
    """Leave out sequences whose advantages are all 0. Right only for losses that are proportional to the advantage."""
    row_tokens: int = 1024
    """A row takes no further sequence beyond this."""
    min_rows: int = 1
    """Sequences that begin alike stay apart where a batch would have fewer rows: each minibatch takes some."""
    pass_tokens: int = UNBOUNDED
    """Tokens of a forward pass: a longer row comes apart when the minibatches are made, which do not depend on it."""
    shares: int = 1
    """Ranks or virtual ranks: rows of a minibatch come apart where they are fewer."""
    after: bool = False
    """Look at the state after each decision's token, which judges the token too, instead of the state before it, which
    chose it: a scorer's place. The last token of a sequence is then read as well."""
    pad_to_size: bool = False
    """Fill a batch up to one of a few sizes with tokens that nobody looks at: libraries that compile a product for each
    size, as those for bfloat16 do, then meet the same sizes again and again."""
    replay_routing: bool = True
    """Tell a mixture of experts to use the experts that were recorded with the tokens, where they were (rollout routing
    replay, arXiv 2510.11370)."""
    device: str = "cpu"

    def __call__(self, episodes: Episodes, credits: Credits) -> "TokenRows":
        if self.replay_routing:
            _require_whole_routing(episodes)
        advantage, row_tokens = credits.advantage, self.row_tokens if self.share_prefixes else 0
        place = np.arange(episodes.decisions)
        begins = np.zeros(len(episodes), dtype=np.bool_)
        firsts = _first_rows(episodes)
        forked, begins = firsts is not None, begins if firsts is None else firsts
        if self.unit == "group":
            order = np.argsort(episodes.group, kind="stable")
            place = ranges(episodes.offsets[:-1][order], episodes.lengths[order])
            advantage = advantage[place]
            episodes = episodes.take(order)
            begins = np.diff(episodes.group, prepend=episodes.group[:1] - 1) > 0
        starts, trunks = _shared_rows(episodes, row_tokens, begins)
        # Rows of a group, or of a dialogue, stay together; others are units of their own.
        whole = self.unit == "group" or forked
        if not whole and len(starts) < self.min_rows:
            starts, trunks = _shared_rows(episodes, 0, begins)
        units = np.flatnonzero(begins[starts]) if whole else np.arange(len(starts))
        return TokenRows(
            layout=self,
            episodes=episodes,
            advantage=advantage,
            row_offsets=np.append(starts, len(episodes)).astype(np.int64),
            prefix_lengths=trunks,
            unit_offsets=np.append(units, len(starts)).astype(np.int64),
            precomputed=PrecomputedColumns(place=place),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """E sequences in R rows and U units; implements `TrainingRows`, which calls a unit a row."""

    layout: TokenLayout
    episodes: Episodes
    advantage: NDArray[np.float32]
    """`[N]`."""
    row_offsets: Ints
    """`[R+1]` sequences of each row."""
    prefix_lengths: Ints
    """`[R]` tokens that all sequences of a row begin with."""
    unit_offsets: Ints
    """`[U+1]` rows of each unit."""
    sequence_weight: NDArray[np.float64] | None = None
    """`[E]` weight of each decision of a sequence, once fixed."""
    term_weights: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    """`[E]` each, by the term's name: weight of its values for a sequence or for the sequence's group, once fixed."""
    precomputed: PrecomputedColumns = field(default_factory=PrecomputedColumns)
    expert_load: ExpertLoad | None = None
    """Load of a mixture of experts over the optimizer step, once known."""

    def __len__(self) -> int:
        return len(self.unit_offsets) - 1

    @property
    def unit_sequences(self) -> Ints:
        """`[U+1]` sequences of each unit."""
        return self.row_offsets[self.unit_offsets]

    def sizes(self) -> NDArray[np.int64]:
        trunks = offsets_of(self.prefix_lengths)[self.unit_offsets]
        return np.diff(trunks + offsets_of(self._suffix_lengths())[self.unit_sequences])

    def take(self, rows: NDArray[np.int64]) -> Self:
        counts = np.diff(self.unit_offsets)[rows]
        inner = ranges(self.unit_offsets[:-1][rows], counts)
        sequences = np.diff(self.row_offsets)[inner]
        return self._take_sequences(
            ranges(self.row_offsets[:-1][inner], sequences),
            row_offsets=offsets_of(sequences),
            prefix_lengths=self.prefix_lengths[inner],
            unit_offsets=offsets_of(counts),
        )

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        rows = replace(
            self,
            sequence_weight=self._sequence_weight(reduction),
            term_weights={name: self._fixed_weight(term, reduction) for name, term in self.layout.term_weights.items()},
        )
        return (rows._keep(rows._contributing()) if self.layout.skip_zero_advantage else rows).apart()

    def apart(self) -> Self:
        """The same sequences in shorter rows, where a forward pass or the ranks need them; units of several sequences
        stay whole."""
        layout, few = self.layout, len(self) < self.layout.shares
        if layout.unit == "group" or _first_rows(self.episodes) is not None:
            return self
        if not few and int(self.sizes().max(initial=0)) <= layout.pass_tokens:
            return self
        begins = np.zeros(len(self.episodes), dtype=np.bool_)
        begins[self.row_offsets[:-1]] = True
        starts, trunks = _shared_rows(self.episodes, min(layout.row_tokens, layout.pass_tokens), begins)
        if len(starts) < layout.shares:
            starts, trunks = _shared_rows(self.episodes, 0, begins)
        if len(starts) == len(self):
            return self
        return replace(
            self,
            row_offsets=np.append(starts, len(self.episodes)).astype(np.int64),
            prefix_lengths=trunks,
            unit_offsets=np.arange(len(starts) + 1, dtype=np.int64),
        )

    def without_zero_advantage(self) -> Self:
        """The sequences of which an advantage is not 0; of a group, those that are left."""
        return self._keep(self._nonzero())

    def evaluate(
        self, question: Callable[[TokenBatch], Sequence[Tensor]], budget_tokens: int
    ) -> list[NDArray[np.generic]]:
        """The answers `[N, ...]` to `question` (of `[n, ...]` tensors), put without gradient to all decisions.

        Rows that cannot contribute to a gradient are not asked: their answers are 0. Where none can, the first one is
        asked all the same, for the shapes of the answers.
        """
        if (shorter := self.apart()) is not self:
            return shorter.evaluate(question, budget_tokens)
        rows, sequences = np.arange(len(self)), self.unit_sequences
        if self.layout.skip_zero_advantage:
            contributing = np.diff(np.append(0, np.cumsum(self._contributing()))[sequences]) > 0
            rows = np.flatnonzero(contributing) if contributing.any() else rows[:1]
        sizes = self.sizes()[rows]
        edges = self.episodes.offsets[sequences]

        def ask(piece: Ints) -> list[NDArray[np.generic]]:
            return [tensor.cpu().numpy() for tensor in question(self.take(rows[piece]).tensors())]

        def places(piece: Ints) -> Ints:
            return ranges(edges[:-1][rows[piece]], np.diff(edges)[rows[piece]])

        answers: list[NDArray[np.generic]] = []
        with torch.no_grad():
            for where, results in evaluated_pieces(sizes, budget_tokens, ask, places):
                if not answers:
                    answers = [np.zeros((self.episodes.decisions, *one.shape[1:]), one.dtype) for one in results]
                for answer, one in zip(answers, results, strict=True):
                    answer[where] = one
        return answers

    def _sequence_weight(self, reduction: Reduction) -> NDArray[np.float64]:
        """`[E]` weight of a decision of each sequence, by the totals of all ranks."""
        scheme, dialogue = self.layout.scheme, self._dialogue()
        lengths = np.bincount(dialogue, weights=self._counted_lengths()).astype(np.int64)
        if not isinstance(scheme, PromptScheme):
            return whole_batch(scheme, reduction)(lengths)[dialogue]
        group = np.zeros(len(lengths), np.int64)
        group[dialogue] = self.episodes.group
        return whole_batch(scheme.weigh, reduction)(lengths, group)[dialogue]

    def _dialogue(self) -> Ints:
        """`[E]` number of the dialogue of each sequence, which counts once however many rows it has."""
        count = len(self.episodes)
        if self.episodes.part is None or self.episodes.id is None:
            return np.arange(count)
        # A row of a log that knows no parts (-1) is a dialogue of its own.
        own = np.where(self.episodes.part < 0, -1 - np.arange(count), self.episodes.id)
        pairs = np.stack([self.episodes.group, own])
        return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _counted_lengths(self) -> Ints:
        """`[E]` decisions of each sequence that count in the weights' denominators."""
        counted = self.precomputed.counted
        if counted is None:
            return self.episodes.lengths
        return np.bincount(self.episodes.owner[counted], minlength=len(self.episodes))

    def _fixed_weight(self, term: TermWeights, reduction: Reduction) -> NDArray[np.float64]:
        """`[E]` weight of the term for each sequence, or for its group, by the totals of all ranks."""
        if term.per != "group":
            dialogue = self._dialogue()
            lengths = np.bincount(dialogue, weights=self._counted_lengths()).astype(np.int64)
            rows = np.bincount(dialogue) if term.per == "sequence" else np.ones(len(lengths))  # a value for each row
            return (whole_batch(term.scheme, reduction)(lengths) / rows)[dialogue]
        assert self.layout.unit == "group", 'weights per group need unit = "group"'
        decisions = np.diff(offsets_of(self._counted_lengths())[self.unit_sequences])
        return whole_batch(term.scheme, reduction)(decisions)[owner_of(self.unit_sequences)]

    def _nonzero(self) -> NDArray[np.bool_]:
        """`[E]` whether an advantage of the sequence is not 0."""
        return np.bincount(self.episodes.owner, weights=np.abs(self.advantage), minlength=len(self.episodes)) > 0

    def _contributing(self) -> NDArray[np.bool_]:
        """`[E]` whether an advantage of the sequence, or of its group where that is the unit, is not 0."""
        flags = self._nonzero()
        if self.layout.unit == "sample":
            return flags
        group = owner_of(self.unit_sequences)
        return (np.bincount(group, weights=flags) > 0)[group]

    def _keep(self, flags: NDArray[np.bool_]) -> Self:
        """The sequences of `flags` `[E]`."""
        kept = np.flatnonzero(flags)
        per_row = np.bincount(owner_of(self.row_offsets)[kept], minlength=len(self.prefix_lengths))
        inner = np.flatnonzero(per_row)
        per_unit = np.bincount(owner_of(self.unit_offsets)[inner], minlength=len(self))
        return self._take_sequences(
            kept,
            row_offsets=offsets_of(per_row[inner]),
            prefix_lengths=self.prefix_lengths[inner],
            unit_offsets=offsets_of(per_unit[per_unit > 0]),
        )

    def tensors(self) -> TokenBatch:
        packed, at, routing = self._pack()
        owner = self.episodes.owner
        scale = np.zeros(len(self.episodes)) if self.sequence_weight is None else self.sequence_weight
        device = self.layout.device

        def column(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        known, kept = self.precomputed, self.episodes.transcript.kept
        places = {"decision": owner, "sequence": slice(None), "group": self.unit_sequences[:-1]}
        return TokenBatch(
            packed=packed,
            routing=routing,
            expert_load=self.expert_load,
            at=column(at),
            chosen=column(self.episodes.chosen.astype(np.int64)),
            behaviour_logp=column(self.episodes.logp),
            advantage=column(self.advantage),
            weight=column(scale[owner].astype(np.float32)),
            ref_logp=None if known.ref_logp is None else column(known.ref_logp),
            sequence=column(owner),
            old_logp=None if known.old_logp is None else column(known.old_logp),
            old_top_k=None
            if known.top_k_ids is None or known.top_k_logp is None
            else TopKTokens(ids=column(known.top_k_ids), logp=column(known.top_k_logp)),
            token_factor=None if known.token_factor is None else column(known.token_factor),
            correction=None if known.correction is None else column(known.correction),
            value_target=None if known.value_target is None else column(known.value_target),
            old_value=None if known.old_value is None else column(known.old_value),
            sampling_mask=None
            if kept is None
            else SamplingMask(ids=column(kept.values.astype(np.int64)), offsets=column(kept.offsets)),
            group=column(owner_of(self.unit_sequences)) if self.layout.unit == "group" else None,
            term_weights={
                name: column(values[places[self.layout.term_weights[name].per]].astype(np.float32))
                for name, values in self.term_weights.items()
            },
            place=known.place,
        )

    def _take_sequences(self, index: Ints, *, row_offsets: Ints, prefix_lengths: Ints, unit_offsets: Ints) -> Self:
        where = ranges(self.episodes.offsets[:-1][index], self.episodes.lengths[index])
        return replace(
            self,
            episodes=self.episodes.take(index),
            advantage=self.advantage[where],
            row_offsets=row_offsets,
            prefix_lengths=prefix_lengths,
            unit_offsets=unit_offsets,
            sequence_weight=None if self.sequence_weight is None else self.sequence_weight[index],
            term_weights={name: values[index] for name, values in self.term_weights.items()},
            precomputed=self.precomputed.take(where),
        )

    def _suffix_lengths(self) -> Ints:
        """`[E]` tokens of each sequence after its trunk that have to be read (the last one predicts nothing, and is
        read only where it is judged)."""
        lengths = np.diff(self.episodes.transcript.offsets) - self._unread
        return lengths - np.repeat(self.prefix_lengths, np.diff(self.row_offsets))

    @property
    def _unread(self) -> int:
        """Tokens from the position that is looked at to a decision's own."""
        return 0 if self.layout.after else 1

    def _pack(self) -> tuple[PackedBatch, Ints, Tensor | None]:
        """The rows' tokens, for each decision where in them it was decided, and the experts to be replayed.

        A row is laid out as its trunk (branch 0) and then, for each of its sequences, what follows (branch 1, 2, ...).
        """
        seen, offsets = self.episodes.transcript, self.row_offsets
        first, row = offsets[:-1], owner_of(offsets)
        shared = self.prefix_lengths[row]
        trunk = first + np.arange(len(first))  # where each row's trunk stands among all segments
        body = np.arange(len(self.episodes)) + row + 1
        starts, lengths, positions, branches = np.zeros((4, len(trunk) + len(body)), dtype=np.int64)
        starts[trunk], lengths[trunk] = seen.offsets[:-1][first], self.prefix_lengths
        starts[body], lengths[body] = seen.offsets[:-1] + shared, self._suffix_lengths()
        positions[body] = shared
        branches[body] = np.arange(len(self.episodes)) - first[row] + 1
        segments = offsets_of(lengths)
        branched = len(first) < len(self.episodes)
        tokens, places = seen.tokens[ranges(starts, lengths)].astype(np.int64), ranges(positions, lengths)
        branch, offsets = np.repeat(branches, lengths), segments[np.append(trunk, len(lengths))]
        if self.layout.pad_to_size:
            size, filled = len(tokens), padded_size(len(tokens))
            spare, ends = filled - size, [*range(size + _PADDING_ROW_TOKENS, filled, _PADDING_ROW_TOKENS), filled]
            tokens, branch = np.pad(tokens, (0, spare)), np.pad(branch, (0, spare))
            places = np.append(places, np.arange(spare) % _PADDING_ROW_TOKENS)
            offsets = np.append(offsets, np.array(ends, dtype=np.int64)) if spare else offsets
        replays, device = self.layout.replay_routing, self.layout.device
        routing = _replayed_routes(self.episodes, ranges(starts, lengths), len(tokens)) if replays else None
        packed = PackedBatch(
            tokens=torch.from_numpy(tokens).to(device),
            positions=torch.from_numpy(places).to(device),
            offsets=offsets,
            branch=torch.from_numpy(branch).to(device) if branched else None,
        )
        owner = self.episodes.owner
        # -1: decided at the trunk's last token
        before = seen.at - seen.offsets[:-1][owner] - self._unread - shared[owner]
        at = np.where(before < 0, segments[1:][trunk][row][owner] - 1, segments[:-1][body][owner] + before)
        return packed, at, None if routing is None else torch.from_numpy(routing).to(device)


def _first_rows(episodes: Episodes) -> NDArray[np.bool_] | None:
    """`[E]` whether each is the first of a dialogue; None where no dialogue stands in several of them."""
    part = episodes.part
    return None if part is None or not (part > 0).any() else np.asarray(part <= 0)


def padded_size(tokens: int) -> int:
    """The next of eight sizes per power of two, and at least 64: at most an eighth more work, few different sizes."""
    step = max(64, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step
