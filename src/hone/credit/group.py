"""Group-relative credit: answers to the same question judge each other, and no critic is needed.

Scores that are missing leave the statistics and get no credit. Groups with a single score, or whose scores are all
equal, say nothing about which answer was better: their advantage is 0, and they are counted.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes

Scale = Literal["group", "batch", "none"]

STD_FLOOR = 1e-6
"""A group's standard deviation below this share of its largest score is rounding, not signal."""


def group_relative(episodes: Episodes, _values: Values, *, scale: Scale = "group", epsilon: float = 1e-6) -> Credits:
    """A = (R - mean_g) / (std_g + epsilon), the same for every decision of an episode (GRPO, Shao et al. 2024).

    `scale="none"` leaves the division out (Dr.GRPO, Liu et al. 2025); `"batch"` divides by the standard deviation of
    all centred scores. Standard deviations are of a sample (ddof 1), which is what the published libraries run.
    """
    scored = episodes.scored
    numbers, centred, deviation, dead = _centre(episodes.score[scored], episodes.group[scored])
    if scale == "group":
        advantage = np.where(dead[numbers], 0.0, centred / (deviation[numbers] + epsilon))
    else:
        overall = centred.std(ddof=1) if scale == "batch" and len(centred) > 1 else 1.0
        advantage = np.where(dead[numbers], 0.0, centred / (overall + (epsilon if scale == "batch" else 0.0)))
    return _spread(episodes, advantage, dead)


def leave_one_out(episodes: Episodes, _values: Values) -> Credits:
    """A_i = R_i - mean of the other answers' scores = K/(K-1) (R_i - mean_g) (RLOO, Ahmadian et al. 2024)."""
    scored = episodes.scored
    numbers, centred, _, dead = _centre(episodes.score[scored], episodes.group[scored])
    count = np.bincount(numbers, minlength=len(dead))[numbers]
    advantage = np.where(dead[numbers], 0.0, centred * count / np.maximum(count - 1, 1))
    return _spread(episodes, advantage, dead)


def _centre(
    score: NDArray[np.float64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Of scores `[S]` in G groups: dense group number `[S]`, score minus its group's mean `[S]`, sample standard
    deviation of each group `[G]`, and which groups say nothing `[G]`."""
    _, numbers = np.unique(group, return_inverse=True)
    count = np.bincount(numbers)
    centred = score - (np.bincount(numbers, weights=score) / np.maximum(count, 1))[numbers]
    squares = np.bincount(numbers, weights=centred**2)
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    size = np.zeros(len(count))
    np.maximum.at(size, numbers, np.abs(score))
    # by the group's own scores: a large penalty elsewhere in the batch must not silence this group
    return numbers, centred, deviation, deviation <= STD_FLOOR * size


def _spread(episodes: Episodes, advantage: NDArray[np.float64], dead: NDArray[np.bool_]) -> Credits:
    """The advantage of each scored episode `[S]` on each of its decisions `[N]`."""
    per_episode = np.zeros(len(episodes), dtype=np.float32)
    per_episode[episodes.scored] = advantage
    return Credits(
        advantage=np.repeat(per_episode, episodes.lengths),
        metrics={"reward/zero_variance_groups": float(dead.mean()) if len(dead) else 0.0},
    )
