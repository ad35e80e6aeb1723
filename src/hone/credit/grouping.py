"""Groups of scored answers: computes advantages group by group without a loop over groups.

Groups of equal size are stacked as a matrix `[g, n]`, so an estimator is written for a matrix of scores, one row per
question, and runs once per distinct size. Missing scores never enter; a group with a single score, or with equal
scores, is *dead*: it has no information about which answer was better, its advantage is 0, and it is counted.

Also here: further inputs of credit functions (one number per decision, or flags of decisions that end a step; a
recipe passes a function that computes them), and preferences from scores. The label of an answer stands at each of its
decisions, in the place of an advantage: 1 for a chosen (or desirable) answer, -1 for a rejected (or undesirable) one, 0
for an answer that is in no pair.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError, UserCodeError
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


# ---------------------------------------------------------------------------------------------------------------- pairs


LabelCredit: TypeAlias = Callable[[Episodes, Values], Credits]
"""Episodes with scores -> labels of their answers, without a state of its own."""


def best_and_worst(episodes: Episodes, _values: Values) -> Credits:
    """A = 1 for the best scored answer of each group, -1 for the worst, 0 for the others: a group's pair, for losses on
    pairs (DPO, Rafailov et al., 2023). The earlier one where several are level.

    Groups without two different scores have no pair. Of a group of two, as in a dataset of preferences, the answer
    with the higher score is the chosen one. Metrics: pairs, and the share of the groups that have none.
    """
    scored = np.flatnonzero(episodes.scored)
    label = np.zeros(len(episodes))
    groups = len(np.unique(episodes.group))
    pairs = 0
    if len(scored):
        numbers, score = group_numbers(episodes), episodes.score[scored]
        best, worst = _first_of_each(numbers, -score), _first_of_each(numbers, score)
        differ = score[best] > score[worst]
        label[scored[best[differ]]], label[scored[worst[differ]]] = 1.0, -1.0
        pairs = int(differ.sum())
    metrics = {"preference/pairs": float(pairs), "preference/ties": 1.0 - pairs / max(groups, 1)}
    return Credits(advantage=label.astype(np.float32)[episodes.owner], metrics=metrics)


def desirability(episodes: Episodes, _values: Values) -> Credits:
    """A = 1 where the score is above 0, -1 where it is 0 or less, 0 without a score: labels of single answers (KTO,
    Ethayarajh et al., 2024).

    Metric: the share of desirable answers among those with a score.
    """
    label = np.where(episodes.score > 0, 1.0, -1.0) * episodes.scored
    share = float((label > 0).sum() / max(int((label != 0).sum()), 1))
    return Credits(advantage=label.astype(np.float32)[episodes.owner], metrics={"preference/desirable_share": share})


def _first_of_each(numbers: Ints, order: np.ndarray) -> Ints:
    """Position of the least `order` in each group, the first of equals."""
    sequence = np.lexsort((order, numbers))
    return sequence[np.unique(numbers[sequence], return_index=True)[1]]


# -------------------------------------------------------------------------------------------------------------- columns
# Further inputs of credit functions: columns (one number per decision) and marks (decisions that end a step).
#
# Columns need a network, so a recipe passes a function that computes them; `checked_column` checks its result.


CreditFunction: TypeAlias = Callable[[Episodes, Values], Credits]
"""Episodes and critic values -> advantages and value targets."""
DecisionColumn: TypeAlias = Callable[[Episodes], NDArray[np.floating]]
"""One number per decision `[N]`: a log-probability under some policy, a token's implicit reward."""
StepEnds: TypeAlias = Callable[[Episodes], NDArray[np.bool_]]
"""Flags of the decisions that end a step `[N]`."""


def behaviour_logp(episodes: Episodes) -> NDArray[np.floating]:
    """The log-probability under the behaviour policy, in nats `[N]`."""
    return episodes.logp


def checked_column(column: DecisionColumn, episodes: Episodes, name: str) -> Floats:
    """The column as float64 `[N]`; raises DataError for a wrong shape or a number that is not finite."""
    result = np.asarray(column(episodes), dtype=np.float64)
    if result.shape != (episodes.decisions,):
        raise DataError(f"{name} has shape {list(result.shape)}, expected [{episodes.decisions}]: one per decision")
    bad = np.flatnonzero(~np.isfinite(result))
    if len(bad):
        place = int(bad[0])
        episode = int(np.searchsorted(episodes.offsets, place, side="right")) - 1
        raise DataError(
            f"{name} is not finite for {len(bad)} of {len(result)} decisions, the first {result[place]} at decision "
            f"{place - int(episodes.offsets[episode])} of episode {episode}; record it, or use a credit without it"
        )
    return result


def episode_ends(episodes: Episodes) -> NDArray[np.bool_]:
    """Marks the last decision of each episode `[N]`: an episode is one step."""
    marks = np.zeros(episodes.decisions, dtype=np.bool_)
    marks[episodes.offsets[1:][episodes.lengths > 0] - 1] = True
    return marks


def turn_ends(episodes: Episodes) -> NDArray[np.bool_]:
    """Marks `[N]` the last decision of each turn, and the last of each episode; for transcripts. A turn ends before
    tokens of the environment and, where `episodes.turn` was recorded, before the next turn's."""
    marks = episode_ends(episodes)
    marks[:-1] |= np.diff(episodes.transcript.at) > 1
    if episodes.turn is not None:
        marks[:-1] |= np.diff(episodes.turn) != 0
    return marks


def delimiter_ends(episodes: Episodes, *, tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Marks each decision that chose one of `tokens` (a line's end), and the last of each episode `[N]`."""
    return np.isin(episodes.chosen, np.asarray(tokens)) | episode_ends(episodes)
