"""Keys and values in pages, and attention over them."""

import numpy as np
import torch
from torch import Tensor

from hone.engine.protocol import GenerationModel, ModelShape
from hone.engine.work import ForwardBatch


class PagedKvCache:
    """`[layers, 2, pages, page_tokens, kv_heads, head_dim]`: keys and values."""

    def __init__(
        self, shape: ModelShape, *, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes = (shape.layers, 2, pages, page_tokens, shape.kv_heads, shape.head_dim)
        self.store = torch.zeros(sizes, dtype=dtype, device=device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.store[:, :, target] = self.store[:, :, source]


class PagedAttention:
    """An `Attend` for one pass, by the model's own arithmetic; tokens beyond `work.tokens` are padding: zeros."""

    def __init__(self, model: GenerationModel, keys: PagedKvCache, work: ForwardBatch) -> None:
        size = keys.store.shape[3]
        self._store = keys.store.flatten(2, 3)
        pages = work.pages[:, : int(work.positions.max()) // size + 1].astype(np.int64)
        slots = (pages[:, :, None] * size + np.arange(size)).reshape(len(pages), -1)
        sequence, positions = work.sequence.astype(np.int64), work.positions.astype(np.int64)
        self._own = torch.from_numpy(slots[sequence, positions]).to(keys.store.device)
        self._attention = model.fixed_attention(sequence, positions, slots)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count = len(self._own)
        keys, values = self._store[layer]
        keys[self._own], values[self._own] = key[:count], value[:count]
        out = query.new_zeros(len(query), query.shape[1] * query.shape[2])
        out[:count] = self._attention(query[:count], keys, values)
        return out
