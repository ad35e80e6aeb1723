"""Credit of replayed answers and of surprise: hand values, loops, missing scores, and types."""

from functools import partial

import numpy as np
import pytest
from credit_batches import answers, nan
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.credit.group import group_relative
from hone.credit.shaping import self_imitation, with_curiosity


def heard(episodes: Episodes, values: Values, *, scores: list[float]) -> Credits:
    """A credit that notes the scores it was given; its advantages are 10, 11, 12 ..."""
    scores.extend(episodes.score.tolist())
    assert values is NO_VALUES
    return Credits(advantage=np.arange(10.0, 10.0 + episodes.decisions, dtype=np.float32), metrics={"live": 1.0})


def test_replayed_answers_count_by_how_much_better_they_went() -> None:
    """Replayed: 3 where 1 is expected now, 0.5 where 2 is, one without a score; beside two live ones."""
    episodes = answers(
        [3.0, 0.0, 0.5, 1.0, nan],
        [-1, 0, -1, 0, -2],
        lengths=[2, 1, 1, 3, 2],
        baseline=[1.0, nan, 2.0, nan, 0.0],
    )
    scores: list[float] = []
    found = self_imitation(episodes, NO_VALUES, credit=partial(heard, scores=scores), weight=0.5)
    assert scores == [0.0, 1.0], "the live credit sees live answers only"
    assert found.advantage.tolist() == [1.0, 1.0, 10.0, 0.0, 11.0, 12.0, 13.0, 0.0, 0.0]
    assert found.advantage.dtype == np.float32
    assert found.metrics == {"live": 1.0, "successes/advantage_mean": pytest.approx(2.0 / 3)}


def test_without_replayed_answers_the_credit_is_the_live_one() -> None:
    episodes = answers([0.0, 1.0], [0, 0])
    scores: list[float] = []
    found = self_imitation(episodes, NO_VALUES, credit=partial(heard, scores=scores), weight=0.5)
    assert scores == [0.0, 1.0]
    assert found.advantage.tolist() == [10.0, 11.0]
    assert found.metrics == {"live": 1.0}


def test_group_zero_is_live() -> None:
    episodes = answers([2.0, 2.0], [0, -1], baseline=[nan, 1.0])
    found = self_imitation(episodes, NO_VALUES, credit=partial(heard, scores=[]), weight=3.0)
    assert found.advantage.tolist() == [10.0, 3.0]


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(-4, 4), st.integers(1, 3), st.integers(-4, 4)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.25, 1.0]),
)
def test_self_imitation_agrees_with_a_loop(rows: list[tuple[int, int, int, int]], weight: float) -> None:
    groups, scores, lengths, expected = (list(column) for column in zip(*rows, strict=True))
    episodes = answers(
        [float(score) for score in scores], groups, lengths=lengths, baseline=[float(one) for one in expected]
    )
    found = self_imitation(episodes, NO_VALUES, credit=group_relative, weight=weight).advantage
    live = [place for place, group in enumerate(groups) if group >= 0]
    own = group_relative(episodes.take(np.array(live, np.int64)), NO_VALUES).advantage.tolist() if live else []
    slow: list[float] = []
    for group, score, length, before in rows:
        slow += [own.pop(0) if group >= 0 else weight * max(score - before, 0) for _ in range(length)]
    np.testing.assert_allclose(found, slow, atol=1e-6)


def test_surprise_is_paid_beside_the_score() -> None:
    """Surprises of 0.5, 9 (bounded by 2) and 1 nats, at 0.5 a nat; a missing score stays missing."""
    episodes = answers([1.0, 0.0, nan], lengths=[2, 1, 1])
    scores: list[float] = []
    found = with_curiosity(
        episodes,
        NO_VALUES,
        credit=partial(heard, scores=scores),
        surprise=lambda _: np.array([0.5, 9.0, 1.0]),
        weight=0.5,
        max_nats=2.0,
    )
    np.testing.assert_equal(scores, [1.25, 1.0, nan])
    assert found.advantage.tolist() == [10.0, 11.0, 12.0, 13.0]
    assert found.metrics == {
        "live": 1.0,
        "reward/shaping_mean": pytest.approx((0.25 + 1.0) / 2),
        "curiosity/surprise_nats": pytest.approx(3.5),
        "curiosity/surprise_max": 9.0,
    }


def test_the_world_model_is_asked_about_the_episodes_themselves() -> None:
    episodes = answers([1.0, 0.0])
    seen: list[Episodes] = []

    def surprise(asked: Episodes) -> np.ndarray:
        seen.append(asked)
        return np.zeros(len(asked))

    found = with_curiosity(episodes, NO_VALUES, credit=group_relative, surprise=surprise, weight=1.0, max_nats=1.0)
    assert seen == [episodes]
    np.testing.assert_array_equal(found.advantage, group_relative(episodes, NO_VALUES).advantage)
