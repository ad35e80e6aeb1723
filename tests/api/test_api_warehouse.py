"""The warehouse's door: a file's dispatcher with its versions, episodes that record them, refusals."""

import json
from pathlib import Path

import pytest
from manual_clock import ManualClock
from skill_folders import skill_network

from hone.api import warehouse
from hone.control.warehouse.dispatcher import Dispatcher
from hone.control.warehouse.floor import skill_versions
from hone.core.errors import ConfigError, HoneError
from hone.core.random import generator

HALL = 'floor = "tiny"\nrobots = 2\nrequests = 2\nlimit = 120\n'


class RunningClock(ManualClock):
    """A clock that goes on at each look."""

    def now_s(self) -> float:
        self.advance(0.01)
        return super().now_s()


@pytest.fixture
def clock() -> RunningClock:
    return RunningClock(1000.0)


@pytest.fixture
def hall(tmp_path: Path, clock: RunningClock) -> Path:
    """A file with a library, whose champion of `fetch` is the planned way; a bad version is beside it."""
    warehouse.write_skill(tmp_path / "planned", "fetch")
    warehouse.write_skill(tmp_path / "bad", "fetch", skill_network(tmp_path / "network"))
    (tmp_path / "hall.toml").write_text(f'{HALL}[skills]\nlibrary = "skills"\n')
    with warehouse.open_library(tmp_path / "skills", clock=clock) as library:
        first = library.add("fetch", tmp_path / "planned").id
        library.publish("fetch", first, "the first")
        clock.advance(1.0)
        library.add("fetch", tmp_path / "bad", parent=first)
    return tmp_path / "hall.toml"


def names(hall: Path) -> tuple[str, str]:
    with warehouse.open_library(hall.parent / "skills") as library:
        first, bad = library.versions("fetch")
    return first.id, bad.id


def test_an_episode_records_the_versions_that_it_used(hall: Path, tmp_path: Path, clock: RunningClock) -> None:
    first, bad = names(hall)
    episode = warehouse.play(hall, seed=1, clock=clock)
    assert set(episode.versions["fetch"]) == {first}
    assert set(episode.versions["store"]) == {skill_versions()["store"]}, "no champion: the planned way"
    assert episode.deliveries > 2
    episode.write(tmp_path / "episode.json")
    saved = json.loads((tmp_path / "episode.json").read_text())
    assert saved["versions"]["fetch"] == {first: episode.versions["fetch"][first]}
    assert len(saved["executions"]) == sum(sum(count.values()) for count in episode.versions.values())
    with warehouse.open_library(hall.parent / "skills") as library:
        assert library.recorded == len(episode.executions)
    hall.write_text(f'{HALL}[skills]\nlibrary = "skills"\nversions = {{ fetch = "{bad}" }}\n')
    pinned = warehouse.play(hall, seed=1, clock=clock)
    assert bad in pinned.versions["fetch"]
    assert pinned.deliveries < episode.deliveries


def test_a_bad_version_is_rolled_back_and_without_a_trial_it_stays(hall: Path, clock: RunningClock) -> None:
    first, bad = names(hall)
    with warehouse.open_library(hall.parent / "skills", clock=clock) as library:
        library.begin_trial("fetch", bad)
    used, stages = 0, [""]
    for seed in range(40):
        episode = warehouse.play(hall, seed=seed, clock=clock)
        used += episode.versions["fetch"].get(bad, 0)
        stages += [one.after for one in episode.transitions]
        if stages[-1] == "rolled_back":
            break
    assert stages[-1] == "rolled_back"
    assert 0 < used < 60
    assert set(warehouse.play(hall, seed=99, clock=clock).versions["fetch"]) == {first}
    with warehouse.open_library(hall.parent / "skills", clock=clock) as library:
        library.publish("fetch", bad, "without a trial")
    for seed in range(3):
        episode = warehouse.play(hall, seed=seed, clock=clock)
        assert bad in episode.versions["fetch"]
        assert episode.transitions == []


