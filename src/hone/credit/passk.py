"""Advantages for the best of k answers, and for the logarithm of the probability of a right answer.

Their expected gradient is that of pass@k, of the expected maximum of k scores, or of sums of these. All are per answer
and meant for a loss that averages over answers: the estimate of the gradient is (1/N) sum A_i grad log pi(answer i) for
a group of N.
"""

import math
from functools import partial
from typing import Literal

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.credit.group import Ddof
from hone.credit.grouping import (
    Floats,
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
    `scale="none"` is the unbiased form, up to the factor N of an average over answers. Elsewhere: verl's `grpo_passk`
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
    (`conditional_expectation`). `standardised` divides by the group's deviation (ddof 0) as well (`p_normalization` of
    `misc`). `power=0.5` divides by the root of the mean (`one_sided_grpo`). `mean_floor=0.125` bounds the divisor from
    below (`clipped_pnorm`). None of these has the expected gradient above.

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
    second = _ranked(score.shape[1], k - 2) / math.comb(score.shape[1], k)
    result = ordered * _before(np.broadcast_to(second, score.shape)) - _before(ordered * second)
    return _back(order, result * score.shape[1])


def _without_i(score: Floats, *, k: int) -> Floats:
    """`[g, N]` -> `[g, N]`: N s_i - k times the mean of the maximum over all subsets of k of the others."""
    count = score.shape[1]
    order, ordered = _ascending(score)
    best = _ranked(count, k - 1) / math.comb(count, k)  # of all subsets, those in which rank i is best
    taken = _companions(count, k)  # those in which rank j is best and a given lower answer takes part
    own = ordered * best + _after(ordered * taken)
    among = _ranked(count - 1, k - 1) / math.comb(count - 1, k)  # ranks above i lose one when i is left out
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


def _ranked(count: int, k: int) -> Floats:
    """C(j, k) for ranks j = 0 .. count-1."""
    return np.array([float(math.comb(rank, k)) for rank in range(count)])


def _companions(count: int, k: int) -> Floats:
    """C(j-1, k-2) / C(count, k) for ranks j: the share of subsets in which j is best and a given lower answer takes
    part."""
    whole = math.comb(count, k)
    return np.array([math.comb(rank - 1, k - 2) / whole if rank and k > 1 else 0.0 for rank in range(count)])


def _ratios(count: int, k: int) -> Floats:
    """C(w, k) / C(count, k) for w = 0 .. count."""
    whole = math.comb(count, k)
    return np.array([math.comb(wrong, k) / whole for wrong in range(count + 1)])


def _require_k(k: int, *, minimum: int) -> None:
    if k < minimum:
        raise ConfigError(f"k = {k}: it must be at least {minimum}")
