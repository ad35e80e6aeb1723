"""Cart-pole swing-up: its physics conserves what it must, and both of its forms are the same world."""

import gymnasium
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.registration import register_builtin_envs
from hone.control.environments.world import GymConfig, open_world
from hone.control.suite import cartpole_swing_up as swing_up

FLOATS = st.floats(-6, 6)


def energy(state: np.ndarray) -> np.ndarray:
    """Joules: two moving masses, a turning rod, and its height."""
    speed, angle, turn = state[:, 1], state[:, 2], state[:, 3]
    cart, pole, length = swing_up.CART_KG, swing_up.POLE_KG, swing_up.LENGTH_M
    moving = 0.5 * (cart + pole) * speed**2 + 0.5 * pole * length * speed * turn * np.cos(angle)
    return moving + pole * length**2 * turn**2 / 6 - 0.5 * pole * swing_up.GRAVITY * length * np.cos(angle)


@given(st.tuples(FLOATS, FLOATS, FLOATS, FLOATS), st.floats(-10, 10))
@examples(60)
def test_work_is_force_times_speed(state: tuple[float, ...], force: float) -> None:
    """dE/dt = (force - friction * speed) * speed, for every state: an independent law for all four equations."""
    now, push = np.array([state]), np.array([force])
    flow, small = swing_up.state_derivative(now, push), 1e-6
    power = (energy(now + small * flow) - energy(now - small * flow)) / (2 * small)
    speed = now[:, 1]
    np.testing.assert_allclose(power, (push - swing_up.FRICTION * speed) * speed, rtol=1e-4, atol=1e-4)


def test_one_step_is_many_small_ones() -> None:
    """The integrator against Euler's with 20,000 steps."""
    state = np.array([[0.1, -0.5, 2.0, 3.0]])
    fine, action = state.copy(), np.array([[0.7]], np.float32)
    for _ in range(20_000):
        fine += (
            swing_up.STEP_S
            / 20_000
            * swing_up.state_derivative(fine, np.array([swing_up.PUSH_N * float(action[0, 0])]))
        )
    np.testing.assert_allclose(swing_up.next_states(state, action), fine, atol=2e-4)


def test_reward_by_hand() -> None:
    up, down, aside = [0, 0, np.pi, 0], [0, 0, 0, 0], [0.6, 0, np.pi, 0]
    paid = swing_up.rewards_of(np.array([up, down, aside], float))
    np.testing.assert_allclose(paid, [1.0, np.exp(-4.0), np.exp(-1.0)], atol=1e-12)
    np.testing.assert_allclose(swing_up.observations_of(np.array([up], float))[0], [0, 0, 1, 0, 0], atol=1e-6)


def test_the_rail_has_ends() -> None:
    after = swing_up.next_states(np.array([[2.39, 5.0, 0.0, 0.0]]), np.ones((1, 1)))
    assert after[0, 0] == swing_up.RAIL_M and after[0, 1] == 0.0
    assert swing_up.OBSERVATION.contains(swing_up.observations_of(after)[0])


def test_one_and_many_are_the_same_world() -> None:
    register_builtin_envs()
    one = gymnasium.make("hone/CartPoleSwingUp-v0")
    many = swing_up.CartPoleSwingUpVectorEnv(3)
    first, _ = one.reset(seed=1)
    many.reset(seed=1)
    inside = one.unwrapped
    assert isinstance(inside, swing_up.CartPoleSwingUpEnv)
    many.state[:] = inside.state
    many.age[:] = 0
    actions = np.random.default_rng(0).uniform(-1, 1, (200, 1)).astype(np.float32)
    for number, action in enumerate(actions, start=1):
        seen, reward, _, cut, _ = one.step(action)
        every, paid, _, ended, _ = many.step(np.repeat(action[None], 3, axis=0))
        np.testing.assert_array_equal(every, np.repeat(seen[None], 3, axis=0))
        assert paid == pytest.approx(np.full(3, reward)) and ended.tolist() == [cut] * 3 == [number == 200] * 3
    assert not np.array_equal(first, seen)


def test_only_what_ended_is_reset() -> None:
    many = swing_up.CartPoleSwingUpVectorEnv(2, max_episode_steps=5)
    many.reset(seed=0)
    many.step(np.ones((2, 1), np.float32))
    before = many.state.copy()
    many.reset(options={"reset_mask": np.array([True, False])})
    assert many.age.tolist() == [0, 1]
    assert (many.state[1] == before[1]).all() and (many.state[0] != before[0]).any()


def test_it_can_be_put_back_exactly() -> None:
    world = open_world(GymConfig(id="hone/CartPoleSwingUp-v0", num_envs=2), steps=3, seed=0, squashed=True)
    assert world.resume_exactness == "exact" and world.warnings == []
