"""Scores that mean nothing are told once: all alike from the first, or far from those before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.rewards.score_watch import FAR_SD, MIN_ALIKE, MIN_SEEN, ScoreWatch


def notices(*batches: list[float]) -> list[str]:
    watch = ScoreWatch("reward server 'q'")
    for batch in batches:
        watch.observe(batch)
    return watch.notices()


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, 500.0, float("nan")]), max_size=40), max_size=8))
def test_far_scores_are_those_beyond_ten_deviations_of_all_before(batches: list[list[float]]) -> None:
    expected, seen = False, list[float]()
    for batch in batches:
        known = [score for score in batch if score == score]
        if len(seen) >= MIN_SEEN and np.std(seen) > 0:
            expected |= bool((np.abs(np.array(known) - np.mean(seen)) > FAR_SD * np.std(seen, ddof=1)).any())
        seen += known
    assert any("standard deviations" in notice for notice in notices(*batches)) == expected


def test_a_jump_is_told_with_its_numbers_once() -> None:
    calm = np.random.default_rng(0).normal(1.0, 0.5, MIN_SEEN).tolist()
    (notice,) = notices(calm, [1.0, 300.0, -500.0], [1e6])
    assert notice.startswith("reward server 'q' gave 2 of 3 scores more than 10 standard deviations from the 64 before")
    assert "the furthest is -500" in notice
    assert notices(calm[:-1], [300.0]) == []


def test_one_score_for_all_is_told_from_the_first_answers_on() -> None:
    assert notices([2.0] * (MIN_ALIKE - 1)) == []
    assert notices([2.0] * 10, [2.0] * 6, [2.0] * 9) == [
        f"reward server 'q' gave all of the first {MIN_ALIKE} answers the same score, 2: it tells nothing"
    ]
    assert notices([1.0], [2.0] * 100) == [], "a group of equal scores is no fault"
