"""Advantages for the best of k answers, and for the logarithm of the probability of a right answer.

Their expected gradient is that of pass@k, of the expected maximum of k scores, or of sums of these. All are per answer
and meant for a loss that averages over answers: the estimate of the gradient is (1/N) sum A_i grad log pi(answer i) for
a group of N.

The truncated Maclaurin series of log p, p the probability of a right answer, is for scores of 0 and 1:
log p = -sum over m of (1 - p)^m / m. The first T terms are the objective of MaxRL (2026, 2602.02710): T = 1 is the mean
score, T -> infinity the likelihood of being right. Each is estimated from groups of N answers, of which K are right and
F = N - K wrong, by one weight for right and one for wrong answers. All are meant for a loss that averages over answers:
the estimate of the gradient is (1/N) sum A_i grad log pi(answer i), so they are N times the weights of the authors'
code. Groups of equal scores are counted as dead and keep their weights: a group of failures says that p is small.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.credit.group import Ddof
from hone.credit.grouping import (
    Floats,
    apply_by_group_size,
    broadcast_advantage,
    group_credits,
    group_deviation,
    group_numbers,
    require_scores,
)

PkpoBaseline = Literal["minus_one", "leave_one_out"]


def best_of_group(
    episodes: Episodes,
    _values: Values,
    *,
    scale: Literal["group", "none"] = "group",
    ddof: Ddof = 1,
    epsilon: float = 1e-6,
) -> Credits:
    """A of the group's best answer = (R_max - R_second) / (std_g + epsilon), all others 0 (Tang et al. 2025,
    2503.19595).

    The leave-one-out credit of the maximum over the whole group (k = N). Two equal best answers give 0.
    `scale="none"` is the unbiased form, up to the factor N of an average over answers. Elsewhere: verl's 'grpo_passk'
    raises for single answers; here 0.
    """

    def judge(score: Floats) -> Floats:
        ordered = np.sort(score, axis=1)
        margin = ordered[:, -1] - ordered[:, -2]
        if scale == "group":
            margin = margin / np.where(margin > 0, score.std(axis=1, ddof=ddof) + epsilon, 1.0)
        result = np.zeros_like(score)
        result[np.arange(len(score)), score.argmax(axis=1)] = margin
        return result

    return group_credits(episodes, judge)


def pass_at_k(episodes: Episodes, _values: Values, *, k: int, epsilon: float = 1e-6) -> Credits:
    """Pass@k training's analytical advantage (Chen et al. 2025, 2508.10751), for scores of 0 or 1.

    N answers of which W are wrong: P = 1 - C(W,k)/C(N,k), s = sqrt(P(1-P)); right: (1-P)/(s + epsilon); wrong: (1 - P
    - C(W-1,k-1)/C(N-1,k-1))/(s + epsilon). The mean and deviation are over all subsets of k answers, so the deviation
    is of a population, and k = 1 is GRPO with ddof 0. Groups with fewer than k scores get 0 and are counted
    (`reward/groups_too_small`). Raises UserCodeError for other scores. Elsewhere: the authors' code leaves rewards
    other than exactly 0 and 1 as they are.
    """
    _require_k(k, minimum=1)
    require_scores(episodes, binary=True, credit_name="pass_at_k")

    def judge(score: Floats) -> Floats:
        count = score.shape[1]
        wrong = count - score.sum(axis=1).astype(np.int64)
        failing = _ratios(count, k)[wrong]  # C(W,k) / C(N,k)
        failing_rest = _ratios(count - 1, k - 1)[np.maximum(wrong - 1, 0)]
        spread_ = np.sqrt(failing * (1 - failing)) + epsilon
        return np.where(score == 1.0, failing[:, None], (failing - failing_rest)[:, None]) / spread_[:, None]

    return group_credits(episodes, judge, min_scores=max(k, 2))


def pkpo(episodes: Episodes, _values: Values, *, k: int, baseline: PkpoBaseline = "minus_one") -> Credits:
    """Gradient of the expected maximum of k scores, without bias (PKPO, Walder & Karkhanis 2025, 2505.15201).

    s_i = sum over subsets I of k answers that contain i of [max_I R - b] / C(N,k), A_i = N s_i. "minus_one" (the
    paper's choice, its equation 33): b = max of I without i, for k of at least 2. "leave_one_out" (after equation 29):
    b = 0, and k times the mean of max_J R over the subsets J of k others is taken from A_i; needs more than k answers,
    and is RLOO for k = 1. Scores may be any numbers. Groups with fewer scores than that get 0 and are counted
    (`reward/groups_too_small`).

    Elsewhere: the paper's code returns s_i; the factor N comes from the average over answers. Its leave-one-out
    baseline is k/(N-1) of that mean where k/N would centre s_i: as unbiased, but groups of equal scores then have a
    gradient, and k = 1 is not RLOO; here it is k/N. MaxRL's code has, for scores of 0 and 1, R_i C(W,k-1)/C(N-1,k-1)
    centred by leave-one-out once more: the first is A_i/k of "minus_one", and the second centring is biased, as the
    others' terms depend on answer i.
    """
    _require_k(k, minimum=2 if baseline == "minus_one" else 1)
    judge = _minus_one if baseline == "minus_one" else _without_i
    return group_credits(episodes, partial(judge, k=k), min_scores=k if baseline == "minus_one" else k + 1)


def max_rl(
    episodes: Episodes,
    _values: Values,
    *,
    order: Literal["n_minus_one", "n"] = "n_minus_one",
    centered: bool = True,
    standardised: bool = False,
    power: float = 1.0,
    mean_floor: float = 0.0,
    epsilon: float = 1e-6,
) -> Credits:
    """A = (R - mean_g) / (mean_g + epsilon): maximum likelihood of being right (MaxRL, 2026, 2602.02710).

    With N answers the expected gradient is that of -sum over m = 1..M of (1-p)^m / m, the first M terms of log p.
    "n_minus_one" (M = N - 1): groups without a right answer get 0, as in the authors' main code and prime-rl. "n" (M =
    N): every answer of such a group, single answers included, gets -1 (the authors' `VR_COND` weights); these groups
    still count as dead. Exact for epsilon = 0 and scores of 0 or 1, by enumeration. Scores may be any number >= 0;
    raises UserCodeError for negative ones, which would flip the sign.

    Side types of the authors' code: `centered=False` is R / (mean_g + epsilon), the mean of right answers' gradients
    ('conditional_expectation'). `standardised` divides by the group's deviation (ddof 0) as well ('p_normalization' of
    'misc'). `power=0.5` divides by the root of the mean ('one_sided_grpo'). `mean_floor=0.125` bounds the divisor from
    below ('clipped_pnorm'). None of these has the expected gradient above.

    Elsewhere: a single answer gets R/1e-6 in the authors' code and its raw score in SkyRL; here 0 (a right one, or
    order N - 1) or -1 (a wrong one, order N). prime-rl's docstring gives order N for an estimator of order N - 1.
    """
    require_scores(episodes, binary=False, credit_name="max_rl")
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    deviation, dead = group_deviation(score, numbers, ddof=0)
    mean = np.bincount(numbers, weights=score) / np.maximum(np.bincount(numbers), 1)
    silent = dead if centered else mean == 0.0
    divisor = np.maximum(mean, mean_floor) ** power + epsilon
    if standardised:
        divisor = divisor * (deviation + epsilon)
        silent = dead
    above = score - mean[numbers] if centered else score
    advantage = np.where(silent[numbers], 0.0, above / np.where(silent, 1.0, divisor)[numbers])
    if order == "n":
        advantage = np.where(mean[numbers] == 0.0, -1.0, advantage)
    return broadcast_advantage(episodes, advantage, dead)


def _minus_one(score: Floats, *, k: int) -> Floats:
    """`[g, N]` -> `[g, N]`: i gains R_i - R_j in the C(j, k-2) subsets in which it is best and j second best."""
    order, ordered = _ascending(score)
    second = _ranked(score.shape[1], k - 2, math.comb(score.shape[1], k))
    result = ordered * _before(np.broadcast_to(second, score.shape)) - _before(ordered * second)
    return _back(order, result * score.shape[1])


def _without_i(score: Floats, *, k: int) -> Floats:
    """`[g, N]` -> `[g, N]`: N s_i - k times the mean of the maximum over all subsets of k of the others."""
    count = score.shape[1]
    order, ordered = _ascending(score)
    whole = math.comb(count, k)
    best = _ranked(count, k - 1, whole)  # of all subsets, those in which rank i is best
    # C(j-1, k-2) / C(count, k) for ranks j: the share of subsets in which j is best and a given lower answer takes part
    taken = np.array([math.comb(rank - 1, k - 2) / whole if rank and k > 1 else 0.0 for rank in range(count)])
    own = ordered * best + _after(ordered * taken)
    among = _ranked(count - 1, k - 1, math.comb(count - 1, k))  # ranks above i lose one when i is left out
    others = _before(ordered * np.append(among, 0.0)) + _after(ordered * np.append(0.0, among))
    return _back(order, own * count - others * k)


def _ascending(score: Floats) -> tuple[Ints, Floats]:
    order = np.argsort(score, axis=1, kind="stable")
    return order, np.take_along_axis(score, order, axis=1)


def _back(order: Ints, values: Floats) -> Floats:
    """Values of the ascending answers, in the answers' own order."""
    result = np.empty_like(values)
    np.put_along_axis(result, order, values, axis=1)
    return result


