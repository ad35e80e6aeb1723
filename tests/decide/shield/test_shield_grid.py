"""Grids: one value and many are rounded alike, to the dangerous side; variables of a board take no other values."""

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shield_cars import car_spec

from hone.core.decisions import ActionSet
from hone.decide.shield.certificate import certify, checked_model
from hone.decide.shield.game import state_grid
from hone.decide.shield.model import shield_spec

WALKER = {
    "kind": "game", "fallback": "left",
    "model": {
        "step_s": 1.0, "safe": "place < 5", "variables": {
            "place": {"low": 0.0, "high": 5.0, "step": 1.0, "worse": "neither"}},
        "actions": {"left": {"u": "-1"}, "stay": {"u": "0"}, "right": {"u": "1"}},
        "disturbances": {"wind": {"low": 0.0, "high": 1.0}},
        "next": {"place": "max(place + u + wind, 0)"},
    },
}  # fmt: skip


GRID = state_grid(checked_model(car_spec()))


@examples(100)
@given(st.floats(-5, 70), st.floats(-3, 25), st.floats(-3, 25))
def test_one_state_and_many_are_rounded_alike_to_the_dangerous_side(gap: float, speed: float, lead: float) -> None:
    grid = GRID
    values = {"gap": gap, "speed": speed, "lead": lead}
    cells = [
        int(axis.coordinates(np.array([value]))[0]) for axis, value in zip(grid.axes, values.values(), strict=True)
    ]
    number = grid.number(list(values.values()))
    if min(cells) < 0:
        assert number == -1
        assert gap < 0 or speed > 20 or lead < 0
    else:
        assert number == np.ravel_multi_index(cells, grid.shape)
        cell = grid.state(number)
        assert cell["gap"] <= gap + 1e-6
        assert cell["speed"] >= speed - 1e-6
        assert cell["lead"] <= lead + 1e-6


def test_a_walker_on_a_board_by_hand() -> None:
    # The wind may push one place to the right, and 5 is the cliff: from place p the action u needs p + u + 1 < 5.
    shield = certify(shield_spec(WALKER, place="walker")).open(("place",))
    actions = ActionSet(names=("left", "stay", "right"))
    for place in range(6):
        expected = [place <= 4 and place + move + 1 <= 4 for move in (-1, 0, 1)]
        assert shield.allowed(np.array([float(place)]), actions).tolist() == expected, place
    for place in (0.5, -1.0, 6.0, np.nan):
        assert not shield.allowed(np.array([place]), actions).any()
