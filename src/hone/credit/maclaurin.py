"""Advantages of the truncated Maclaurin series of log p, p the probability of a right answer, for scores of 0 and 1.

log p = -sum over m of (1 - p)^m / m. The first T terms are the objective of MaxRL (2026, 2602.02710): T = 1 is the mean
score, T -> infinity the likelihood of being right. Each is estimated from groups of N answers, of which K are right and
F = N - K wrong, by one weight for right and one for wrong answers. All are meant for a loss that averages over answers:
the estimate of the gradient is (1/N) sum A_i grad log pi(answer i), so they are N times the weights of the authors'
code. Groups of equal scores are counted as dead and keep their weights: a group of failures says that p is small.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.grouping import (
    Floats,
    apply_by_group_size,
    broadcast_advantage,
    group_deviation,
    group_numbers,
    require_scores,
)

SeriesBaseline: TypeAlias = Literal["none", "leave_one_out", "cross_fitted"]


GroupTable: TypeAlias = Callable[[int], tuple[Floats, Floats]]
"""Size of a group -> weights of its right and of its wrong answers, by the number of right ones `[size + 1]` each."""


def maclaurin(episodes: Episodes, _values: Values, *, terms: int, baseline: SeriesBaseline = "none") -> Credits:
    """A of a right answer = 1, of a wrong one = -sum over k = 2..min(terms, F) of C(F-1, k-1) / C(N-1, k-1): the first
    `terms` terms of log p, without bias, for `terms` of at most N (MaxRL, 2026, 2602.02710).

    The summand is the gradient of (1 - p)^k / k, estimated by all subsets of k wrong answers; k = 1 is REINFORCE. Terms
    beyond N cannot be estimated from N answers and are left out. Baselines of the summands, which reduce the variance:
    "leave_one_out", the share of all-wrong subsets among the other C(N, k) - 1 (biased, because they share answers with
    the subset); "cross_fitted", the share among the subsets that are disjoint from it (unbiased; for k above N / 2,
    where there is none, no baseline). Raises ConfigError for `terms` below 1 and UserCodeError for other scores.
    """
    if terms < 1:
        raise ConfigError(f"maclaurin: terms = {terms}; it must be at least 1")
    table = {"none": _plain, "leave_one_out": _leave_one_out, "cross_fitted": _cross_fitted}[baseline]
    return _by_number_right(episodes, lambda count: table(count, terms), name="maclaurin")


def subset_maclaurin(episodes: Episodes, _values: Values, *, terms: int, baseline_weight: float = 1.0) -> Credits:
    """A of a right answer = N c - `baseline_weight`, of a wrong one = -`baseline_weight`; c = sum over k = 1..T of
    C(K-1, k-1) C(F, T-k) / (k C(N, T)), T = `terms`: the mean over all subsets of T answers of the mean of their right
    answers' gradients (MaxRL, 2026, 2602.02710).

    Unbiased for the first T terms of log p with T of at most N, whatever `baseline_weight`, whose term has mean 0. For
    T = N it is A = R / mean_g - 1, `max_rl` of order N. Raises ConfigError for `terms` below 1 and UserCodeError for
    other scores. A group of fewer than T answers is used with T = its size.
    """
    if terms < 1:
        raise ConfigError(f"subset_maclaurin: terms = {terms}; it must be at least 1")

    def table(count: int) -> tuple[Floats, Floats]:
        right = np.arange(count + 1)
        drawn = min(terms, count)
        share = np.array([_subset_share(count, int(number), drawn) for number in right])
        return count * share - baseline_weight, np.full(count + 1, -baseline_weight)

    return _by_number_right(episodes, table, name="subset_maclaurin")


def _by_number_right(episodes: Episodes, table: GroupTable, *, name: str) -> Credits:
    """Advantage of each answer by the number of right ones in its group: `table` of a group's size gives the weights of
    right and of wrong answers `[size + 1]` each.
    """
    require_scores(episodes, binary=True, credit_name=name)
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers)

    def judge(scores: Floats) -> Floats:
        right, wrong = table(scores.shape[1])
        number = scores.sum(axis=1).astype(np.int64)[:, None]
        return np.where(scores == 1.0, right[number], wrong[number])

    return broadcast_advantage(episodes, apply_by_group_size(score, numbers, judge), dead)


def _plain(count: int, terms: int) -> tuple[Floats, Floats]:
    wrong = np.zeros(count + 1)
    for number in range(count):
        failures = count - number
        wrong[number] = -sum(_share(failures - 1, count - 1, k - 1) for k in range(2, min(terms, failures) + 1))
    return np.ones(count + 1), wrong


def _leave_one_out(count: int, terms: int) -> tuple[Floats, Floats]:
    right, wrong = np.ones(count + 1), np.zeros(count + 1)
    for number in range(count - 1):
        failures = count - number
        for k in range(2, min(terms, count - 1) + 1):
            share = math.comb(failures, k) / (math.comb(count, k) - 1)
            right[number] += share
            wrong[number] += share * (1.0 - count / failures)
    if terms >= count > 1:
        wrong[0] -= 1.0  # all subsets of N: one, so there is no other
    return right, wrong


def _cross_fitted(count: int, terms: int) -> tuple[Floats, Floats]:
    right, wrong = _plain(count, terms)
    for number in range(count - 1):
        failures = count - number
        for k in range(2, min(terms, count // 2) + 1):
            scale = count / (k * math.comb(count, k) * math.comb(count - k, k))
            right[number] += scale * _disjoint(failures, number - 1, k)
            wrong[number] += scale * _disjoint(failures - 1, number, k)
    return right, wrong


def _disjoint(failures: int, rights: int, k: int) -> int:
    """Pairs of disjoint subsets of k answers: the first of a given answer and k - 1 of `failures` wrong and `rights`
    right others, the second all wrong.
    """
    if min(failures, rights) < 0:
        return 0
    wrong = range(min(k - 1, failures) + 1)
    return sum(math.comb(failures, t) * math.comb(rights, k - 1 - t) * math.comb(failures - t, k) for t in wrong)


def _subset_share(count: int, right: int, drawn: int) -> float:
    """Weight of each right answer: the mean over subsets of `drawn` answers of 1 / right ones in the subset."""
    ways = sum(
        math.comb(right - 1, k - 1) * math.comb(count - right, drawn - k) / k for k in range(1, min(drawn, right) + 1)
    )
    return ways / math.comb(count, drawn)


def _share(failures: int, count: int, k: int) -> float:
    """C(failures, k) / C(count, k): the probability that k of `count` answers are all among `failures`."""
    return math.comb(failures, k) / math.comb(count, k)