def test_a_dispatcher_is_loaded_with_its_versions_and_names_the_next_moves(hall: Path) -> None:
    first, bad = names(hall)
    dispatcher = warehouse.load(hall)
    assert (dispatcher.skills["fetch"].version, dispatcher.skills["store"].version) == (
        first,
        skill_versions()["store"],
    )
    robots = [warehouse.RobotReport(cell=(0, 0), heading="down"), warehouse.RobotReport(cell=(9, 5), heading="up")]
    orders = dispatcher.assign(robots, [(1, 1), (8, 2)])
    assert [order.version for order in orders] == [first, first]
    for robot, order in zip(robots, orders, strict=True):
        assert order.move == ("forward" if order.plan[0] != robot.cell else order.move)
        assert order.move in ("forward", "left", "right")
    hall.write_text(f'{HALL}[skills]\nlibrary = "skills"\nversions = {{ fetch = "{bad}" }}\n')
    learnt = warehouse.load(hall)
    again = learnt.assign(robots, [(1, 1), (8, 2)])
    assert [order.version for order in again] == [bad, bad]
    assert [(order.skill, order.cell) for order in again] == [(order.skill, order.cell) for order in orders]
    draws = generator(1, "moves")
    for _ in range(30):
        cells = [divmod(int(cell), 10) for cell in draws.choice(110, 2, replace=False)]
        orders = learnt.assign([warehouse.RobotReport(cell=cell) for cell in cells], [(1, 1), (8, 2)])
        ends = {_after(cell, order.move) for cell, order in zip(cells, orders, strict=True)}
        assert len(ends) == 2, "no two robots are sent into one cell"


def _after(cell: tuple[int, int], move: str) -> tuple[int, int]:
    """Robots look up."""
    return (cell[0] - 1, cell[1]) if move == "forward" else cell


def test_wrong_versions_are_refused_all_at_once(hall: Path, tmp_path: Path) -> None:
    first, bad = names(hall)
    hall.write_text(
        f'{HALL}[skills]\nlibrary = "skills"\nversions = {{ fetch = "0000", store = "{first}", dig = "1" }}\n'
    )
    with pytest.raises(ConfigError) as fault:
        warehouse.load(hall)
    text = str(fault.value)
    assert "skill 'fetch' has no version '0000'" in text
    assert bad in text
    assert f"skill 'store' has no version '{first}', it is one of 'fetch'" in text
    assert "skill 'dig' has no versions" in text
    hall.write_text(f'{HALL}[skills]\nversions = {{ fetch = "{first}" }}\n')
    with pytest.raises(ConfigError, match="needs a library that has them"):
        warehouse.play(hall, seed=1)
    hall.write_text(f'{HALL}[skills]\nlibrary = "elsewhere"\n')
    with pytest.raises(ConfigError, match="'elsewhere' is no library of skills"):
        warehouse.load(hall)
    with pytest.raises(ConfigError, match=r"open it with hone\.api\.warehouse\.load"):
        Dispatcher.open(hall)
    assert not (tmp_path / "elsewhere").exists()


def test_a_version_of_another_digest_is_refused(hall: Path) -> None:
    first, _ = names(hall)
    file = hall.parent / "skills" / "registry" / "versions" / first / "skill.json"
    file.write_text(file.read_text() + " ")
    with pytest.raises(HoneError, match=f"version {first} is damaged in .*: skill.json"):
        warehouse.load(hall)


def test_a_skill_and_a_dispatcher_are_trained_through_the_door(tmp_path: Path) -> None:
    skill = warehouse.train(
        {
            "recipe": "ppo", "name": "fetch", "steps": 2, "rollout_steps": 8, "evaluation": {"episodes": 1},
            "env": {"id": "hone/WarehouseSkill-v0", "num_envs": 2, "kwargs": {"floor": "tiny", "robots": 1}},
        },
        runs=tmp_path,
    )  # fmt: skip
    warehouse.write_skill(tmp_path / "version", "fetch", skill.policy)
    with warehouse.open_library(tmp_path / "skills") as library:
        version = library.add("fetch", tmp_path / "version")
        assert {file.path for file in version.files} >= {"skill.json", "policy/policy.json", "policy/model.safetensors"}
    with pytest.raises(ConfigError, match="trains in hone/Warehouse"):
        warehouse.train({"recipe": "ppo", "steps": 1, "env": {"id": "CartPole-v1"}}, runs=tmp_path)
