"""Potentials and running statistics at their edges: what a table refuses, precision, empty pieces, saved states."""

from math import sqrt

import numpy as np
import pytest
from test_credit_moments import pieces
from test_credit_potential import lived

from hone.core.errors import DataError
from hone.credit.moments import ReturnScale, RunningMeanStd
from hone.credit.potential import (
    DistancePotential,
    LinearPotential,
    TablePotential,
    build_potential,
    potential_shaped,
    state_bonus_shaped,
)

STATES = TablePotential(kind="table", values=[1.0, 10.0, 100.0])


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8])
def test_a_table_takes_the_numbers_of_its_states(kind: type) -> None:
    assert build_potential(STATES)(np.array([0, 2], kind)).tolist() == [1.0, 100.0]


@pytest.mark.parametrize(
    "seen",
    [np.array([0.0, 1.0]), np.array([[0], [1]]), np.array([0, -1]), np.array([0, 3]), np.array([True, False])],
    ids=["numbers", "axes", "below", "above", "flags"],
)
def test_a_table_refuses_everything_else(seen: np.ndarray) -> None:
    with pytest.raises(DataError, match="a potential of 3 states"):
        build_potential(STATES)(seen)


def test_potentials_flatten_what_is_seen() -> None:
    seen = np.arange(12.0).reshape(2, 3, 2)
    linear = build_potential(LinearPotential(kind="linear", weights=[1.0, 0, 0, 0, 0, 2.0]))
    assert linear(seen).tolist() == [10.0, 28.0]
    distance = build_potential(DistancePotential(kind="distance", columns=[0, 5], target=[3.0, 1.0], weight=2.0))
    assert distance(seen).tolist() == pytest.approx([-2 * sqrt(9 + 16), -2 * sqrt(9 + 100)])
    beyond = build_potential(DistancePotential(kind="distance", columns=[6], target=[0.0]))
    with pytest.raises(DataError, match="a potential of columns"):
        beyond(seen)


def test_potentials_are_added_in_float64_and_paid_in_float32() -> None:
    draws = np.random.default_rng(0)
    table = draws.standard_normal(200).astype(np.float32)
    seen = list(range(200))
    episodes = lived(seen, [7], [200], terminated=[False])
    wide, after = table.astype(np.float64), np.append(table[1:], table[7]).astype(np.float64)
    shaped = potential_shaped(episodes, potential=lambda one: table[one], discount=0.9)
    assert shaped.reward.dtype == np.float32
    assert (shaped.reward == (episodes.reward + 0.9 * after - wide).astype(np.float32)).all()
    bonus = state_bonus_shaped(episodes, potential=lambda one: table[one])
    assert bonus.reward.dtype == np.float32 and (bonus.reward == (episodes.reward + after).astype(np.float32)).all()


# ---------------------------------------------------------------------------------------------- running statistics


def test_statistics_of_nothing_are_one_for_each_number() -> None:
    assert RunningMeanStd(3).std.tolist() == [1.0, 1.0, 1.0]


def test_empty_pieces_change_no_return() -> None:
    plain, padded = ReturnScale(0.9), ReturnScale(0.9)
    plain.update(pieces([2, 3], [4, 5], [False, True], 0))
    padded.update(pieces([0, 2, 3], [9, 4, 5], [False, False, True], 0))
    assert padded.open_returns == plain.open_returns and padded.scale == plain.scale
    padded.update(pieces([1], [6], [False], 1))
    assert set(padded.open_returns) == {4, 6}, "an episode that is not in a batch is still open"


def test_a_saved_state_has_a_return_for_each_number() -> None:
    empty = ReturnScale(0.9).state()
    assert (empty["numbers"].dtype, empty["returns"].dtype) == (np.int64, np.float64)  # type: ignore[union-attr]
    scale = ReturnScale(0.9)
    scale.update(pieces([2], [4], [False], 0))
    state = scale.state()
    with pytest.raises(ValueError, match="zip"):
        ReturnScale(0.9).restore({**state, "returns": np.zeros(2)})
