"""The uniform numbers of many samples: `core.random.uniforms`, bit for bit, without a new generator for each."""

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.random import key

_WORD: Final = (1 << 64) - 1
_ZEROS: Final = np.zeros(4, np.uint64)


class Streams:
    """Making a Philox generator costs three times what winding one to a key does; a rollout has thousands of keys."""

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

    def of(self, *ids: int | str) -> Callable[[int], NDArray[np.float64]]:
        """One sample's stream: how many of its numbers -> `[count]`."""
        return lambda count: self.uniforms(*ids, count=count)
