"""Episodes of which a test names only the columns that it is about."""

from typing import Any

import numpy as np

from hone.core.episodes import Episodes


def plain_episodes(offsets: Any, **columns: Any) -> Episodes:
    """Episodes that ended, one a group: observations, actions, log-probabilities, rewards and scores of 0, but for
    `columns`."""
    count, decisions = len(offsets) - 1, int(offsets[-1])
    plain = {
        "seen": np.zeros((decisions, 1), np.float32),
        "chosen": np.zeros(decisions, np.int64),
        "logp": np.zeros(decisions, np.float32),
        "version": np.zeros(decisions, np.int32),
        "reward": np.zeros(decisions, np.float32),
        "group": np.arange(count),
        "terminated": np.ones(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
        "score": np.zeros(count),
    }
    return Episodes(offsets=np.asarray(offsets, np.int64), **plain | columns)
