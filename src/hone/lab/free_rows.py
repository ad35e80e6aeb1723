"""A model for the torch runner whose rows are computed as suits the batch: what batch invariance is measured against.

Products have as many rows as there are tokens, and attention pads the texts of a pass to the longest of them, as an
engine does that asks for no more than the right numbers. Never used but to compare with.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.ragged import Ints
from hone.engine.protocol import ForwardFn, LinearFn, PagedAttentionFn
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder


@dataclass(frozen=True, slots=True)
class _FreeLinear:
    """`F.linear`, for any number of rows."""

    tile: int = 1
    exact: bool = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)


class _FreeAttention:
    """Causal attention of the tokens of a pass: one product for all texts, padded to the longest."""

    def __init__(self, sequence: Ints, positions: Ints, slots: Ints, config: ModelConfig) -> None:
        self._shared = config.heads // config.kv_heads
        texts, text = np.unique(sequence, return_inverse=True)
        counts = np.bincount(text)
        order, place = np.argsort(text, kind="stable"), np.empty_like(text)
        place[order] = np.arange(len(text)) - (np.cumsum(counts) - counts)[text[order]]
        length = int(positions.max()) + 1
        seen = np.zeros((len(texts), int(counts.max()), length), dtype=np.bool_)
        seen[:, :, 0] = True  # a place without a token sees something, and is left out
        seen[text, place] = np.arange(length) <= positions[:, None]
        self._mask = torch.from_numpy(seen[:, None])
        self._read = torch.from_numpy(np.ascontiguousarray(slots[texts, :length]))
        self._text, self._place = torch.from_numpy(text), torch.from_numpy(place)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, layer: int) -> Tensor:
        del layer  # all see every token
        texts, _, longest, _ = self._mask.shape
        padded = query.new_zeros(texts, longest, *query.shape[1:])
        padded[self._text, self._place] = query
        k, v = (
            rows[self._read].transpose(1, 2).repeat_interleave(self._shared, dim=1)
            if self._shared > 1
            else rows[self._read].transpose(1, 2)
            for rows in (keys, values)
        )
        mixed = functional.scaled_dot_product_attention(padded.transpose(1, 2), k, v, attn_mask=self._mask)
        return mixed.transpose(1, 2)[self._text, self._place].reshape(len(query), -1)


@dataclass(frozen=True, slots=True)
class FreeRows:
    """The protocol `hone.engine.protocol.GenerationModel`, over a decoder."""

    model: Decoder
    rows: _FreeLinear = field(default_factory=_FreeLinear)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def exactness(self) -> Literal["parity", "bitwise"]:
        return "parity"

    def stored_tensors(self) -> Mapping[str, Tensor]:
        return self.model.stored_tensors()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()

    @property
    def compute(self) -> torch.dtype:
        return self.model.compute

    @property
    def code_bits(self) -> int:
        return self.model.code_bits

    @property
    def output_weight(self) -> Tensor:
        return self.model.output_weight

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        linear: LinearFn,
        kind: torch.dtype | None = None,
    ) -> Tensor:
        return self.model.run(tokens, positions, attend, linear, kind)

    def run_routed(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        linear: LinearFn,
        replayed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return self.model.run_routed(tokens, positions, attend, linear, replayed)

    def compiled_run(self, kind: torch.dtype | None = None) -> ForwardFn:
        return self.model.compiled_run(kind)

    def paged_states(
        self, attend: PagedAttentionFn, store: Tensor, sequence: Ints, positions: Ints, pages: Ints, page_tokens: int
    ) -> PagedAttentionFn:
        return self.model.paged_states(attend, store, sequence, positions, pages, page_tokens)

    def finished_logits(self, products: Tensor) -> Tensor:
        return self.model.finished_logits(products)

    def fix_rope_length(self, length: int) -> None:
        self.model.fix_rope_length(length)

    def logits(self, hidden: Tensor, linear: LinearFn) -> Tensor:
        return self.model.logits(hidden, linear)

    def fixed_attention(
        self, sequence: Ints, positions: Ints, slots: Ints
    ) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
        return _FreeAttention(sequence, positions, slots, self.config)
