"""Batches of scored answers for the tests of credit; a score of NaN is a missing one."""

import math

import numpy as np
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.ragged import offsets_of

nan = float("nan")

Batch = list[tuple[int, float]]
"""Group and score of each answer."""


def answers(
    scores: list[float],
    groups: list[int] | None = None,
    *,
    lengths: list[int] | None = None,
    rewards: list[float] | None = None,
    logp: list[float] | None = None,
    components: list[list[float]] | None = None,
    baseline: list[float] | None = None,
    truncated: list[bool] | None = None,
) -> Episodes:
    """The score is paid at the last decision unless `rewards` says otherwise."""
    count, lengths = len(scores), lengths or [1] * len(scores)
    score = np.array(scores, dtype=np.float64)
    offsets, total = offsets_of(np.array(lengths, dtype=np.int64)), sum(lengths)
    reward = np.zeros(total, np.float32)
    some = np.array(lengths) > 0
    reward[offsets[1:][some] - 1] = np.nan_to_num(score)[some]
    cut = np.zeros(count, np.bool_) if truncated is None else np.array(truncated)
    return plain_episodes(
        offsets,
        chosen=np.zeros(total),
        logp=np.zeros(total, np.float32) if logp is None else np.array(logp, np.float32),
        reward=reward if rewards is None else np.array(rewards, np.float32),
        group=np.zeros(count, np.int64) if groups is None else np.array(groups, np.int64),
        terminated=~cut,
        truncated=cut,
        score=score,
        status=np.where(np.isnan(score), ScoreStatus.TIMEOUT, ScoreStatus.SCORED).astype(np.uint8),
        components=None if components is None else np.array(components, np.float64),
        baseline=None if baseline is None else np.array(baseline, np.float64),
    )


def of(batch: Batch, **columns: object) -> Episodes:
    return answers([score for _, score in batch], [group for group, _ in batch], **columns)  # type: ignore[arg-type]


def by_group(batch: Batch) -> dict[int, list[float]]:
    """Scores that are there, by group."""
    found: dict[int, list[float]] = {}
    for group, score in batch:
        if not math.isnan(score):
            found.setdefault(group, []).append(score)
    return found


def batches(scores: st.SearchStrategy[float], *, groups: int = 3, most: int = 14) -> st.SearchStrategy[Batch]:
    one = st.tuples(st.integers(0, groups), st.one_of(scores, st.just(nan)))
    return st.lists(one, min_size=1, max_size=most)


any_scores = batches(st.integers(-8, 8).map(lambda k: k / 4))
binary_scores = batches(st.sampled_from([0.0, 1.0]))


def column(values: list[float]):
    """A `DecisionColumn` that says these numbers."""
    return lambda _: np.array(values, dtype=np.float64)
