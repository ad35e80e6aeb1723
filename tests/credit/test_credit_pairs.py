"""Labels of answers from scores: who is chosen, who is rejected, who has no say."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.ragged import offsets_of
from hone.credit.grouping import best_and_worst, desirability


def answers_of(score: list[float | None], group: list[int]) -> Episodes:
    """One to three decisions an answer; None: no score."""
    lengths = np.arange(len(score)) % 3 + 1
    missing = np.array([one is None for one in score], np.bool_)
    return plain_episodes(
        offsets_of(lengths),
        group=np.array(group, np.int64),
        score=np.array([np.nan if one is None else one for one in score], np.float64),
        status=np.where(missing, ScoreStatus.ERROR, ScoreStatus.SCORED).astype(np.uint8),
    )


def labels(episodes: Episodes, advantage: np.ndarray) -> list[float]:
    for number in range(len(episodes)):
        begin, end = episodes.offsets[number : number + 2]
        assert len(set(advantage[begin:end].tolist())) == 1
    return advantage[episodes.offsets[:-1]].tolist()


def test_best_and_worst_by_hand() -> None:
    score = [0.5, 0.9, 0.1, 0.9, 3.0, 3.0, None, 1.0, None]
    episodes = answers_of(score, [7, 7, 7, 7, 2, 2, 2, 5, 5])
    found = best_and_worst(episodes, NO_VALUES)
    assert labels(episodes, found.advantage) == [0, 1, -1, 0, 0, 0, 0, 0, 0]
    assert found.metrics == {"preference/pairs": 1.0, "preference/ties": 1.0 - 1 / 3}


def test_without_a_score_there_is_no_pair() -> None:
    episodes = answers_of([None, None], [0, 0])
    found = best_and_worst(episodes, NO_VALUES)
    assert not found.advantage.any()
    assert found.metrics == {"preference/pairs": 0.0, "preference/ties": 1.0}


@given(st.data())
def test_a_pair_is_one_of_the_best_against_one_of_the_worst(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    score = data.draw(st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=count, max_size=count))
    group = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    episodes = answers_of(score, group)
    found = np.array(labels(episodes, best_and_worst(episodes, NO_VALUES).advantage))
    for number in set(group):
        mine = np.array(group) == number
        known = [one for one, inside in zip(score, mine, strict=True) if inside and one is not None]
        paired = len(set(known)) > 1
        assert ((found == 1) & mine).sum() == ((found == -1) & mine).sum() == int(paired)
        if paired:
            assert score[int(np.flatnonzero((found == 1) & mine)[0])] == max(known)
            assert score[int(np.flatnonzero((found == -1) & mine)[0])] == min(known)


def test_desirable_is_above_zero() -> None:
    episodes = answers_of([1.0, 0.0, None, -2.0, 0.5], [0, 1, 2, 3, 4])
    found = desirability(episodes, NO_VALUES)
    assert labels(episodes, found.advantage) == [1, -1, 0, -1, 1]
    assert found.metrics == {"preference/desirable_share": 0.5}
    assert desirability(replace(episodes, status=np.full(5, 2, np.uint8)), NO_VALUES).metrics == {
        "preference/desirable_share": 0.0
    }


def test_one_group_has_no_ties_or_all() -> None:
    told = best_and_worst(answers_of([1.0, 0.0], [0, 0]), NO_VALUES)
    assert told.metrics == {"preference/pairs": 1.0, "preference/ties": 0.0}
    assert told.advantage.dtype == np.float32
    assert best_and_worst(answers_of([1.0, 1.0], [0, 0]), NO_VALUES).metrics["preference/ties"] == 1.0


def test_the_share_of_one_desirable_answer() -> None:
    told = desirability(answers_of([1.0], [0]), NO_VALUES)
    assert told.metrics == {"preference/desirable_share": 1.0}
    assert told.advantage.dtype == np.float32
