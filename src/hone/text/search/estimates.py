"""Accuracy of selecting among k of the N answers of a pool, averaged over all subsets of k: unbiased in k <= N answers.

One pool of N answers to each of P problems says what every smaller number of answers would have been worth, with less
noise than a run for each. All functions return one number for each problem, `[P]`, so that plans can be compared on the
same problems.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints
from hone.core.random import generator
from hone.text.search.searching import NO_ANSWER

Floats = NDArray[np.float64]


def pass_at(truth: Floats, k: int) -> Floats:
    """Mean over subsets of the highest of `truth` `[P, N]`: for 0 and 1, the chance that one of k answers is right.

    1 - C(N - c, k) / C(N, k) for c right answers (Chen et al., "Evaluating large language models trained on code",
    2021).
    """
    return best_of(truth, truth, k)


def best_of(scores: Floats, truth: Floats, k: int) -> Floats:
    """Mean over subsets of k of the truth of the best-scored answer. `scores`, `truth` `[P, N]`.

    sum over values v of scores: P(v is the highest of k) times the mean truth of the answers with score v, where
    P = (C(at most v, k) - C(below v, k)) / C(N, k). Equal scores: each is as likely to come first. NaN is below any
    number.
    """
    _check(scores.shape[1], k)
    result = np.zeros(len(truth))
    for problem, (own, right) in enumerate(zip(_lowest(scores), truth, strict=True)):
        _, of = np.unique(own, return_inverse=True)
        counts = np.bincount(of)
        means = np.bincount(of, weights=right) / counts
        upto = np.concatenate([[0], np.cumsum(counts)])
        ways = np.array([comb(int(n), k) / comb(len(own), k) for n in upto])
        result[problem] = float(np.diff(ways) @ means)
    return result


def vote(
    answers: Sequence[Sequence[str]],
    truth: Floats,
    k: int,
    *,
    weights: Floats | None = None,
    seed: int = 0,
    subsets: int = 64,
) -> Floats:
    """Mean over subsets of k of the truth of the voted answer; `weights` `[P, N]` make it a weighted vote.

    Within a subset the mean is over all orders of its answers, which decide ties. A vote has no closed form over
    subsets: they are `subsets` random ones, the same for all problems, or all of them where they are that few.
    """
    count = truth.shape[1]
    _check(count, k)
    if comb(count, k) <= subsets:
        rows = [np.array(row) for row in combinations(range(count), k)]
    else:
        random = generator(seed, "search/subsets", count, k)
        rows = [random.permutation(count)[:k] for _ in range(subsets)]
    result = np.zeros(len(truth))
    for problem, texts in enumerate(answers):
        number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        kinds = np.array([number[text] for text in texts])
        scores = np.ones(count) if weights is None else weights[problem]
        chosen = [_vote_one(kinds[row], scores[row], truth[problem, row], none=number.get(NO_ANSWER)) for row in rows]
        result[problem] = np.mean(chosen)
    return result


def _vote_one(kinds: Ints, scores: Floats, truth: Floats, *, none: int | None) -> float:
    """Truth of the voted answer, in the mean over orders: of kinds with equal sums the one whose first member comes
    first wins, so each wins in proportion to its members; of a kind's best-scored members each is as likely."""
    counts = np.bincount(kinds)
    sums = np.bincount(kinds, weights=np.where(np.isnan(scores), 0.0, scores))
    sums[counts == 0] = -np.inf
    if none is not None and none < len(counts) and (np.delete(counts, none) > 0).any():
        sums[none] = -np.inf
    share = np.where(sums == sums.max(), counts, 0) / counts[sums == sums.max()].sum()
    lowest = _lowest(scores)
    return sum(
        float(share[kind] * truth[members][lowest[members] == lowest[members].max()].mean())
        for kind in np.flatnonzero(share).tolist()
        for members in (kinds == kind,)
    )


def distinct(keys: Sequence[Sequence[bytes]], sizes: Floats, k: int) -> Floats:
    """Mean over subsets of k of the summed sizes of distinct answers: the work of a scorer that reads equal ones once.

    Each key with count c adds its size times 1 - C(N - c, k) / C(N, k). `sizes` `[P, N]`, equal for equal keys.
    """
    count = sizes.shape[1]
    _check(count, k)
    result = np.zeros(len(sizes))
    for problem, row in enumerate(keys):
        for key, number in Counter(row).items():
            share = 1 - comb(count - number, k) / comb(count, k)
            result[problem] += share * sizes[problem, row.index(key)]
    return result


def _check(count: int, k: int) -> None:
    if not 1 <= k <= count:
        raise ValueError(f"{k} of {count} answers cannot be selected among; draw at least {k} answers")


def _lowest(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), -np.inf, scores)
