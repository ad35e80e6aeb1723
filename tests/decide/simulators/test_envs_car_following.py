"""Car following: exact motion against small steps, the lattice's table against the environment."""

import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.registration import register_builtin_envs
from hone.control.finite.build import mdp_from_gymnasium
from hone.core.errors import ConfigError
from hone.decide.simulators.car_following import (
    LATTICE_ROAD,
    OPEN_ROAD,
    CarFollowingEnv,
    travelled,
)

register_builtin_envs()


@examples(60)
@given(st.floats(0, 60), st.floats(0, 20), st.floats(0, 20), st.floats(-6, 2), st.floats(-8, 2))
def test_a_step_is_the_limit_of_many_small_ones(
    gap: float, speed: float, lead: float, own: float, other: float
) -> None:
    after = OPEN_ROAD.drive((gap, speed, lead), own, other)
    own = min(own, (20 - speed) / 0.5)
    other = min(other, (20 - lead) / 0.5)
    times = np.linspace(0, 0.5, 401)
    gaps = [gap + travelled(lead, other, t) - travelled(speed, own, t) for t in times]
    assert after.gap == pytest.approx(gaps[-1])
    assert after.closest <= min(gaps) + 1e-9
    assert after.closest == pytest.approx(min(gaps), abs=1e-3)
    speeds = np.maximum(speed + own * times, 0.0)
    assert travelled(speed, own, 0.5) == pytest.approx(np.trapezoid(speeds, times), abs=1e-3)
    assert after.speed == pytest.approx(speeds[-1])


def test_a_stop_within_the_step_by_hand() -> None:
    after = OPEN_ROAD.drive((10.0, 2.0, 3.0), -6.0, -8.0)  # 2^2 / 12 = 1/3 m of ours, 3^2 / 16 = 9/16 of the other
    assert after.gap == pytest.approx(10 + 9 / 16 - 1 / 3)
    assert (after.speed, after.lead) == (0.0, 0.0)


def test_the_table_of_the_lattice_is_that_of_its_steps() -> None:
    env = CarFollowingEnv("lattice", numbered=True)
    table, states = env.P, LATTICE_ROAD.lattice_states()
    assert [LATTICE_ROAD.lattice_number(tuple(row)) for row in states] == list(range(len(states)))
    seen, info = env.reset(seed=3)
    assert env.initial_state_distrib[int(seen)] == 1.0
    draws = np.random.default_rng(4)
    for _ in range(300):
        action = int(draws.integers(3))
        there, reward, crashed, _, info = env.step(np.int64(action))
        assert (int(there), reward, crashed) in [one[1:] for one in table[int(seen)][action]]
        assert (states[int(there)] == info["context"]).all()
        seen = env.reset()[0] if crashed else there


def test_the_file_of_the_example_states_the_open_road() -> None:
    path = Path(__file__).resolve().parents[3] / "examples" / "decisions" / "shield" / "car.toml"
    assert tomllib.loads(path.read_text("utf-8")) == OPEN_ROAD.shield_tables()


def test_gymnasium_knows_the_world_and_its_finite_process() -> None:
    mdp = mdp_from_gymnasium("hone/CarFollowing-v0", discount=0.95, options={"road": "lattice", "numbered": True})
    assert (mdp.states, mdp.actions) == (1476, 3)
    env = gymnasium.make("hone/CarFollowing-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.step(np.int64(4))[0].shape == (3,)
    assert env.render().shape == (40, 320, 3)
    with pytest.raises(ConfigError, match="known: open, lattice"):
        CarFollowingEnv("dirt")
    with pytest.raises(ConfigError, match="needs road = 'lattice'"):
        CarFollowingEnv(numbered=True)
