"""Groups of scored answers: computes advantages group by group without a loop over groups.

Groups of equal size are stacked as a matrix `[g, n]`, so an estimator is written for a matrix of scores, one row per
question, and runs once per distinct size. Missing scores never enter; a group with a single score, or with equal
scores, is *dead*: it has no information about which answer was better, its advantage is 0, and it is counted.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import UserCodeError
from hone.core.ragged import Ints, offsets_of

Floats = NDArray[np.float64]
GroupAdvantage: TypeAlias = Callable[[Floats], Floats]
"""Scores `[g, n]` of g groups of n answers -> advantages `[g, n]`."""

STD_FLOOR = 1e-6
"""Standard deviations below this share of the largest score are treated as rounding errors."""

ZERO_VARIANCE_GROUPS = "reward/zero_variance_groups"
"""Share of dead groups among those with a score: a single score, or all equal."""


def group_numbers(episodes: Episodes) -> Ints:
    """Groups of the scored episodes `[S]`, numbered densely from 0."""
    return np.unique(episodes.group[episodes.scored], return_inverse=True)[1].astype(np.int64)


def group_means(values: Floats, numbers: Ints) -> Floats:
    """Mean of each group `[G]`."""
    return np.bincount(numbers, weights=values) / np.maximum(np.bincount(numbers), 1)


def centred(values: Floats, numbers: Ints) -> Floats:
    """Each value minus its group's mean `[S]`."""
    return values - group_means(values, numbers)[numbers]


def group_deviation(values: Floats, numbers: Ints, *, ddof: int = 1) -> tuple[Floats, NDArray[np.bool_]]:
    """Standard deviation of each group `[G]` (0 for a single value), and the flags of dead groups `[G]`.

    A deviation is compared with the group's own values, so a large penalty elsewhere in the batch makes no group dead.
    """
    count = np.bincount(numbers)
    squares = np.bincount(numbers, weights=centred(values, numbers) ** 2)
    deviation = np.sqrt(squares / np.maximum(count - ddof, 1))
    size = np.zeros(len(count))
    np.maximum.at(size, numbers, np.abs(values))
    return deviation, deviation <= STD_FLOOR * size


def apply_by_group_size(values: Floats, numbers: Ints, judge: GroupAdvantage) -> Floats:
    """`judge` applied to all groups, one size at a time -> `[S]`, in the order of `values`."""
    result = np.zeros(len(values))
    count = np.bincount(numbers)
    order = np.argsort(numbers, kind="stable")
    starts = offsets_of(count)[:-1]
    for size in np.unique(count):
        rows = order[starts[count == size, None] + np.arange(size)]
        result[rows] = judge(values[rows])
    return result


def group_credits(episodes: Episodes, judge: GroupAdvantage, *, min_scores: int = 2) -> Credits:
    """Each scored answer's advantage by `judge`, on all of its decisions; groups of fewer than `min_scores` get 0."""
    numbers = group_numbers(episodes)
    score = episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers)
    small = np.bincount(numbers) < min_scores

    def heard(scores: Floats) -> Floats:
        return judge(scores) if scores.shape[1] >= min_scores else np.zeros_like(scores)

    advantage = np.where(dead[numbers], 0.0, apply_by_group_size(score, numbers, heard))
    metrics = {"reward/groups_too_small": fraction_true(small)} if min_scores > 2 else {}
    return broadcast_advantage(episodes, advantage, dead, metrics=metrics)


def fraction_true(flags: NDArray[np.bool_]) -> float:
    """Share of `flags` that are set; 0 for an empty array."""
    return float(flags.mean()) if len(flags) else 0.0


def broadcast_advantage(
    episodes: Episodes, advantage: Floats, dead: NDArray[np.bool_], *, metrics: Mapping[str, float] | None = None
) -> Credits:
    """The advantage of each scored episode `[S]` on each of its decisions `[N]`; 0 where the score is missing."""
    per_episode = np.zeros(len(episodes), dtype=np.float32)
    per_episode[episodes.scored] = advantage
    return Credits(
        advantage=np.repeat(per_episode, episodes.lengths),
        metrics={ZERO_VARIANCE_GROUPS: fraction_true(dead), **(metrics or {})},
    )


def require_scores(episodes: Episodes, *, binary: bool, credit_name: str) -> None:
    """Raises UserCodeError, naming the first, for scores on which a credit is undefined: negative, or not 0 or 1."""
    score = np.where(episodes.scored, episodes.score, 0.0)
    bad = np.flatnonzero((score != 0.0) & (score != 1.0) if binary else score < 0)
    if len(bad):
        first = int(bad[0])
        raise UserCodeError(
            f"{credit_name} needs scores {'of 0 or 1' if binary else 'of at least 0'}: {len(bad)} of "
            f"{len(episodes)} are not, "
            f"the first {score[first]:g} of episode {first} in group {episodes.group[first]}; "
            + ("put `binarised` of credit.shaping before it" if binary else "shift the reward function's scores")
        )
