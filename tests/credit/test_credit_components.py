"""Several rewards at once: by hand, by loops, and what it is for."""

import math
import statistics

import numpy as np
import pytest
from credit_batches import answers, nan
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import concatenate
from hone.core.errors import ConfigError, DataError
from hone.credit.group import gdpo

ZERO = "reward/zero_variance_groups"


def judged(groups: list[int], components: list[list[float]], *, lost: list[int] | None = None):
    score = [nan if place in (lost or []) else float(np.nansum(row)) for place, row in enumerate(components)]
    return answers(score, groups, components=components)


def slow(groups: list[int], components: list[list[float]], lost: list[int], weights: list[float]) -> list[float]:
    heard = [place for place in range(len(groups)) if place not in lost]
    total, alive = dict.fromkeys(heard, 0.0), dict.fromkeys(groups, False)
    for c, weight in enumerate(weights):
        for group in set(groups):
            rows = [place for place in heard if groups[place] == group and not math.isnan(components[place][c])]
            own = [components[place][c] for place in rows]
            if len(set(own)) < 2:
                continue
            alive[group] = True
            for place in rows:
                z = (components[place][c] - statistics.fmean(own)) / (statistics.stdev(own) + 1e-4)
                total[place] += weight * z
    values = list(total.values())
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    if spread > 1e-6 * max(map(abs, values), default=0.0):
        total = {place: (value - statistics.fmean(values)) / (spread + 1e-4) for place, value in total.items()}
    return [total[place] if place in total and alive[groups[place]] else 0.0 for place in range(len(groups))]


def test_by_hand() -> None:
    """Two answers: right and long (1, -1), wrong and short (0, 0). Each reward says +-1/sqrt(2), up to epsilon: with
    equal weights they cancel. In another unit (-100) they still do not outweigh three times the first."""
    assert gdpo(judged([0, 0], [[1, -1], [0, 0]]), NO_VALUES).advantage.tolist() == [0, 0]
    found = gdpo(judged([0, 0], [[1, -100], [0, 0]]), NO_VALUES, weights=[3, 1]).advantage
    np.testing.assert_allclose(found, [math.sqrt(0.5), -math.sqrt(0.5)], rtol=1e-3)


rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.booleans(),
        st.one_of(st.integers(-4, 4).map(float), st.just(nan)),
        st.one_of(st.integers(-4, 4).map(float), st.just(nan)),
    ),
    min_size=1,
    max_size=12,
)


@given(rows)
def test_the_slow_version_agrees(batch: list[tuple[int, bool, float, float]]) -> None:
    groups, components = [row[0] for row in batch], [[row[2], row[3]] for row in batch]
    lost = [place for place, row in enumerate(batch) if row[1]]
    credits = gdpo(judged(groups, components, lost=lost), NO_VALUES, weights=[1.0, 0.5])
    np.testing.assert_allclose(credits.advantage, slow(groups, components, lost, [1.0, 0.5]), atol=1e-4)


def test_a_reward_in_another_unit_changes_nothing() -> None:
    groups, components = [0, 0, 0, 1, 1], [[1.0, 3], [0, 5], [1, 1], [1, 2], [0, 9]]
    plain = gdpo(judged(groups, components), NO_VALUES).advantage
    other = gdpo(judged(groups, [[a, 1000 * b + 7] for a, b in components]), NO_VALUES).advantage
    np.testing.assert_allclose(other, plain, atol=1e-3)


def test_a_group_is_dead_when_every_reward_is_silent() -> None:
    credits = gdpo(judged([0, 0, 1, 1, 2], [[1, 2], [1, 2], [1, 2], [1, 3], [4, 4]]), NO_VALUES)
    assert credits.metrics[ZERO] == 2 / 3
    assert credits.advantage[[0, 1, 4]].tolist() == [0, 0, 0]
    assert credits.advantage[3] > 0.5


def test_what_it_needs() -> None:
    with pytest.raises(DataError, match=r"episodes\.components"):
        gdpo(answers([1, 0]), NO_VALUES)
    with pytest.raises(ConfigError, match="3 weights for 2 reward functions"):
        gdpo(judged([0, 0], [[1, 2], [3, 4]]), NO_VALUES, weights=[1, 1, 1])
    assert gdpo(judged([0], [[1, 2]], lost=[0]), NO_VALUES).advantage.tolist() == [0]


def test_components_and_baselines_travel_with_their_episodes() -> None:
    first = answers([1, 0], components=[[1, 2], [3, 4]], baseline=[5, 6], lengths=[1, 2])
    taken = concatenate([first, first]).take(np.array([3, 0]))
    assert taken.components is not None
    assert taken.components.tolist() == [[3, 4], [1, 2]]
    assert taken.baseline is not None
    assert taken.baseline.tolist() == [6, 5]
    with pytest.raises(AssertionError, match="1 of 2 pieces have components"):
        concatenate([first, answers([1, 0], baseline=[1, 1])])
    with pytest.raises(AssertionError, match=r"baseline has shape \(3,\), expected \(2,\)"):
        answers([1, 0], baseline=[1, 2, 3])
