"""Attention on a CUDA device by torch's paged variable-length kernel; recorded decoding steps are in `cuda_steps`.

Not run by the tests of a machine without a GPU; `-m gpu` selects its tests.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hone.engine.protocol import ModelShape
from hone.engine.work import ForwardBatch

PAGE_TOKENS: Final = 256
"""Page size that every version of the kernel supports."""


@dataclass(slots=True)
class FlashInputs:
    """Positions of one pass's tokens, on the device."""

    tokens: Tensor
    """`[T]` int64, as are the next three."""
    positions: Tensor
    page: Tensor
    """Page of each token's key."""
    slot: Tensor
    """Position of the key within its page."""
    starts: Tensor
    """`[B+1]` int32: sequence b owns the tokens `starts[b]:starts[b+1]`."""
    used: Tensor
    """`[B]` int32: keys of each sequence, this pass's included."""
    pages: Tensor
    """`[B, most]` int32."""
    longest: int
    """Largest number of tokens of a sequence in this pass."""


def flash_inputs(work: ForwardBatch, *, rows: int, scratch: int, page_tokens: int, device: torch.device) -> FlashInputs:
    """`work`, its tokens padded to `rows`; each padding token is a sequence of its own on the page `scratch`.

    The tokens of one sequence are contiguous in `work`.
    """
    count, padding = len(work.tokens), rows - len(work.tokens)
    pages = np.full((len(work.pages) + padding, work.pages.shape[1]), scratch, np.int32)
    pages[: len(work.pages)] = work.pages
    lengths = np.concatenate([np.bincount(work.sequence, minlength=len(work.pages)), np.ones(padding, np.int64)])
    positions = np.zeros(rows, np.int64)
    positions[:count] = work.positions
    tokens = np.zeros(rows, np.int64)
    tokens[:count] = work.tokens
    sequence = np.concatenate([work.sequence.astype(np.int64), len(work.pages) + np.arange(padding)])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    used = positions[starts[1:] - 1] + 1

    def there(column: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(device, dtype)

    return FlashInputs(
        tokens=there(tokens, torch.int64),
        positions=there(positions, torch.int64),
        page=there(pages[sequence, positions // page_tokens], torch.int64),
        slot=there(positions % page_tokens, torch.int64),
        starts=there(starts, torch.int32),
        used=there(used, torch.int32),
        pages=there(pages, torch.int32),
        longest=int(lengths.max()),
    )


class FlashPagedAttention:
    """An `Attend` over pages `[layers, 2, pages, page_tokens, kv_heads, head_dim]` in float16 or bfloat16."""

    def __init__(self, shape: ModelShape, store: Tensor, places: FlashInputs, *, splits: int | None) -> None:
        """`splits` = 1: keys are summed in one order in every batch; None: chosen by the kernel."""
        self._shape, self._store, self._places, self._splits = shape, store, places, splits

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places, shape = self._places, self._shape
        keys, values = self._store[layer]
        keys[places.page, places.slot] = key
        values[places.page, places.slot] = value
        # One order of sums needs one kernel, which is chosen by the longest chunk.
        longest = places.longest if self._splits is None else len(places.tokens)
        # Imported here: it imports the compiler of torch, seconds that every command would wait for.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        mixed = varlen_attn(
            query, keys, values, places.starts, None, longest, places.pages.shape[1] * keys.shape[1],
            scale=shape.head_dim**-0.5, window_size=(-1, 0), enable_gqa=shape.heads > shape.kv_heads,
            seqused_k=places.used, block_table=places.pages, num_splits=self._splits,
        )  # fmt: skip
        assert isinstance(mixed, Tensor)
        return mixed.flatten(1)
