"""Values on the boundaries of the shields: the last value that is allowed, and the first one that is not."""

import math
from typing import Any

import numpy as np
import pytest
from manual_clock import ManualClock
from shield_cars import ACTIONS

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError
from hone.decide.shield.bounds import Interval, RangeFinder
from hone.decide.shield.game import TOLERANCE_CELLS, GridAxis, SafetyGame, StateGrid, grid_game
from hone.decide.shield.guard import GuardedShield, SensorReader, project_action
from hone.decide.shield.model import ControlModelConfig, control_model, parse_expression


def _axis(*, exact: bool = False, count: int = 4, scale: float = 1.0) -> GridAxis:
    return GridAxis(origin=0.0, scale=scale, count=count, exact=exact)


def _model(**changes: Any) -> ControlModelConfig:
    values: dict[str, Any] = {
        "step_s": 1.0, "safe": "x < 5", "variables": {"x": {"low": 0.0, "high": 5.0, "step": 1.0, "worse": "high"}},
        "actions": {"stay": {"u": "0"}}, "disturbances": {"w": {"low": 0.0, "high": 1.0}}, "next": {"x": "x + u + w"},
    }  # fmt: skip
    return ControlModelConfig.model_validate({**values, **changes})


def test_the_first_and_the_last_cell_belong_to_the_grid() -> None:
    for exact in (False, True):
        axis = _axis(exact=exact)
        grid = StateGrid(names=("x",), axes=(axis,))
        assert axis.coordinates(np.array([0.0, 1.0, 3.0])).tolist() == [0, 1, 3]
        assert [grid.number([value]) for value in (0.0, 1.0, 3.0)] == [0, 1, 3]
        assert grid.number([-1.0]) == -1
    assert _axis(exact=True).coordinates(np.array([4.0, 0.5])).tolist() == [-1, -1]
    exact, falling = (StateGrid(names=("x",), axes=(_axis(exact=one),)) for one in (True, False))
    assert exact.axes[0].coordinates(np.array([1e-6, 2e-6])).tolist() == [0, -1]
    assert [exact.number([value]) for value in (1e-6, 2e-6)] == [0, -1]
    assert [falling.number([value]) for value in (-TOLERANCE_CELLS, -2 * TOLERANCE_CELLS)] == [0, -1]
    assert _axis().coordinates(np.array([4.0])).tolist() == [3]


def test_a_grid_of_two_cells_has_an_order() -> None:
    two = StateGrid(names=("x",), axes=(_axis(count=2),))
    assert len(two.closure_faults(np.array([True, False]), "region")) == 1
    assert two.closure_faults(np.array([False, True]), "region") == []


def test_a_losing_play_has_as_many_actions_as_its_limit() -> None:
    chain = SafetyGame(successors=np.array([[[1, 2, 3, 4, 4]]], np.int32), safe=np.array([True] * 4 + [False]))
    rank = chain.winning_region().rank
    assert rank.tolist() == [4, 3, 2, 1, 0]
    assert len(chain.losing_play(rank, 0, limit=2).actions) == 2
    assert len(chain.losing_play(rank, 0, limit=9).actions) == 4


def test_a_sensor_in_the_last_place_is_read_and_one_behind_it_is_missing() -> None:
    reader = SensorReader((0, 2))
    assert reader.read(np.array([1.0, 2.0, 3.0])) == [1.0, 3.0]
    assert reader.read(np.array([1.0, 2.0])) is None


class _Slow:
    """A shield that allows everything after some time."""

    certificate = ""

    def __init__(self, clock: ManualClock, takes_s: float) -> None:
        self.clock, self.takes_s = clock, takes_s

    def allowed(self, context: np.ndarray, actions: ActionSet) -> np.ndarray:
        self.clock.advance(self.takes_s)
        return np.ones(len(actions), np.bool_)

    def fallback(self, context: np.ndarray, actions: ActionSet) -> int:
        return 1


def test_a_verdict_at_its_deadline_counts_and_a_later_one_does_not() -> None:
    for takes_s, counts in ((0.25, True), (0.5, False)):
        clock = ManualClock()
        guarded = GuardedShield(inner=_Slow(clock, takes_s), clock=clock, deadline_s=0.25)
        assert guarded.allowed(np.zeros(1), ACTIONS).all() == counts


