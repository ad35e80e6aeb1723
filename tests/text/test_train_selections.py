"""Selections of answers against a slow reading: right, once each, at most so many of a problem; the best of a group."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import DataError
from hone.text.answer_data import answer_episodes, answer_tokens
from hone.text.collecting.selections import best_answers, right_answers

ANSWERS = st.lists(
    st.tuples(
        st.integers(0, 2),  # problem
        st.integers(0, 2),  # answer
        st.sampled_from([0.0, 0.5, 1.0, np.nan]),
        st.booleans(),  # truncated
    ),
    min_size=1,
    max_size=12,
)
Row = tuple[int, int, float, bool]


def episodes_of(rows: list[Row]) -> Episodes:
    """A problem is a prompt of one to three tokens, an answer one or two tokens; every second row is of a new group."""
    made = answer_episodes(
        [
            answer_tokens(np.arange(problem + 1, dtype=np.int32), np.arange(7, 8 + answer, dtype=np.int32))
            for problem, answer, _, _ in rows
        ],
        scores=[score for _, _, score, _ in rows],
        groups=[10 * problem for problem, _, _, _ in rows],
    )
    truncated = np.array([cut for _, _, _, cut in rows])
    status = np.where(np.isnan(made.score), ScoreStatus.ERROR, ScoreStatus.SCORED).astype(np.uint8)
    return replace(made, truncated=truncated, terminated=~truncated, status=status, reward=np.zeros_like(made.reward))


def texts(episodes: Episodes) -> list[tuple[int, int]]:
    """Problem and answer of each episode."""
    return [
        (int(at) - 1 - int(start), int(length) - 1)
        for at, start, length in zip(
            episodes.transcript.at[episodes.offsets[:-1]],
            episodes.transcript.offsets[:-1],
            episodes.lengths,
            strict=True,
        )
    ]


@given(rows=ANSWERS, most=st.sampled_from([None, 1, 2]))
def test_right_answers(rows: list[Row], most: int | None) -> None:
    wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    kept: list[tuple[int, int]] = []
    for problem, answer, score, cut in rows:
        if score >= 0.5 and not cut and (problem, answer) not in wanted[problem]:
            wanted[problem].append((problem, answer))
            if most is None or len(wanted[problem]) <= most:
                kept.append((problem, answer))
    episodes = episodes_of(rows)
    if not kept:
        with pytest.raises(DataError, match="no answer can be imitated"):
            right_answers(episodes, min_score=0.5, max_per_problem=most)
        return
    found = right_answers(episodes, min_score=0.5, max_per_problem=most)
    assert texts(found.episodes) == kept
    assert (found.episodes.reward == 1).all()
    problems = {problem for problem, *_ in rows}
    solved = {problem for problem, _ in kept}
    assert found.metrics["rounds/unsolved_problems"] == len(problems - solved)
    right = [row for row in rows if row[2] >= 0.5 and not row[3]]
    assert found.metrics["rounds/right_answers"] == len(right)
    assert found.metrics["rounds/repeated_answers"] == len(right) - len({row[:2] for row in right})


@given(rows=ANSWERS)
def test_best_answers(rows: list[Row]) -> None:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if not np.isnan(row[2]):
            groups[row[0]].append(row)
    episodes = episodes_of(rows)
    if not groups:
        with pytest.raises(DataError, match=r"none of .* answers has a score"):
            best_answers(episodes)
        return
    found = best_answers(episodes)
    best = [max(own, key=lambda row: row[2]) for own in groups.values()]
    assert sorted(texts(found.episodes)) == sorted(row[:2] for row in best)
    assert found.metrics["rounds/best_score"] == pytest.approx(np.mean([row[2] for row in best]))
    gains = [max(row[2] for row in own) - np.mean([row[2] for row in own]) for own in groups.values()]
    assert found.metrics["rounds/gain_of_the_best"] == pytest.approx(np.mean(gains))
