"""Selection of one of n answers: by the highest score, by a vote, or by a vote that scores weigh."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NO_ANSWER = ""
"""Final answer of a text that has none; it gets no vote unless nothing else does."""


def best(scores: Floats) -> int:
    """Index of the highest of `scores` `[n]`, the first of equal ones; NaN is lower than any number."""
    return int(np.where(np.isnan(scores), -np.inf, scores).argmax()) if not np.isnan(scores).all() else 0


def majority(answers: Sequence[str]) -> int:
    """Index of the first answer of the most frequent kind; of equally frequent kinds, the one that came first."""
    return weighted_vote(answers, np.ones(len(answers)))


def weighted_vote(answers: Sequence[str], scores: Floats) -> int:
    """Index of the best-scored answer of the kind with the largest sum of scores (Li et al., "Making language models
    better reasoners with step-aware verifier", 2022).

    NaN adds nothing. Negative scores count against their answer, so scores should be probabilities. Ties go to the
    kind, and within it to the answer, that came first.
    """
    weights = np.where(np.isnan(scores), 0.0, scores)
    kinds = list(dict.fromkeys(answers))
    voted = [kind for kind in kinds if kind != NO_ANSWER] or kinds
    number = {kind: place for place, kind in enumerate(kinds)}
    of = np.array([number[answer] for answer in answers])
    sums = np.bincount(of, weights=weights, minlength=len(kinds))
    winner = max(voted, key=lambda kind: sums[number[kind]])  # the first of equal ones
    members = np.flatnonzero(of == number[winner])
    return int(members[best(scores[members])])