def test_the_first_and_the_last_action_are_actions_and_their_neighbours_are_not() -> None:
    shield = _Slow(ManualClock(), 0.0)
    last = len(ACTIONS) - 1
    assert project_action(shield, np.zeros(1), ACTIONS, 0) == 0
    assert project_action(shield, np.zeros(1), ACTIONS, last) == last
    assert project_action(shield, np.zeros(1), ACTIONS, last + 1) == 1  # the fallback
    assert project_action(shield, np.zeros(1), ACTIONS, -1) == 1


def test_an_expression_may_be_as_long_as_deep_and_as_large_as_the_limit() -> None:
    assert parse_expression("a".ljust(2000), place="rule", known=frozenset("a")).text == "a"
    with pytest.raises(ConfigError, match="2001 characters, at most 2000"):
        parse_expression("a".ljust(2001), place="rule")
    assert parse_expression("abs(" * 60 + "a" + ")" * 60, place="rule").over({"a": -3.0}) == 3.0
    with pytest.raises(ConfigError, match="61 operations inside each other, at most 60"):
        parse_expression("abs(" * 61 + "a" + ")" * 61, place="rule")
    assert parse_expression("1e15 + a", place="rule").over({"a": 0.0}) == 1e15
    with pytest.raises(ConfigError):
        parse_expression("1.1e15 + a", place="rule")


def test_a_model_has_at_most_64_actions_and_its_ranges_are_not_empty() -> None:
    for count, fits in ((64, True), (65, False)):
        config = _model(actions={f"a{number}": {"u": "0"} for number in range(count)})
        if fits:
            assert len(control_model(config).actions) == 64
        else:
            with pytest.raises(ConfigError, match="actions: 65, at most 64 are allowed"):
                control_model(config)
    with pytest.raises(ConfigError, match="low 5 is not below high 5"):
        control_model(_model(variables={"x": {"low": 5.0, "high": 5.0, "step": 1.0, "worse": "high"}}))
    still = control_model(_model(disturbances={"w": {"low": 1.0, "high": 1.0}}))
    assert still.corners()[0] == {"w": 1.0}


def _range(text: str, **boxes: tuple[float, float]) -> tuple[float, float]:
    """Least and largest value of an expression over a box."""
    sides = {name: Interval(np.array([low]), np.array([high])) for name, (low, high) in boxes.items()}
    bounds = RangeFinder(sides).range(parse_expression(text, place="e").tree)
    return float(bounds.low[0]), float(bounds.high[0])


def test_a_divisor_that_ends_at_zero_is_unbounded_on_its_side_only() -> None:
    low, high = _range("a / b", a=(1.0, 2.0), b=(0.0, 1.0))
    assert low == pytest.approx(1.0)
    assert high == math.inf
    low, high = _range("a / b", a=(1.0, 2.0), b=(-1.0, 0.0))
    assert low == -math.inf
    assert high == pytest.approx(-1.0)
    assert _range("a / b", a=(1.0, 2.0), b=(0.0, 0.0)) == (-math.inf, math.inf)


def test_ranges_that_touch_may_be_equal() -> None:
    for x, y in (((0.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (0.0, 1.0))):
        assert _range("1 if x == y else 0", x=x, y=y) == (0.0, 1.0)
        assert _range("1 if x != y else 0", x=x, y=y) == (0.0, 1.0)
    assert _range("1 if x == y else 0", x=(0.0, 1.0), y=(1.5, 2.0)) == (0.0, 0.0)


def test_powers_and_sizes_of_a_range_that_ends_at_zero() -> None:
    assert _range("x**3", x=(0.0, 2.0)) == (0.0, 8.0)
    assert _range("x**3", x=(-2.0, 0.0)) == (-8.0, 0.0)
    assert _range("abs(x)", x=(-2.0, 0.0)) == _range("abs(x)", x=(0.0, 2.0)) == (0.0, 2.0)


def test_a_game_may_have_as_many_moves_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = control_model(_model())  # 6 states, 1 action, 1 extreme that matters
    monkeypatch.setattr("hone.decide.shield.game.MAX_MOVES", 6)
    assert grid_game(model).grid.shape == (6,)
    monkeypatch.setattr("hone.decide.shield.game.MAX_MOVES", 5)
    with pytest.raises(ConfigError, match="a grid of 6 states has 6 moves"):
        grid_game(model)
