"""Which groups are worth learning from: the predicate of dynamic sampling.

Belongs here: functions that look at scores and say yes or no per episode, all answers of a group alike. The source that
asks again until its batch is full decorates another source, and stands in train.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.credit.grouping import group_deviation, group_means, group_numbers


def has_score_variance(episodes: Episodes) -> NDArray[np.bool_]:
    """`[E]` whose group has two scores that differ (dynamic sampling, DAPO, Yu et al. 2025, 2503.14476: 0 < right < G).

    Missing scores are left out: a group of one right answer and seven timeouts says nothing. Ask before any shaping: a
    length penalty makes all-wrong groups look as if they said something. Elsewhere: verl's `filter_groups` takes a
    metric, of which all but `acc` may hold the penalty; NeMo-RL filters on unshaped rewards; TRL has no dynamic
    sampling.
    """
    numbers = group_numbers(episodes)
    _, dead = group_deviation(episodes.score[episodes.scored], numbers)
    return _of_groups(episodes, ~dead)


def solved_between(episodes: Episodes, *, low: float, high: float) -> NDArray[np.bool_]:
    """`[E]` whose group's mean score is in [low, high]: difficulty bands, as in prime-rl's pools (hard below 0.25)."""
    mean = group_means(episodes.score[episodes.scored], group_numbers(episodes))
    return _of_groups(episodes, (mean >= low) & (mean <= high))


def _of_groups(episodes: Episodes, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What holds of each scored group `[G]`, for every one of its episodes `[E]`, scored or not."""
    return np.isin(episodes.group, np.unique(episodes.group[episodes.scored])[wanted])
