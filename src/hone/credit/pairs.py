"""Preferences from scores: which answers of a step are chosen, which rejected, and which have no say.

The label of an answer stands at each of its decisions, in the place of an advantage: 1 for a chosen (or desirable)
answer, -1 for a rejected (or undesirable) one, 0 for an answer that is in no pair.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import Ints
from hone.credit.grouping import group_numbers

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
