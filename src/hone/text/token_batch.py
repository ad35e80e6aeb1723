"""Columns of tokens for a gradient: a micro-batch as tensors, and what is computed of each decision beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hone.core.ragged import Ints
from hone.models.language.token_logprobs import SamplingMask, TopKTokens
from hone.models.packing import PackedBatch


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
        )
