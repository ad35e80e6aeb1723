"""The uniform numbers of many samples: `core.random.uniforms`, bit for bit, without a new generator for each."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.random import key, keys, uniforms_from_keys

_WORD: Final = (1 << 64) - 1
_ZEROS: Final = np.zeros(4, np.uint64)
_FIRST: Final = 64
"""Numbers of a stream that are generated early."""
_MOST: Final = 1 << 18
"""Largest total of numbers generated early."""


class SampleStreams:
    """Generators are reused: making a Philox generator takes three times as long as setting its key."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(key=0)
        self._draws = np.random.Generator(self._bits)
        self._lock = threading.Lock()

    def uniforms(self, *ids: int | str, count: int) -> NDArray[np.float64]:
        """`core.random.uniforms(seed, "sample", *ids, count=count)`."""
        wide = key(self._seed, "sample", *ids)
        with self._lock:
            self._bits.state = {
                "bit_generator": "Philox",
                "state": {"counter": _ZEROS, "key": np.array([wide & _WORD, wide >> 64], np.uint64)},
                "buffer": _ZEROS,
                "buffer_pos": 4,
                "has_uint32": 0,
                "uinteger": 0,
            }
            return self._draws.random(count)

    def stream_of(self, *ids: int | str) -> Callable[[int], NDArray[np.float64]]:
        """Return one sample's stream: a function of the count, to `[count]` numbers."""
        return lambda count: self.uniforms(*ids, count=count)

    def prefetch(
        self, asked: Sequence[tuple[tuple[int | str, ...], range]], *, count: int
    ) -> list[NDArray[np.float64]]:
        """First numbers, `count` or as many as pay, of `stream_of(*ids, k)` for each (ids, samples) and k."""
        if not asked:
            return []
        words = np.concatenate(
            [keys(self._seed, "sample", *ids, count=some.stop)[some.start :] for ids, some in asked if some.stop]
        )
        return list(uniforms_from_keys(words, count=min(count, _FIRST, _MOST // len(words))))
