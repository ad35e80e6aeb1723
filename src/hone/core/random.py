"""Counter-based randomness: a draw is a function of (run seed, stream name, ids, position), of nothing else.

So no batch order, slot, worker or restart can change what is drawn, and the state to save is a few integers.
Keys come from BLAKE2b, draws from Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Of Philox-4x64-10: what its words are multiplied by, and what is added to the key after each of ten rounds.
_FACTORS: Final = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_ROUNDS: Final = 10
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


@lru_cache(maxsize=4096)
def _number(number: int) -> bytes:
    return _part(number)


def _part(part: int | str) -> bytes:
    text = f"{'i' if isinstance(part, int) else 's'}{part}".encode()
    return len(text).to_bytes(4, "little") + text


def key(seed: int, stream: str, *ids: int | str) -> int:
    """128-bit key of one stream. Ids are typed and length-prefixed: (1, 23) and (12, 3) and ("1", 23) differ."""
    whole = b"".join(map(_part, (seed, stream, *ids)))
    return int.from_bytes(blake2b(whole, digest_size=16).digest(), "little")


def keys(seed: int, stream: str, *ids: int | str, count: int) -> NDArray[np.uint64]:
    """`key(seed, stream, *ids, k)` for k = 0 .. count - 1, as words -> `[count, 2]`, the lower ones first."""
    prefix = blake2b(b"".join(map(_part, (seed, stream, *ids))), digest_size=16)
    digests: list[bytes] = []
    for number in range(count):
        one = prefix.copy()
        one.update(_number(number))
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(count, 2)


def uniforms_from_keys(words: NDArray[np.uint64], *, count: int) -> NDArray[np.float64]:
    """`uniforms` of many streams at once: keys `[n, 2]` -> `[n, count]`, the same numbers to the bit.

    All streams go through the rounds together; a generator for each costs as much as a few hundred of their numbers.
    """
    streams, blocks = len(words), -(-count // 4)
    counter = np.broadcast_to(np.arange(1, blocks + 1, dtype=np.uint64), (streams, blocks))
    zeros = np.zeros((streams, blocks), np.uint64)
    first, second, third, fourth = counter, zeros, zeros, zeros
    left, right = words[:, :1], words[:, 1:]
    for _ in range(_ROUNDS):
        high, low = _product(first, _FACTORS[0])
        other_high, other_low = _product(third, _FACTORS[1])
        first, second, third, fourth = other_high ^ second ^ left, other_low, high ^ fourth ^ right, low
        left, right = left + _WEYL[0], right + _WEYL[1]
    drawn = np.stack([first, second, third, fourth], axis=2).reshape(streams, 4 * blocks)[:, :count]
    return np.multiply(drawn >> np.uint64(11), 2.0**-53, dtype=np.float64)


def _product(x: NDArray[np.uint64], factor: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The upper and the lower 64 bits of `x * factor`."""
    low, high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    x_low, x_high = x & _LOW, x >> _HALF
    middle = x_high * low + (x_low * low >> _HALF)
    other = x_low * high + (middle & _LOW)
    return x_high * high + (middle >> _HALF) + (other >> _HALF), x * np.uint64(factor)


def generator(seed: int, stream: str, *ids: int | str) -> np.random.Generator:
    """The generator of one stream; made anew for each use, so that it carries no state between uses."""
    return np.random.Generator(np.random.Philox(key=key(seed, stream, *ids)))


def uniforms(seed: int, stream: str, *ids: int | str, count: int) -> NDArray[np.float64]:
    """`count` draws in [0, 1) -> `[count]`; draw k does not depend on `count`, so k can be a token position."""
    return generator(seed, stream, *ids).random(count)


def permutation(seed: int, stream: str, *ids: int | str, count: int) -> NDArray[np.int64]:
    """A permutation of `count` rows -> `[count]`; an epoch's order is recomputed from its number, never saved."""
    return generator(seed, stream, *ids).permutation(count)
