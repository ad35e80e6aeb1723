"""Routes of tokens through a mixture of experts, as recorded by an engine and replayed by a trainer.

`[T, L, k]`: the experts that each of T tokens went to in each of L layers, in 8 bits (16 for more than 255 experts).
The largest number of the type means that no expert was recorded.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints, ranges

Routing: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""uint8 or uint16."""


def routing_dtype(experts: int) -> type[np.uint8] | type[np.uint16]:
    """Type of the routes among this many experts."""
    return np.uint8 if experts <= np.iinfo(np.uint8).max else np.uint16


def as_routing(values: NDArray[np.generic]) -> Routing:
    """Routes as they were saved."""
    return values.astype(np.uint8 if values.dtype == np.uint8 else np.uint16)


def unrecorded(routing: Routing, count: int) -> Routing:
    """`[count, L, k]` routes of the kind of `routing` of which none was recorded."""
    return np.full((count, *routing.shape[1:]), np.iinfo(routing.dtype).max, routing.dtype)


def is_recorded(routing: Routing) -> NDArray[np.bool_]:
    """`[T, L]` whether all experts of a token in a layer were recorded."""
    return (routing != np.iinfo(routing.dtype).max).all(axis=2)


def concatenate_routing(pieces: Sequence[Routing | None], lengths: Sequence[int]) -> Routing | None:
    """Routes of all `pieces`, of `lengths` tokens; None stands for tokens without a record. None where all are."""
    known = next((piece for piece in pieces if piece is not None), None)
    if known is None:
        return None
    filled = [
        unrecorded(known, length) if piece is None else piece for piece, length in zip(pieces, lengths, strict=True)
    ]
    return np.concatenate(filled)


def routing_coverage(routing: Routing, offsets: Ints, last: Ints) -> float:
    """Share of the (token, layer) places that a sequence's last decision depends on whose experts were recorded.

    Sequence e of `offsets` `[E+1]` decides for the last time at token `last[e]` `[E]`; that token and those after it
    are not read. 1 for none.
    """
    read = ranges(offsets[:-1], last - offsets[:-1])
    return float(is_recorded(routing[read]).mean()) if len(read) else 1.0
