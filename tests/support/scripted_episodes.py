"""Episodes with given lengths, whose scores are their numbers."""

import numpy as np

from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of


def episodes_of(lengths: list[int], *, first: int = 0, version: int = 0) -> Episodes:
    """Episode number e carries the score `first + e`."""
    total, count = sum(lengths), len(lengths)
    return Episodes(
        offsets=offsets_of(np.array(lengths)),
        seen=np.arange(total, dtype=np.float32).reshape(-1, 1),
        chosen=np.zeros(total, np.int64),
        logp=np.zeros(total, np.float32),
        version=np.full(total, version, np.int32),
        reward=np.ones(total, np.float32),
        group=np.arange(first, first + count),
        terminated=np.ones(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        final=np.zeros((count, 1), np.float32),
        score=np.arange(first, first + count, dtype=np.float64),
        status=np.zeros(count, np.uint8),
    )
