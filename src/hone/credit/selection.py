"""Selection of groups for dynamic sampling: flags per episode, equal for all answers of a group.

The source that generates until its batch is full is in `train.sources`.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.credit.grouping import group_deviation, group_means, group_numbers


def has_score_variance(episodes: Episodes) -> NDArray[np.bool_]:
    """Flags `[E]` of episodes whose group has two different scores (dynamic sampling, DAPO, Yu et al. 2025, 2503.14476:
    0 < right < G).

    Missing scores are left out: a group of one right answer and seven timeouts is dropped. Apply before any shaping: a
    length penalty makes all-wrong groups look informative. Elsewhere: verl's `filter_groups` takes a metric, of which
    all but `acc` may include the penalty; NeMo-RL filters on unshaped rewards; TRL has no dynamic sampling.
    """
    numbers = group_numbers(episodes)
    _, dead = group_deviation(episodes.score[episodes.scored], numbers)
    return _of_groups(episodes, ~dead)


def solved_between(episodes: Episodes, *, low: float, high: float) -> NDArray[np.bool_]:
    """Flags `[E]` of episodes whose group's mean score is in [low, high]: difficulty bands, as in prime-rl's pools
    (hard below 0.25).
    """
    mean = group_means(episodes.score[episodes.scored], group_numbers(episodes))
    return _of_groups(episodes, (mean >= low) & (mean <= high))


def _of_groups(episodes: Episodes, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The flag of each scored group `[G]`, for every one of its episodes `[E]`, scored or not."""
    return np.isin(episodes.group, np.unique(episodes.group[episodes.scored])[wanted])
