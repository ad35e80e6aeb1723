"""Paged attention for a torch whose `varlen_attn` reads no page tables (before 2.13): pages are gathered first.

Replaces the function for a whole process, so that the engine's CUDA path can be tried there. It costs a copy of all
keys in every layer of every pass: figures taken with it are lower bounds.
"""

import inspect

import torch
from torch import Tensor
from torch.nn.attention import varlen


def install() -> bool:
    """Replace `varlen_attn` where it is needed; returns whether it was."""
    if "block_table" in inspect.signature(varlen.varlen_attn).parameters:
        return False
    varlen.varlen_attn = _gathered  # type: ignore[assignment]
    return True


def _gathered(
    query: Tensor, keys: Tensor, values: Tensor, starts: Tensor, _starts_of_keys: None, most_query: int, most_key: int,
    *, scale: float, window_size: tuple[int, int], enable_gqa: bool, seqused_k: Tensor, block_table: Tensor,
    num_splits: int | None,
) -> Tensor:  # fmt: skip
    """Query `[T, heads, head_dim]`, keys `[pages, page_tokens, kv_heads, head_dim]`, pages of sequences `[B, most]`."""
    del num_splits, enable_gqa, most_key
    assert window_size == (-1, 0)
    count, most = block_table.shape
    length = most * keys.shape[1]
    index = block_table.reshape(-1).long()
    k, v = (store.index_select(0, index).view(count * length, *store.shape[2:]) for store in (keys, values))
    starts_of_keys = torch.arange(count + 1, dtype=torch.int32, device=query.device) * length
    found: Tensor = torch.ops.aten._flash_attention_forward(
        query, k, v, starts, starts_of_keys, most_query, length, 0.0, True, False,
        scale=scale, seqused_k=seqused_k,
    )[0]  # fmt: skip
    return found
