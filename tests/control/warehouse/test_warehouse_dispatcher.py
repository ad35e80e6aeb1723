"""The dispatcher of a file, environments for learners, RWARE's episodes and the page of an episode."""

from pathlib import Path

import numpy as np
import pytest

from hone.control.environments.make import GymConfig, env_factory
from hone.control.environments.snapshot import why_inexact_resume
from hone.control.warehouse.dispatcher import Dispatcher, RobotReport, choose_nearest, play_floor
from hone.control.warehouse.envs import FlatWarehouseVectorEnv, WarehouseEnv, WarehouseVectorEnv
from hone.control.warehouse.floor import Floor, floor_spec, skill_versions
from hone.control.warehouse.replay_page import record_episode, write_replay_page
from hone.core.errors import ConfigError


@pytest.fixture
def dispatcher(tmp_path: Path) -> Dispatcher:
    (tmp_path / "warehouse.toml").write_text('floor = "small"\nrobots = 4\nrequests = 3\n')
    return Dispatcher.open(tmp_path / "warehouse.toml")


def test_robots_get_tasks_and_plans_that_do_not_meet(dispatcher: Dispatcher) -> None:
    robots = [
        RobotReport(cell=(0, 0), heading="down"), RobotReport(cell=(9, 3), heading="left"),
        RobotReport(cell=(18, 5), heading="down", carrying=(1, 1)),  # a task: to be delivered
        RobotReport(cell=(19, 4), heading="up", carrying=(2, 2)),  # none: to be put back
    ]  # fmt: skip
    orders = dispatcher.assign(robots, [(1, 1), (3, 1), (12, 8)])
    assert [order.skill for order in orders] == ["fetch", "fetch", "deliver", "store"]
    assert orders[0].cell == (3, 1)
    assert orders[1].cell == (12, 8)
    assert orders[2].cell in {(19, 4), (19, 5)}
    assert orders[3].cell in {(1, 1), (2, 2)}, "the places whose shelves are under way"
    plans = [[robot.cell, *order.plan] for robot, order in zip(robots, orders, strict=True)]
    for one in range(4):
        assert plans[one][-1] == orders[one].cell
        for other in range(one):
            for step in range(min(len(plans[one]), len(plans[other])) - 1):
                assert plans[one][step + 1] != plans[other][step + 1]
                assert (plans[one][step], plans[one][step + 1]) != (plans[other][step + 1], plans[other][step])


def test_without_a_task_a_robot_waits(dispatcher: Dispatcher) -> None:
    orders = dispatcher.assign([RobotReport(cell=(0, column)) for column in range(4)], [(3, 1)])
    assert sorted(order.skill for order in orders) == ["fetch", "wait", "wait", "wait"]


def test_all_that_does_not_fit_is_told_at_once(dispatcher: Dispatcher) -> None:
    robots = [RobotReport(cell=(0, 0), heading="north"), RobotReport(cell=(0, 0)), RobotReport(cell=(40, 0))]
    robots += [RobotReport(cell=(5, row), carrying=(1, 1)) for row in range(2)]
    with pytest.raises(ConfigError) as fault:
        dispatcher.assign(robots, [(0, 0), (1, 1), (1, 2), (2, 1)])
    text = str(fault.value)
    for part in ("5 robots, and the floor has 4", "4 tasks", "'north'", "robots 0 and 1 are both at (0, 0)",
                 "robots 3 and 4 both carry the shelf of (1, 1)",
                 "robot 2 at (40, 0) is beyond", "task 0 at (0, 0): no shelf"):  # fmt: skip
        assert part in text


def test_an_episode_is_cut_at_its_limit_and_told_with_its_masks() -> None:
    env = WarehouseEnv(floor="tiny", robots=2, requests=4, limit=100)
    seen, info = env.reset(seed=5)
    total, over = 0.0, False
    for _ in range(100):
        assert seen.shape == (env.observation_space.shape)
        assert info["action_mask"].sum() >= 2
        seen, reward, terminated, over, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        assert not terminated
        total += reward
        if over:
            break
    assert over
    assert total >= 3


def test_an_action_that_is_no_pair_is_refused_and_no_floor_has_moved() -> None:
    env = WarehouseVectorEnv(2, floor="tiny", robots=2)
    env.reset(seed=1)
    before = env.states.copy()
    with pytest.raises(ConfigError, match="action 7 of environment 1 is none of its pairs"):
        env.step(np.array([0, 7]))
    assert np.array_equal(env.states, before)


@pytest.mark.parametrize("name", ["hone/Warehouse-v0", "hone/WarehouseFlat-v0"])
def test_environments_are_resumed_to_the_bit(name: str) -> None:
    factory = env_factory(GymConfig(id=name, kwargs={"floor": "tiny", "robots": 2, "limit": 30}))
    assert why_inexact_resume(factory.make_many, seed=3) is None


def test_a_robot_of_the_flat_world_is_paid_for_its_delivery() -> None:
    env = FlatWarehouseVectorEnv(2, floor=["......", ".XX...", ".XX...", "..GG.."], robots=2, requests=1)
    env.reset(seed=1)
    floor = env.floors[0]
    floor.robots["cell"], floor.robots["heading"] = [14, 0], [1, 0]  # the first at (2, 2), looking down to a goal
    floor.robots["carrying"] = [3, -1]
    floor.state["shelf_cell"][3], floor.state["queue"][0] = 14, 3
    _, reward, *_ = env.step(np.array([1, 0]))
    assert reward.tolist() == [1.0, 0.0]
    assert env.single_observation_space.contains(np.int64(env._seen()[0]))


def test_episodes_of_the_published_package_have_no_collision() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("rware")
    from hone.control.warehouse.rware import RwareFloor

    env = gymnasium.make("rware-tiny-4ag-v2", disable_env_checker=True).unwrapped
    env.reset(seed=0)
    mirrored = RwareFloor(env)
    mirrored.begin(3)
    total = 0
    while mirrored.floor.state["time"] < 200:
        pairs = mirrored.floor.choices()
        if len(pairs):
            mirrored.floor.assign(pairs[choose_nearest(mirrored.floor, pairs)])
        else:
            total += mirrored.step()
    assert total == mirrored.floor.state["deliveries"] > 15
    assert (mirrored.collisions, mirrored.floor.state["longest_still"] <= 50) == (0, True)


def test_the_page_of_an_episode_tells_its_figures(tmp_path: Path) -> None:
    floor = Floor(floor_spec("tiny", robots=2, requests=2, limit=40))
    record = record_episode(floor, choose_nearest, seed=2, name="nearest first")
    write_replay_page(tmp_path / "page.html", [record])
    text = (tmp_path / "page.html").read_text()
    assert f">{record.per_hour:.0f}<" in text
    assert record.per_hour == int(floor.state["deliveries"]) * 90
    assert skill_versions()["store"] in text
    assert len(record.frames) == 40
    assert record.skills.sum() == 80


def test_an_episode_is_the_same_from_the_same_seed() -> None:
    spec = floor_spec("small", robots=4, requests=4, limit=150)
    one, other = (play_floor(Floor(spec), choose_nearest, seed=6) for _ in range(2))
    assert one.state.tobytes() == other.state.tobytes()
