"""Selection among several answers to a question by a scorer: whether it beats a vote, and whether it gets worse with
more answers.

Belongs here: the curve over the number of answers, from numbers and labels of a pool of answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints
from hone.estimators.calibration import probabilities
from hone.estimators.means import Estimate, mean_interval, paired_difference
from hone.text.search.estimates import best_of, pass_at, vote

Floats = NDArray[np.float64]
HeldOutKind: TypeAlias = Literal["pairs", "outcomes", "steps"]
SELECTION_POOL: Final = 64
"""Most answers of a question that are selected among."""
MIN_POOL: Final = 4
"""Fewer answers of a question show no curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScores:
    """Numbers that a scorer gave to held-out answers, beside what is known of them."""

    kind: HeldOutKind
    logits: Floats
    """`[n]` of each labelled token: an answer's last, or a step's."""
    labels: Floats
    """`[n]` of the same; of a pair's answer its score."""
    values: Floats
    """`[E]` score of each answer: that of its last token, or of its weakest step."""
    truth: Floats
    """`[E]` the answer's own label."""
    lengths: Ints
    """`[E]` tokens of each answer."""
    group: Ints
    """`[E]` answers of one example, within which pairs are compared."""
    prompt: Ints
    """`[E]` number of the question; answers to one question are selected among."""
    final_answers: Sequence[str]
    """`[E]` what is voted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPoint:
    """Mean truth of the answer that is selected from n, over all questions."""

    n: int
    best: Estimate
    """The answer with the highest score."""
    vote: float
    """The most frequent final answer."""
    weighted_vote: float
    """The final answer with the largest sum of sigmoid(score)."""
    oracle: float
    """The best answer by its label: pass@n."""


def selection_curve(held_out: HeldOutScores) -> tuple[list[SelectionPoint], list[str]]:
    """Truth of the answer selected from n = 1, 2, 4, ... answers to a question, and warnings where selecting by the
    scorer is no better than a vote, or gets worse with n. Empty without `MIN_POOL` answers to a question."""
    pools = group_members(held_out.prompt)
    sizes = np.array([len(pool) for pool in pools])
    size = min(SELECTION_POOL, int(np.median(sizes))) if len(sizes) else 0
    if size < MIN_POOL or held_out.kind == "pairs":
        return [], []
    rows = np.array([pool[:size] for pool in pools if len(pool) >= size])
    values, truth = held_out.values[rows], held_out.truth[rows]
    answers = [[held_out.final_answers[int(place)] for place in row] for row in rows]
    counts = [2**power for power in range(size.bit_length()) if 2**power < size] + [size]
    best = [best_of(values, truth, count) for count in counts]
    votes = [vote(answers, truth, count) for count in counts]
    weights = probabilities(values)
    points = [
        SelectionPoint(
            n=count,
            best=mean_interval(best[place]),
            vote=float(votes[place].mean()),
            weighted_vote=float(vote(answers, truth, count, weights=weights).mean()),
            oracle=float(pass_at(truth, count).mean()),
        )
        for place, count in enumerate(counts)
    ]
    return points, _selection_warnings(points, best, votes)


def _selection_warnings(points: Sequence[SelectionPoint], best: list[Floats], votes: list[Floats]) -> list[str]:
    last, found = points[-1], list[str]()
    if paired_difference(votes[-1], best[-1]).high < 0:
        found.append(
            f"selecting by this scorer is worse than a vote: of {last.n} answers the best-scored one is worth "
            f"{last.best.mean:.3f}, the most frequent {last.vote:.3f}, a vote weighted by the scorer "
            f"{last.weighted_vote:.3f}"
        )
    top = int(np.argmax([point.best.mean for point in points]))
    if top < len(points) - 1 and paired_difference(best[top], best[-1]).high < 0:
        found.append(
            f"selecting by this scorer gets worse with more answers: best of {points[top].n} is worth "
            f"{points[top].best.mean:.3f}, best of {last.n} {last.best.mean:.3f}: the maximum finds its errors; a vote "
            f"weighted by the scorer is worth {last.weighted_vote:.3f}"
        )
    return found


def group_members(group: Ints) -> list[Ints]:
    """Places of the members of each group, groups in ascending order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []
