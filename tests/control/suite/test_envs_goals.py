"""Environments that come with hone: goals, grids against their own tables, a memory for options."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hone.control.environments.make import env_factory, runs_isolated
from hone.control.environments.option_wrapper import OptionMemoryWrapper, with_option_memory
from hone.control.environments.space_advice import GoalEnv, goal_columns, has_goals
from hone.control.environments.world import GymConfig, open_world
from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.options import mdp_over_options
from hone.control.finite.solve import policy_iteration, start_value
from hone.control.suite.goal_tasks import BitFlipEnv, ReachEnv
from hone.control.suite.grid_worlds import FourRoomsEnv, MazeEnv, steps_to_end, winding_map, with_start_distance
from hone.core.errors import ConfigError, UserCodeError


def test_bits_are_flipped_until_they_are_as_wanted() -> None:
    env = BitFlipEnv(4)
    seen, _ = env.reset(seed=3)
    assert not (seen["achieved_goal"] == seen["desired_goal"]).all()
    wrong = np.flatnonzero(seen["achieved_goal"] != seen["desired_goal"])
    for number, bit in enumerate(wrong, start=1):
        seen, reward, terminated, truncated, _ = env.step(bit)
        assert (reward, terminated, truncated) == ((1.0, True, False) if number == len(wrong) else (0.0, False, False))


def test_an_episode_of_bits_is_as_long_as_there_are_bits_and_termination_wins() -> None:
    env = BitFlipEnv(3)
    for seed in range(30):
        env.reset(seed=seed)
        steps = 0
        while True:
            steps += 1
            _, reward, terminated, truncated, _ = env.step(np.int64(steps % 2))
            assert not (terminated and truncated)
            assert reward == float(terminated)
            if terminated or truncated:
                break
        assert steps <= 3
        assert truncated == (steps == 3 and not terminated)


@pytest.mark.parametrize(
    "env", [BitFlipEnv(5), ReachEnv(3), BitFlipEnv(5, every_step=True), ReachEnv(3, every_step=True)]
)
def test_rewards_of_many_goals_are_those_of_each(env: BitFlipEnv | ReachEnv) -> None:
    assert isinstance(env, GoalEnv)
    assert has_goals(env.observation_space)
    draws = np.random.default_rng(0)
    size = len(env.reset(seed=0)[0]["desired_goal"])
    reached = draws.choice([-1.0, 1.0], (64, size)).astype(np.float32)
    wanted = np.where(draws.random((64, 1)) < 0.5, reached, draws.choice([-1.0, 1.0], (64, size)))
    ends, pays = env.compute_terminated(reached, wanted, {}), env.compute_reward(reached, wanted, {})
    assert ends.any() and not ends.all()
    for number in range(64):
        assert env.compute_terminated(reached[number], wanted[number], {}) == ends[number]
        assert env.compute_reward(reached[number], wanted[number], {}) == pays[number]
    assert set(pays.tolist()) == ({-1.0, 0.0} if env.every_step else {0.0, 1.0})


def test_a_point_moves_by_inertia_and_stays_in_its_cube() -> None:
    env = ReachEnv(2)
    env.reset(seed=0)
    env.place, env.goal = np.zeros(2, np.float32), np.full(2, 0.9, np.float32)
    env.step(np.array([1.0, -5.0], np.float32))
    np.testing.assert_allclose(env.place, [0.1, -0.1])  # the push is clipped to [-1, 1]
    env.step(np.zeros(2, np.float32))
    np.testing.assert_allclose(env.place, [0.17, -0.17])
    for _ in range(40):
        env.step(np.array([1.0, -1.0], np.float32))
    np.testing.assert_allclose(env.place, [1.0, -1.0])


def test_goals_stand_where_a_flattened_observation_has_them() -> None:
    env = ReachEnv(2)
    seen, _ = env.reset(seed=1)
    assert isinstance(env.observation_space, spaces.Dict)
    flat = np.asarray(spaces.flatten(env.observation_space, seen))
    reached, wanted = goal_columns(env.observation_space)
    assert flat[reached].tolist() == seen["achieved_goal"].tolist()
    assert flat[wanted].tolist() == seen["desired_goal"].tolist()
    world = open_world(GymConfig(id="hone/Reach-v0", kwargs={"dimensions": 2}), steps=1, seed=0)
    assert world.envs.single_observation_space.shape == (6,)


@pytest.mark.parametrize("name", ["hone/BitFlip-v0", "hone/Reach-v0", "hone/Maze-v0", "hone/FourRooms-v0"])
def test_ours_resume_exactly_in_the_trainer(name: str) -> None:
    config = GymConfig(id=name, num_envs=2, clip_actions=True)
    assert not runs_isolated(config)
    world = open_world(config, steps=1, seed=0)
    assert (world.resume_exactness, world.warnings) == ("exact", [])
    world.close()


def test_an_unknown_id_of_ours_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="hone/Mase-v0"):
        env_factory(GymConfig(id="hone/Mase-v0"))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("hone/BitFlip-v0", {"bits": 0}),
        ("hone/Reach-v0", {"radius": 0.0}),
        ("hone/Maze-v0", {"size": 8}),
        ("hone/Maze-v0", {"distance": 99}),
        ("hone/FourRooms-v0", {"goal": [0, 0]}),
    ],
)
def test_arguments_without_sense_are_refused_with_their_value(name: str, kwargs: dict[str, object]) -> None:
    with pytest.raises((ConfigError, UserCodeError), match=next(iter(kwargs))):
        env_factory(GymConfig.model_validate({"id": name, "kwargs": kwargs})).make_one()


def test_the_maze_is_one_way_of_known_length() -> None:
    assert winding_map(5) == ["S....", "####.", ".....", ".####", "....G"]
    for size, length in ((5, 16), (9, 48)):
        mdp = mdp_from_gymnasium("hone/Maze-v0", discount=0.9, options={"size": size})
        assert mdp.step_limit == 200
        assert start_value(mdp, policy_iteration(mdp).value) == pytest.approx(0.9 ** (length - 1))
        assert steps_to_end(mdp).max() == length


def test_with_a_key_the_way_is_there_and_back() -> None:
    """Size 5: from the middle (2, 2) to the upper left corner 8 steps, back and on to the goal 16."""
    mdp = mdp_from_gymnasium("hone/Maze-v0", discount=0.9, options={"size": 5, "key": True})
    assert start_value(mdp, policy_iteration(mdp).value) == pytest.approx(0.9 ** (8 + 16 - 1))
    assert mdp.states == 50


def test_a_maze_can_be_begun_near_its_end() -> None:
    env = MazeEnv(9, distance=3)
    states = {int(env.reset(seed=seed)[0]) for seed in range(20)}
    assert (steps_to_end(env.mdp)[list(states)] == 3).all()
    with pytest.raises(ConfigError, match="48 steps"):
        with_start_distance(MazeEnv(9).mdp, 49)


def test_a_grid_is_played_by_its_table() -> None:
    """Frequencies of a random walk in four rooms against the table, with slip."""
    env = gymnasium.make("hone/FourRooms-v0")
    inside = env.unwrapped
    assert isinstance(inside, FourRoomsEnv)
    mdp = mdp_from_gymnasium("hone/FourRooms-v0", discount=0.9)
    state, action = 14, 2  # upper left corner, to the right
    counts: dict[int, int] = {}
    env.reset(seed=0)
    for _ in range(3000):
        inside.state = state
        after = int(inside.step(np.int64(action))[0])
        counts[after] = counts.get(after, 0) + 1
    wanted = {after: p for p, after, _, _ in inside.P[state][action]}
    assert set(counts) == set(wanted)
    for after, chance in wanted.items():
        assert counts[after] / 3000 == pytest.approx(chance, abs=0.03)
    pair = state * 4 + action
    assert sorted(wanted) == sorted(mdp.next_state[mdp.offsets[pair] : mdp.offsets[pair + 1]].tolist())


def test_the_ways_out_of_four_rooms() -> None:
    options = FourRoomsEnv(slip=0.0).options()
    assert len(options) == 8
    mdp = mdp_from_gymnasium("hone/FourRooms-v0", discount=0.9, options={"slip": 0.0})
    over = mdp_over_options(mdp, options)
    plain, best = policy_iteration(mdp), policy_iteration(over)
    rooms = over.available.sum(axis=1)[~mdp.terminal]
    assert set(rooms.tolist()) == {2}  # two ways out of each room; from a hallway, one into each of its rooms
    assert (best.value <= plain.value + 1e-9).all()
    assert start_value(over, best.value) == pytest.approx(
        start_value(mdp, plain.value)
    )  # the goal is a hallway: nothing is lost


def test_a_world_remembers_which_option_is_under_way() -> None:
    env = OptionMemoryWrapper(MazeEnv(5), 3)
    assert env.action_space == spaces.Discrete(2 * 3 * 4)
    seen, _ = env.reset(seed=0)
    assert seen == 0  # state 0, no option
    seen, *_ = env.step(np.int64((3 + 2) * 4 + 2))  # option 2 begins, and goes right
    assert divmod(int(seen), 4) == (1, 3)
    seen, *_ = env.step(np.int64(2 * 4 + 2))  # it goes on
    assert divmod(int(seen), 4) == (2, 3)
    assert env.reset()[0] == 0
    box = OptionMemoryWrapper(gymnasium.make("CartPole-v1"), 3)
    assert box.reset(seed=0)[0][4:].tolist() == [0, 0, 0]
    assert box.step(np.int64(1 * 2 + 1))[0][4:].tolist() == [0, 1, 0]
    with pytest.raises(ConfigError, match="finite set of actions"):
        OptionMemoryWrapper(gymnasium.make("Pendulum-v1"), 3)


def test_a_wrapped_environment_is_trusted_as_the_one_inside() -> None:
    inside = GymConfig(id="CartPole-v1", max_episode_steps=7)
    assert not runs_isolated(with_option_memory(inside, 2))
    assert runs_isolated(with_option_memory(GymConfig(id="mine.py:World"), 2))
    world = open_world(with_option_memory(inside, 2), steps=20, seed=0)
    assert world.resume_exactness == "exact"
    world.close()
