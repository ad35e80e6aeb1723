"""Packed token rows: texts one after another without padding, the input format of the decoder.

A row is one text, or one prompt with several completions as branches, so that the prompt is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hone.core.ragged import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """`T` tokens in `R` rows; attention never crosses a row."""

    tokens: Tensor
    """`[T]` int64."""
    positions: Tensor
    """`[T]` int64, counted from 0 in each row; each branch continues from the end of its trunk."""
    offsets: NDArray[np.int64]
    """`[R+1]`: row r is `tokens[offsets[r]:offsets[r+1]]`."""
    branch: Tensor | None = None
    """`[T]` int64; None: plain causal rows. 0: trunk. b > 0: sees the trunk and the earlier tokens of branch b only."""
    routing: Tensor | None = None
    """`[T, L, k]` int64 experts that the policy's routers are told to use, -1: their own choice; None: their own
    everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTargets:
    """Targets of the hidden states: token `chosen[n]` is predicted by `hidden[at[n]]`."""

    at: Tensor
    """`[N]` int64 into the tokens of a Packed."""
    chosen: Tensor
    """`[N]` int64 token ids."""


def pack_rows(rows: Sequence[NDArray[np.int32]], *, device: str = "cpu") -> PackedBatch:
    """Plain causal rows, in the order given."""
    lengths = [len(row) for row in rows]
    tokens = np.concatenate(rows).astype(np.int64) if rows else np.zeros(0, np.int64)
    positions = np.concatenate([np.arange(n) for n in lengths]) if rows else np.zeros(0, np.int64)
    return PackedBatch(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def row_targets(packed: PackedBatch) -> TokenTargets:
    """Every token of plain rows but each row's first: token t is predicted by the hidden state of t - 1."""
    first = torch.from_numpy(packed.offsets[:-1])
    keep = torch.ones(len(packed.tokens), dtype=torch.bool)
    keep[first[first < len(keep)]] = False
    chosen_at = keep.nonzero()[:, 0].to(packed.tokens.device)
    return TokenTargets(at=chosen_at - 1, chosen=packed.tokens[chosen_at])


def index_numbers(x: Tensor) -> Ints:
    """Numbers of an index tensor, on the CPU; those of a real one also in a pass whose other tensors are fake."""
    with _disable_current_modes():
        return x.cpu().numpy()


def packed_text_slots(packed: PackedBatch) -> tuple[Ints, Ints]:
    """The text of each token `[T]`, and the token positions of each text `[B, L]`.

    A row is one text; a row with branches is one text for its trunk and one for each branch.
    """
    positions, count = index_numbers(packed.positions), len(packed.positions)
    row = np.repeat(np.arange(len(packed.offsets) - 1), np.diff(packed.offsets))
    branch = np.zeros(count, np.int64) if packed.branch is None else index_numbers(packed.branch)
    kinds, first, sequence = np.unique(
        row * (int(branch.max(initial=0)) + 1) + branch, return_index=True, return_inverse=True
    )
    length = int(positions.max(initial=0)) + 1
    slots = np.zeros((len(kinds), length), np.int64)
    slots[sequence, positions] = np.arange(count)
    begins = positions[first]  # start of a text's own tokens; earlier positions are its row's trunk
    shared = np.arange(length)[None, :] < begins[:, None]
    trunk = packed.offsets[:-1][row[first]][:, None] + np.arange(length)[None, :]
    return sequence, np.where(shared, trunk, slots)


def _join(parts: Sequence[NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64)) if parts else torch.zeros(0, dtype=torch.int64)
