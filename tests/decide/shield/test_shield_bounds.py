"""Bounds over boxes, and games of models of every form: what is certified holds for every state between the cells."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError
from hone.decide.shield.bounds import Interval, RangeFinder, zero_division
from hone.decide.shield.certificate import UnprovedShieldError, certify
from hone.decide.shield.formulas import divisions
from hone.decide.shield.model import ControlModel, ShieldSpec, control_model, parse_expression, shield_spec

FORMS = (
    "x * (1 - x)",
    "8 * x * (4 - x) / 4 - y",
    "x**3 - 3 * x * y",
    "abs(x - y) * x",
    "min(x, y, x * y)",
    "max(x * y - x, y**2)",
    "x / (1 + y**2) + x",
    "x if x < y else 2 * y - x",
    "x**2 if abs(x) < 1 else 2 * abs(x) - 1",
    "(x - y)**5",
    "1 / (x - 10) + x",
    "x * y * x - y * x**2",
    "max(0, min(1, x)) * y",
    "(x + y)**2 - 4 * x * y",
    "0.1 * x if x > 0.3 and not y > 1 or x < -2 else y",
    "y / (x if x > 0.5 else 0.5)",
)


@examples(20)
@given(st.sampled_from(FORMS), st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 3), st.floats(0, 3), st.data())
def test_no_value_of_a_box_is_beyond_its_bounds(
    text: str, x: float, y: float, wide: float, high: float, data: st.DataObject
) -> None:
    expression = parse_expression(text, place="e")
    boxes = {"x": Interval(np.array([x]), np.array([x + wide])), "y": Interval(np.array([y]), np.array([y + high]))}
    bounds = RangeFinder(boxes).range(expression.tree)
    for _ in range(5):
        point = {
            name: data.draw(st.one_of(st.sampled_from([box.low[0], box.high[0]]), st.floats(box.low[0], box.high[0])))
            for name, box in boxes.items()
        }
        exact = _exactly(text, {name: Fraction(float(value)) for name, value in point.items()})
        assert Fraction(float(bounds.low[0])) <= exact <= Fraction(float(bounds.high[0]))


def _exactly(text: str, values: dict[str, Fraction]) -> Fraction:
    """The value in fractions, in which nothing is rounded."""
    exact = text.replace("0.1", "F(0.1)").replace("0.3", "F(0.3)").replace("0.5", "F(0.5)")
    names = {"__builtins__": {}, "min": min, "max": max, "abs": abs, "F": Fraction}
    return Fraction(eval(exact, names, dict(values)))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("8 * x * (4 - x) / 4", 0, 8),
        ("x * x", 0, 16),
        ("x**3 - 6 * x**2 + 9 * x", 0, 4),
        ("abs(x - 2) - x", -2, 2),
        ("min(x, 4 - x)", 0, 2),
        ("x if x < 1 else 2 - x", -2, 1),
        ("(x - 1) * (x - 3)", -1, 3),
        ("x - x", 0, 0),
        ("1 / (1 + (x - 2)**2)", 0.2, 1),
    ],
)
def test_extrema_inside_a_box_are_found(text: str, low: float, high: float) -> None:
    bounds = RangeFinder({"x": Interval(np.array([0.0]), np.array([4.0]))}).range(
        parse_expression(text, place="e").tree
    )
    assert low - 2e-3 <= bounds.low[0] <= low + 1e-12
    assert high - 1e-12 <= bounds.high[0] <= high + 2e-3


def test_results_that_are_exact_stay_exact_and_others_move_outwards() -> None:
    box = {"x": Interval(np.array([3.0]), np.array([3.0]))}
    for text, value in (
        ("x + 0.5", 3.5),
        ("x * 0.5", 1.5),
        ("x / 2", 1.5),
        ("x**3", 27.0),
        ("(x - 1) * (x - 5)", -4.0),
    ):
        bounds = RangeFinder(box).range(parse_expression(text, place="e").tree)
        assert (bounds.low[0], bounds.high[0]) == (value, value)
    for text in ("x / 7", "x * 0.1", "x + 0.1"):
        bounds = RangeFinder(box).range(parse_expression(text, place="e").tree)
        assert math.nextafter(bounds.low[0], math.inf) == bounds.high[0]


# ------------------------------------------------------------------------------------------------------------- games


def tank(
    inflow: str, *, variables: dict[str, Any] | None = None, others: dict[str, Any] | None = None, **more: Any
) -> ShieldSpec:
    """A tank that must not run over: `inflow` comes in, the pump takes 0, 5 or 10 out."""
    model = {
        "step_s": 0.5,
        "safe": "level <= 20",
        "variables": {"level": {"low": 0.0, "high": 20.0, "step": 0.5, "worse": "high"}} | (variables or {}),
        "actions": {"drain": {"out": "10"}, "slow": {"out": "5"}, "idle": {"out": "0"}},
        "disturbances": {"w": {"low": 0.0, "high": 4.0}} if others is None else others,
        "next": {"level": f"max(level + (({inflow}) - out) * dt, 0)"},
    }
    return shield_spec({"kind": "game", "fallback": "drain", "model": model | more}, place="tank")


def certified_steps_hold(spec: ShieldSpec, *, count: int = 600, seed: int = 3) -> int:
    """Assert that allowed actions keep random states, between the cells too, safe and in the region -> how many."""
    certificate = certify(spec)  # type: ignore[arg-type]
    model = control_model(spec.model)  # type: ignore[union-attr]
    shield = certificate.open(model.variables)
    actions = ActionSet(names=model.actions)
    draws, seen = np.random.default_rng(seed), 0
    for _ in range(count):
        state = dict[str, float]()
        for name, one in model.config.variables.items():
            cell = one.low + one.step * draws.integers(0, 1 + round((one.high - one.low) / one.step))
            between = draws.uniform(one.low, one.high)
            state[name] = float(cell if one.worse == "neither" or draws.random() < 0.5 else between)
        flags = shield.allowed(np.array(list(state.values())), actions)
        for action in np.flatnonzero(flags):
            seen += 1
            others = dict[str, float]()
            for name, bound in model.config.disturbances.items():
                inside = draws.uniform(bound.low, bound.high)
                others[name] = float(draws.choice([bound.low, bound.high, inside, (bound.low + bound.high) / 2]))
            after = {name: float(value) for name, value in model.after(dict(state), int(action), others).items()}
            assert bool(model.is_safe(dict(after))), (state, action, others, after)
            assert shield.allowed(np.array(list(after.values())), actions).any(), (state, action, others, after)
    return seen


@pytest.mark.parametrize(
    ("inflow", "most"),
    [
        ("8 * w * (4 - w) / 4", 8.0),
        ("2 * w", 8.0),
        ("w**2 / 2", 8.0),
        ("4 - abs(w - 2) * 2", 4.0),
        ("min(3 * w, 12 - 3 * w)", 6.0),
        ("max(0, 5 - (w - 1.5)**2)", 5.0),
        ("9 - (w - 1)**4", 9.0),
        ("12 / (1 + (w - 2)**2) - 3", 9.0),
        ("w if w < 2 else 6 - w", 4.0),
        ("w * (w - 1) * (w - 2) * (w - 4) * -1 / 2", 4.0),
        ("abs(abs(w - 2) - 1) * 6", 6.0),
    ],
)
def test_the_worst_disturbance_may_lie_anywhere_within_its_bounds(inflow: str, most: float) -> None:
    """The drain takes 10, more than any inflow; `slow` is safe at the top just where the inflow is at most 5."""
    spec = tank(inflow)
    assert certified_steps_hold(spec) > 500
    shield = certify(spec).open(("level",))  # type: ignore[arg-type]
    flags = shield.allowed(np.array([20.0]), ActionSet(names=("drain", "slow", "idle")))
    assert flags.tolist() == [True, most <= 5, False]
    assert shield.allowed(np.array([20.0 - 0.5 * most - 0.5]), ActionSet(names=("drain", "slow", "idle")))[2]


@pytest.mark.parametrize(
    "inflow",
    ["15 * w * (4 - w) / 4", "12 - abs(w - 2)", "min(6 * w, 24 - 6 * w)", "11 - (w - 1)**2", "11 / (1 + (w - 3)**2)"],
)
def test_an_inflow_whose_peak_is_above_the_drain_is_refused_with_a_counterexample(inflow: str) -> None:
    """At both ends of its bounds the inflow is below 10; inside it is above."""
    with pytest.raises(UnprovedShieldError, match="no state of the grid is safe forever"):
        certify(tank(inflow))  # type: ignore[arg-type]


def test_states_between_the_cells_count_too() -> None:
    """The inflow peaks between two cells, and is 0 at every cell: at the cells alone all would be well."""
    spec = tank("max(0, 80 - 1280 * (level - 19.75)**2)", others={})
    certified_steps_hold(spec)
    shield, actions = certify(spec).open(("level",)), ActionSet(names=("drain",))  # type: ignore[arg-type]
    assert [shield.allowed(np.array([level]), actions)[0] for level in (19.5, 19.75, 20.0)] == [True, False, False]
    assert certified_steps_hold(tank("max(0, 8 - 64 * (level - 9.75)**2)")) > 500
    with pytest.raises(UnprovedShieldError, match=r"the next less dangerous level is not|no state"):
        certify(tank("w", safe="level <= 20 and abs(level - 9.75) > 0.1"))  # type: ignore[arg-type]


def test_dynamics_that_do_not_keep_the_order_are_bounded_and_not_believed() -> None:
    """A cooler that fails when it is warm, and two coupled tanks, in which a disturbance moves water between them."""
    assert certified_steps_hold(tank("(8 if level > 12 else 14) * w / 4")) > 500
    second = {
        "level": {"low": 0.0, "high": 20.0, "step": 1.0, "worse": "high"},
        "other": {"low": 0.0, "high": 10.0, "step": 1.0, "worse": "high"},
    }
    spec = tank(
        "w",
        variables=second,
        safe="level <= 20 and other <= 10",
        others={"w": {"low": -1.0, "high": 1.0}},
        next={"level": "max(level + (w - out / 5) * dt, 0)", "other": "max(other - (w + 1.5) * dt, 0)"},
    )
    assert certified_steps_hold(spec, count=300) > 300
    wave = tank("w", next={"level": "max(level + (3 * w * level / 20 * (1 - level / 20) * 4 - out) * dt, 0)"})
    assert certified_steps_hold(wave) > 500


def test_a_least_dangerous_end_is_left_only_where_what_follows_is_bounded() -> None:
    """Beyond a full battery the charger breaks: the cell of the end does not stand for what is beyond it."""
    model = {
        "step_s": 1.0,
        "safe": "charge >= 0",
        "variables": {"charge": {"low": 0.0, "high": 10.0, "step": 1.0, "worse": "low"}},
        "actions": {"load": {"u": "2"}},
        "next": {"charge": "charge + u if charge <= 11 else charge - 12"},
    }
    with pytest.raises(UnprovedShieldError):
        certify(shield_spec({"kind": "game", "fallback": "load", "model": model}, place="b"))  # type: ignore[arg-type]
    capped = {**model, "next": {"charge": "min(charge + u, 10)"}}
    assert certified_steps_hold(shield_spec({"kind": "game", "fallback": "load", "model": capped}, place="b")) > 100


def test_a_disturbance_of_a_board_takes_steps_of_the_board() -> None:
    model = {
        "step_s": 1.0,
        "safe": "place < 7",
        "variables": {"place": {"low": 0.0, "high": 7.0, "step": 1.0, "worse": "neither"}},
        "actions": {"back": {"u": "-3"}, "stay": {"u": "0"}},
        "disturbances": {"wind": {"low": 0.0, "high": 3.0}},
        "next": {"place": "max(place + u + wind, 0)"},
    }
    made = certify(shield_spec({"kind": "game", "fallback": "back", "model": model}, place="b"))  # type: ignore[arg-type]
    assert made.assumed[0] == "wind is one of 0, 1, 2, 3, chosen by others as they like"
    shield, actions = made.open(("place",)), ActionSet(names=("back", "stay"))
    for place in range(8):
        assert shield.allowed(np.array([float(place)]), actions).tolist() == [place <= 6, place <= 3]


# --------------------------------------------------------------------------------------------------------- divisions


@pytest.mark.parametrize(
    ("text", "ruled_out"),
    [
        ("x**2 / (-2 * y) if x + y * 0.5 < 0 else 1", True),
        ("1 / x", False),
        ("1 / (x - y) if x > y else 0", True),
        ("1 / (x - y) if x >= y else 0", False),
        ("x / (y - 3)", True),
        ("1 / (x * y) if x * y != 0 else 3", True),
        ("1 / abs(y) if abs(y) > 0.1 else 0", True),
        ("1 / (1 + x**2)", True),
        ("y / (x - 5) if x < 4 or x > 6 else 1", True),
        ("y / (x - 5) if x < 4 or x > 5 - 0.001 else 1", False),
        ("1 if x > 0 and 1 / x > 2 else 0", True),
        ("1 if x >= 0 and 1 / x > 2 else 0", False),
        ("1 if x <= 0 or 1 / x > 2 else 0", True),
        ("1 / max(x, 1)", True),
        ("1 / min(x, 1)", False),
    ],
)
def test_divisions_by_zero_are_ruled_out_or_named(text: str, ruled_out: bool) -> None:
    boxes = {"x": Interval(np.array([0.0]), np.array([20.0])), "y": Interval(np.array([-8.0]), np.array([2.0]))}
    (division,) = divisions(parse_expression(text, place="e").tree)
    point = zero_division(division, boxes)
    assert (point is None) == ruled_out
    if point is not None:
        assert abs(float(parse_expression("0 + " + _divisor(text), place="e").over(point))) < 0.01


def _divisor(text: str) -> str:
    rest = text.split("/ ", 1)[1]
    depth = 0
    for place, sign in enumerate(rest):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and (
            sign == " " or (sign == ")" and place + 1 == len(rest)) or (sign == ")" and rest[place + 1] == " ")
        ):
            return rest[: place + 1]
    return rest


@pytest.mark.parametrize("kind", ["game", "invariant"])
def test_a_model_that_may_divide_by_zero_names_the_division_and_a_state(kind: str) -> None:
    spec = tank("w / (level - 3)")
    values = (
        spec.model_dump()
        | {"kind": kind}
        | ({"invariant": ["level <= 20", "level >= 0"]} if kind == "invariant" else {})
    )
    with pytest.raises(UnprovedShieldError, match=r"w / \(level - 3\).*level 3") as refused:
        certify(shield_spec(values, place="tank"))  # type: ignore[arg-type]
    assert "next.level" in str(refused.value)
    guarded = tank("w / (level - 3) if level > 4 else w")
    assert certified_steps_hold(guarded) > 300
    with pytest.raises(UnprovedShieldError, match=r"safe: .*1 / level"):
        certify(tank("w", safe="1 / level > 0.05"))  # type: ignore[arg-type]


def test_a_division_by_a_number_that_is_zero_is_refused_where_it_stands() -> None:
    for changed, words in (
        (
            {"actions": {"drain": {"out": "1 / none"}}, "constants": {"none": 0.0}},
            "actions.drain.out = '1 / none' is inf: a division by 0",
        ),
        ({"next": {"level": "level / 0"}}, "next.level = 'level / 0': a division by 0"),
    ):
        with pytest.raises(ConfigError) as refused:
            certify(tank("w", **changed))  # type: ignore[arg-type]
        assert words in str(refused.value)
    with pytest.raises(UnprovedShieldError, match=r"w / 0\b"):
        certify(tank("w / none", constants={"none": 0.0}))  # type: ignore[arg-type]
    with pytest.raises(FloatingPointError, match=r"divide by zero .* in `1 / a > 2`"):
        parse_expression("1 / a > 2", place="x").holds({"a": 0.0})


# ------------------------------------------------------------------------------------------------------------- texts


def test_the_text_of_a_certificate_is_that_of_its_proof_whatever_its_hash_says() -> None:
    from hone.decide.shield import certificate as module

    made = certify(tank("2 * w"))  # type: ignore[arg-type]
    for changed in (
        replace(made, proved=("all states are safe forever", *made.proved[1:])),
        replace(made, proved=(*made.proved, "pigs fly")),
        replace(made, proved=made.proved[:-1]),
        replace(made, assumed=("w is between 0 and 100, chosen by others as they like", *made.assumed[1:])),
        replace(made, assumed=made.assumed[1:]),
    ):
        forged = module._hashed(changed)
        with pytest.raises(DataError, match="its text is not that of its proof"):
            forged.check()
    made.check()


@pytest.mark.parametrize(
    ("where", "text", "words"),
    [
        ("safe", "level", "a number, where a condition is wanted"),
        ("next", "level < 3", "a condition, where a number is wanted"),
        ("next", "level + (w > 1)", "`\\+` needs numbers"),
        ("next", "1 if level else 2", "a number between `if` and `else`"),
        ("safe", "level and w", "unknown name 'w'|`and` needs conditions"),
        ("next", "level if w > 1 else w > 2", "a number and a condition"),
    ],
)
def test_numbers_are_no_conditions(where: str, text: str, words: str) -> None:
    changed: dict[str, Any] = {"safe": text} if where == "safe" else {"next": {"level": text}}
    with pytest.raises(ConfigError, match=words):
        certify(tank("w", **changed))  # type: ignore[arg-type]


def test_a_condition_may_stand_in_let() -> None:
    spec = tank("w if wet else 2 * w", let={"wet": "level > 10"})
    model: ControlModel = control_model(spec.model)  # type: ignore[union-attr]
    assert model.let["wet"].condition
    assert certified_steps_hold(spec) > 500
