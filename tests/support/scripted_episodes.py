"""Episodes with given lengths, whose scores are their numbers."""

import numpy as np
from plain_episodes import plain_episodes

from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of


def episodes_of(lengths: list[int], *, first: int = 0, version: int = 0) -> Episodes:
    """Episode number e carries the score `first + e`."""
    total, count = sum(lengths), len(lengths)
    return plain_episodes(
        offsets_of(np.array(lengths)),
        seen=np.arange(total, dtype=np.float32).reshape(-1, 1),
        version=np.full(total, version, np.int32),
        reward=np.ones(total, np.float32),
        group=np.arange(first, first + count),
        final=np.zeros((count, 1), np.float32),
        score=np.arange(first, first + count, dtype=np.float64),
    )