def _before(values: Floats) -> Floats:
    """Sum of the entries before each, along rows."""
    return np.cumsum(values, axis=1) - values


def _after(values: Floats) -> Floats:
    """Sum of the entries after each, along rows."""
    return _before(values[:, ::-1])[:, ::-1]


def _ranked(count: int, k: int, whole: int) -> Floats:
    """C(j, k) / `whole` for ranks j = 0 .. count-1: whole numbers are divided, for C(2048, 1024) is no double."""
    return np.array([math.comb(rank, k) / whole for rank in range(count)])


def _ratios(count: int, k: int) -> Floats:
    """C(w, k) / C(count, k) for w = 0 .. count."""
    whole = math.comb(count, k)
    return np.array([math.comb(wrong, k) / whole for wrong in range(count + 1)])


def _require_k(k: int, *, minimum: int) -> None:
    if k < minimum:
        raise ConfigError(f"k = {k}: it must be at least {minimum}")


# ------------------------------------------------------------------------------------------------------------ maclaurin


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
            pairs = k * math.comb(count, k) * math.comb(count - k, k)
            right[number] += count * _disjoint(failures, number - 1, k) / pairs
            wrong[number] += count * _disjoint(failures - 1, number, k) / pairs
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
    # sum over k of C(right-1, k-1) C(wrong, drawn-k) / k, with C(right-1, k-1) / k = C(right, k) / right
    whole = math.comb(count, drawn)
    return (whole - math.comb(count - right, drawn)) / (right * whole) if right else 0.0


def _share(failures: int, count: int, k: int) -> float:
    """C(failures, k) / C(count, k): the probability that k of `count` answers are all among `failures`."""
    return math.comb(failures, k) / math.comb(count, k)
