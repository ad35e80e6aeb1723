"""Counter-based randomness: a draw is a function of (run seed, stream name, ids, position), of nothing else.

So no batch order, slot, worker or restart can change what is drawn, and the state to save is a few integers.
Keys come from BLAKE2b, draws from Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def key(seed: int, stream: str, *ids: int | str) -> int:
    """128-bit key of one stream. Ids are typed and length-prefixed: (1, 23) and (12, 3) and ("1", 23) differ."""
    digest = blake2b(digest_size=16)
    for part in (seed, stream, *ids):
        text = f"{'i' if isinstance(part, int) else 's'}{part}".encode()
        digest.update(len(text).to_bytes(4, "little"))
        digest.update(text)
    return int.from_bytes(digest.digest(), "little")


def generator(seed: int, stream: str, *ids: int | str) -> np.random.Generator:
    """The generator of one stream; made anew for each use, so that it carries no state between uses."""
    return np.random.Generator(np.random.Philox(key=key(seed, stream, *ids)))


def uniforms(seed: int, stream: str, *ids: int | str, count: int) -> NDArray[np.float64]:
    """`count` draws in [0, 1) -> `[count]`; draw k does not depend on `count`, so k can be a token position."""
    return generator(seed, stream, *ids).random(count)


def permutation(seed: int, stream: str, *ids: int | str, count: int) -> NDArray[np.int64]:
    """A permutation of `count` rows -> `[count]`; an epoch's order is recomputed from its number, never saved."""
    return generator(seed, stream, *ids).permutation(count)
