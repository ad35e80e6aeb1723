"""Values on the boundaries of the shields: the last value that is allowed, and the first one that is not."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from manual_clock import ManualClock
from shield_cars import ACTIONS

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError
from hone.decide.shield import bounds as bounds_module
from hone.decide.shield import certificate as certificate_module
from hone.decide.shield import game as game_module
from hone.decide.shield.bounds import Interval, RangeFinder, zero_division
from hone.decide.shield.formulas import Division, next_trees
from hone.decide.shield.game import TOLERANCE_CELLS, GridAxis, SafetyGame, StateGrid, grid_game, state_grid
from hone.decide.shield.guard import ActionMatcher, GuardedShield, SensorReader, project_action
from hone.decide.shield.invariant import invariant_model
from hone.decide.shield.model import ControlModelConfig, control_model, parse_expression
from hone.decide.shield.page import ShieldPageData


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


def test_sizes_and_extrema_that_touch_have_one_slope() -> None:
    # Each is x / 2, or -x / 2, over all of its box: monotone, so that the ends are exact
    assert _range("abs(x) - 0.5 * x", x=(0.0, 2.0)) == (0.0, 1.0)
    assert _range("abs(x) + 0.5 * x", x=(-2.0, 0.0)) == (0.0, 1.0)
    for text in ("min(x, 2) - 0.5 * x", "min(2, x) - 0.5 * x", "max(x, 0) - 0.5 * x", "max(0, x) - 0.5 * x"):
        assert _range(text, x=(0.0, 2.0)) == (0.0, 1.0)


def test_a_box_that_ends_at_zero_is_cut_in_its_middle() -> None:
    for text, x in (("x * x - x", (0.0, 1.0)), ("x * x + x", (-1.0, 0.0))):
        low, _ = _range(text, x=x)
        assert -0.2502 < low <= -0.25  # at x = 1/2, or -1/2


def test_a_slope_that_ends_at_zero_is_monotone_and_another_name_is_cut() -> None:
    # y - y y is at least 0; its bound comes near as y is cut, and stays at -1 where x is cut instead
    for text, x in (
        ("max(min(x, y), y - y * y)", (-10.0, 1000.0)),
        ("max(min(0 - x, y), y - y * y)", (-1000.0, 10.0)),
    ):
        sides = {"x": Interval(np.array([x[0]]), np.array([x[1]])), "y": Interval(np.zeros(1), np.ones(1))}
        low = RangeFinder(sides, rounds=3).end(parse_expression(text, place="e").tree, upper=False)
        assert -0.25 < low[0] <= 0.0


def _judgements(monkeypatch: pytest.MonkeyPatch, text: str, x: tuple[float, float]) -> int:
    """Number of times that pieces are judged for the lower bound of an expression."""
    calls, judge = list[int](), bounds_module._judge

    def counted(*given: Any) -> Any:
        calls.append(1)
        return judge(*given)

    with monkeypatch.context() as patched:
        patched.setattr(bounds_module, "_judge", counted)
        sides = {"x": Interval(np.array([x[0]]), np.array([x[1]]))}
        RangeFinder(sides).end(parse_expression(text, place="e").tree, upper=False)
    return len(calls)


def test_a_bound_that_a_value_meets_is_not_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judgements(monkeypatch, "x + x", (1.0, 2.0)) == 1
    assert _judgements(monkeypatch, "max(x, x)", (math.inf, math.inf)) == 1  # nothing is above it


def test_pieces_are_halved_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_module, "MAX_PIECES", 2)
    assert _judgements(monkeypatch, "x * x - x", (0.0, 1.0)) == 2  # one piece makes 2, and those would make 4
    # x^2 - x + 1 is above 0 in both halves; the plain bound of the whole is 0
    division = Division(divisor=parse_expression("x**2 - x + 1", place="e").tree, path=(), words="1 / x")
    boxes = {"x": Interval(np.zeros(1), np.ones(1))}
    for pieces, point in ((20, None), (19, {"x": 0.0})):
        monkeypatch.setattr(bounds_module, "MAX_PIECES", pieces)
        assert zero_division(division, boxes) == point


def test_a_divisor_that_ends_at_zero_names_the_point_zero() -> None:
    division = Division(divisor=parse_expression("x", place="e").tree, path=(), words="1 / x")
    for low, high in ((0.0, 1.0), (-1.0, 0.0)):
        boxes = {"x": Interval(np.array([low]), np.array([high]))}
        assert zero_division(division, boxes) == {"x": 0.0}


def test_a_zero_with_a_sign_is_an_end_at_zero() -> None:
    low, high = _range("a / b", a=(1.0, 2.0), b=(-0.0, 1.0))
    assert low == pytest.approx(1.0)
    assert high == math.inf


def test_a_counterexample_has_as_many_steps_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = control_model(_model(disturbances={"w": {"low": 1.0, "high": 1.0}}))
    made = grid_game(model)
    solved, start = made.game.winning_region(), made.grid.number([0.0])
    for limit, steps, unsafe in ((2, 2, False), (9, 5, True)):  # from 0 by 1 each time to 5
        monkeypatch.setattr(certificate_module, "MAX_STEPS", limit)
        played = certificate_module._replay_play(model, made, solved, start)
        held = certificate_module._hold(model, {"x": 0.0}, 0, {"w": 1.0})
        for found in (played, held):
            assert (len(found.actions), found.unsafe) == (steps, unsafe)


def test_a_next_value_may_have_as_many_parts_and_be_as_deep_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = control_model(_model())  # (x + u) + w: three parts, two sums inside each other
    for parts, nested, fits in ((3, 2, True), (2, 2, False), (3, 1, False)):
        monkeypatch.setattr("hone.decide.shield.formulas.MAX_PARTS", parts)
        monkeypatch.setattr("hone.decide.shield.formulas.MAX_NESTED", nested)
        if fits:
            assert len(next_trees(model)) == 1
        else:
            with pytest.raises(ConfigError, match="has 3 parts, 2 inside each other"):
                next_trees(model)


def test_as_many_disturbances_are_tried_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = control_model(_model())
    for limit, tried in ((3, [0.0, 0.5, 1.0]), (2, [0.0, 1.0])):
        monkeypatch.setattr(game_module, "MAX_TRIED", limit)
        assert [one["w"] for one in grid_game(model).disturbances] == tried


def _pair(**changes: Any) -> ControlModelConfig:
    """Two variables of six cells that one disturbance moves together."""
    side = {"low": 0.0, "high": 5.0, "step": 1.0, "worse": "high"}
    return _model(
        safe="x < 5 and y < 5", variables={"x": side, "y": side}, next={"x": "x + u + w", "y": "y + w"}, **changes
    )


def test_a_disturbance_that_never_varies_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_module, "MAX_MOVES", 36)
    assert grid_game(control_model(_pair(disturbances={"w": {"low": 0.5, "high": 0.5}}))).grid.shape == (6, 6)
    with pytest.raises(ConfigError, match="has 144 moves"):  # four pieces
        grid_game(control_model(_pair()))


def test_an_end_that_is_reached_in_the_second_round_is_kept() -> None:
    for floor, end in ((-2.0, -2.0), (-3.0, -math.inf)):
        model = control_model(_model(next={"x": f"max(x - 1, {floor}) + u + 0 * w"}))
        trees = next_trees(model, duration_s=1.0)
        assert game_module._ends(model, state_grid(model), trees) == {"x": end}


def test_sixteen_pieces_are_compared_and_equal_ones_are_no_better_than_each_other() -> None:
    grid = StateGrid(names=("x",), axes=(_axis(),))
    for pieces, compared in ((16, True), (17, False)):
        cells = [np.zeros((4, pieces), np.int32)]
        assert game_module._no_better(grid, cells, pieces).all() == compared


def test_a_matcher_keeps_64_sets_of_actions() -> None:
    matcher = ActionMatcher(known=("a", "b"), fallback="a")
    for number in range(70):
        actions = ActionSet(names=("a", f"b{number}"))
        assert matcher.match(np.ones(2, np.bool_), actions).tolist() == [True, False]
    assert len(matcher._order) == 64


def test_a_range_may_differ_from_whole_steps_by_a_millionth() -> None:
    def ranged(high: float) -> ControlModelConfig:
        return _model(variables={"x": {"low": 0.0, "high": high, "step": 1.0, "worse": "high"}})

    assert control_model(ranged(1e-6)).variables == ("x",)
    with pytest.raises(ConfigError, match="no whole number of steps"):
        control_model(ranged(2e-6))


def test_a_model_of_two_variables_has_a_map_and_one_of_one_has_none(tmp_path: Path) -> None:
    shield = _Slow(ManualClock(), 0.0)
    for config, mapped in ((_pair(), True), (_model(), False)):
        shown = ShieldPageData(name="s", model=control_model(config), certificate=None, shield=shield)
        shown.write(tmp_path / "page.html")
        assert ("Region" in (tmp_path / "page.html").read_text("utf-8")) == mapped


@pytest.mark.parametrize(
    ("following", "invariant", "where"),
    [
        ("3 + w", "x < 4", ("w", 1.0)),
        ("w", "x > 0", ("w", 0.0)),
        ("3 + dt + 0 * w", "x < 4", ("dt", 1.0)),
        ("dt + 0 * w", "x > 0", ("dt", 0.0)),
    ],
)
def test_a_claim_that_fails_only_at_an_end_of_a_range_is_not_proved(
    following: str, invariant: str, where: tuple[str, float]
) -> None:
    pytest.importorskip("z3")
    model = control_model(_model(safe=invariant, next={"x": following}))
    claims = invariant_model(model, [invariant], 0).prove().claims
    assert not claims[-1].proved
    assert "keeps the invariant" in claims[-1].claim
    assert claims[-1].disturbance is not None
    assert {**claims[-1].disturbance, "dt": claims[-1].duration_s}[where[0]] == where[1]


def test_the_outcome_of_the_worst_disturbance_is_no_worse_than_itself() -> None:
    pytest.importorskip("z3")
    model = control_model(_model(safe="x <= 4", next={"x": "3 + w"}))
    proof = invariant_model(model, ["x <= 4"], 0).prove()
    assert all(claim.proved for claim in proof.claims)
    assert proof.worst == {"w": 1.0}


def test_products_within_the_limits_of_exact_errors_are_exact_and_others_move_outwards() -> None:
    tiny, huge = 1e-280, 1e280
    for a, b, exact in (
        (tiny, 1.0, False), (math.nextafter(tiny, 1), 1.0, True),
        (2.0, huge / 2, False), (2.0, math.nextafter(huge, 0) / 2, True),
        (huge, 0.5, False), (math.nextafter(huge, 0), 0.5, True),
        (0.5, huge, False), (0.5, math.nextafter(huge, 0), True),
    ):  # fmt: skip
        low, high = _range("a * b", a=(a, a), b=(b, b))
        assert (low == a * b == high) == exact
        assert exact or low < a * b < high
