"""Versions of skills on a floor: rows by hand, ends and failures, the shield, folders, the environment of a skill."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from skill_folders import skill_network

from hone.control.environments.make import GymConfig, env_factory
from hone.control.environments.snapshot import why_inexact_resume
from hone.control.warehouse.dispatcher import choose_nearest, play_floor
from hone.control.warehouse.floor import SKILLS, Floor, floor_spec, skill_versions
from hone.control.warehouse.skills import (
    ROW,
    ExecutionEnd,
    SkillExecution,
    SkillPolicy,
    SkillRunner,
    WarehouseSkillEnv,
    assign_nearest,
    begun_execution,
    planned_skill,
    read_skill,
    skill_rows,
    step_by_moves,
    write_skill,
)
from hone.core.errors import ConfigError, DataError

STAND, FORWARD, LEFT, RIGHT, LOAD = range(5)
UP, DOWN, WEST, EAST = range(4)
ROOM = ["......", ".XX...", ".XX...", "..GG.."]


def room(*robots: tuple[int, int, int]) -> Floor:
    """A floor of `ROOM` with robots at (row, column, heading), and the first shelf requested."""
    floor = Floor(floor_spec(ROOM, robots=len(robots), requests=1))
    for robot, (row, column, heading) in zip(floor.robots, robots, strict=True):
        robot["cell"] = robot["target"] = row * 6 + column
        robot["heading"], robot["skill"] = heading, 0
    floor.state["queue"][0] = 0
    floor.settle()
    assign_nearest(floor)
    return floor


def standing(skill: str) -> SkillPolicy:
    return SkillPolicy(skill=skill, version="stands", moves=lambda rows: np.zeros(len(rows), np.int64))


@pytest.mark.parametrize("seed", [3, 6])
def test_planned_ways_by_the_runner_are_those_of_the_floor_bit_for_bit(seed: int) -> None:
    spec = floor_spec("tiny", robots=5, requests=4, limit=250)
    plain, run = play_floor(Floor(spec), choose_nearest, seed=seed), Floor(spec)
    runner = SkillRunner(floor=run, select=lambda skill, number: (planned_skill(skill), ""))
    play_floor(run, choose_nearest, seed=seed, step=runner.step)
    assert run.state.tobytes() == plain.state.tobytes()
    assert sum(one.skill == "deliver" and one.end == "done" for one in runner.executions) == plain.state["deliveries"]
    assert [one.number for one in runner.executions] == list(range(len(runner.executions)))
    assert {one.version for one in runner.executions} == {skill_versions()["fetch"]}


def test_a_row_by_hand() -> None:
    floor = room((1, 0, EAST), (0, 0, DOWN))  # the first fetches the shelf before it; the other stands to its left
    assert SKILLS[floor.robots["skill"][0]] == "fetch"
    execution = begun_execution(floor, 0, 0, planned_skill("fetch"))
    assert (execution.way, execution.allotted) == (2, 26), "one step, and one to load"
    execution.steps = 13
    (row,) = skill_rows(floor, [execution], floor.planned_actions()[0])
    assert row.tolist() == pytest.approx([0, 1, 0, 0, 0, 1, 0, 1, 0.1, 0, 0, 0.5])
    floor.robots["heading"][0] = UP  # the shelf is to its right, the other robot ahead, the wall to its left
    (row,) = skill_rows(floor, [execution], np.array([RIGHT, STAND]))
    assert row.tolist() == pytest.approx([0, 0, 0, 1, 0, 0, 0, 1, 0, 0.1, 0, 0.5])
    floor.robots["carrying"][0] = 3
    (row,) = skill_rows(floor, [execution], np.array([RIGHT, STAND]))
    assert (row[7], row[10]) == (0, 1), "a loaded robot does not drive below a shelf"


@pytest.mark.parametrize(
    ("end", "steps", "score"),
    [("done", 10, 1.0), ("done", 9, 1.0), ("done", 20, 0.5), ("failed", 50, 0.0), ("interrupted", 5, None)],
)
def test_scores_by_hand(end: ExecutionEnd, steps: int, score: float | None) -> None:
    execution = SkillExecution(
        number=0, robot=0, skill="fetch", version="v", shelf=1, begun=0, way=10, steps=steps, end=end
    )
    assert execution.score == score


def test_a_version_that_stands_fails_after_its_steps_and_the_planned_way_follows_at_once() -> None:
    floor = room((0, 5, WEST))
    runner = SkillRunner(floor=floor, select=lambda skill, number: (standing(skill), f"r1:canary:{number}"))
    allotted = begun_execution(floor, 0, 0, planned_skill("fetch")).allotted
    for _ in range(allotted - 1):
        runner.step(floor)
    assert runner.executions[0].end == ""
    runner.step(floor)
    first = runner.executions[0]
    assert (first.end, first.steps, first.version, first.route) == ("failed", allotted, "stands", "r1:canary:0")
    assert floor.state["failures"] == 1
    assign_nearest(floor)
    assert SKILLS[floor.robots["skill"][0]] == "fetch", "another attempt in the same step"
    runner.step(floor)
    second = runner.executions[1]
    assert (second.version, second.route) == (skill_versions()["fetch"], "")
    for _ in range(second.way - 1):
        runner.step(floor)
    assert (second.end, second.score) == ("done", 1.0)


@pytest.mark.parametrize(("after", "end"), [(8, "interrupted"), (9, "failed")])
def test_an_execution_that_is_called_off_has_failed_after_twice_its_way(after: int, end: str) -> None:
    floor = room((1, 3, WEST))
    runner = SkillRunner(floor=floor, select=lambda skill, number: (standing(skill), ""))
    runner.step(floor)
    execution = runner.executions[0]
    execution.way, execution.steps = 4, after
    floor.robots["skill"][0] = 0
    runner.step(floor)
    assert (execution.end, execution.score) == (end, None if end == "interrupted" else 0.0)


def test_the_wrong_shelf_is_a_failure() -> None:
    floor = room((1, 1, EAST))
    floor.state["queue"][0] = 3
    floor.robots["skill"][0] = 0
    floor.settle()
    assign_nearest(floor)
    loads = SkillPolicy(skill="fetch", version="loads", moves=lambda rows: np.full(len(rows), LOAD))
    runner = SkillRunner(floor=floor, select=lambda skill, number: (loads, ""))
    runner.step(floor)
    assert (runner.executions[0].end, floor.robots["carrying"][0]) == ("failed", 0)


def test_whatever_versions_do_the_shield_lets_no_two_robots_touch() -> None:
    draws = np.random.default_rng(4)
    floor = Floor(floor_spec("tiny", robots=6, requests=6, limit=300))
    wild = [SkillPolicy(skill="", version="wild", moves=lambda rows: draws.integers(0, 5, len(rows)))]

    def apart(now: Floor) -> None:
        assert len(set(now.robots["cell"].tolist())) == 6

    runner = SkillRunner(floor=floor, select=lambda skill, number: (
        SkillPolicy(skill=skill, version="wild", moves=wild[0].moves), ""))  # fmt: skip
    play_floor(floor, choose_nearest, seed=2, step=runner.step, watch=apart)
    assert floor.state["collisions"] == 0
    assert {one.end for one in runner.executions} >= {"failed", "done"}


def test_a_robot_behind_another_is_held_back() -> None:
    floor = room((0, 0, EAST), (0, 1, EAST))
    before = int(floor.state["interventions"])
    step_by_moves(floor, {0: FORWARD, 1: STAND})
    assert floor.robots["cell"].tolist() == [0, 1]
    assert floor.state["interventions"] == before + 1
    assert floor.state["collisions"] == 0


# ----------------------------------------------------------------------------------------------------------- folders


def test_folders_of_versions_come_back(tmp_path: Path) -> None:
    write_skill(tmp_path / "planned", "store")
    assert read_skill(tmp_path / "planned", "store") == planned_skill("store")
    write_skill(tmp_path / "learnt", "fetch", skill_network(tmp_path / "network"))
    version = read_skill(tmp_path / "learnt", "fetch", "7")
    assert version.moves is not None
    moves = version.moves(np.zeros((3, ROW), np.float32))
    assert (version.version, moves.shape) == ("7", (3,))
    assert set(moves.tolist()) <= set(range(5))


def test_folders_that_are_no_version_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="skill 'fech' has no versions; did you mean fetch"):
        write_skill(tmp_path / "x", "fech")
    with pytest.raises(DataError, match=r"has no skill\.json"):
        read_skill(tmp_path, "fetch")
    write_skill(tmp_path / "planned", "store")
    with pytest.raises(DataError, match="is a version of 'store', and 'fetch' was asked for"):
        read_skill(tmp_path / "planned", "fetch")
    file = tmp_path / "planned" / "skill.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"sources": "0123"}))
    with pytest.raises(DataError, match=f"sources 0123, and this hone has {skill_versions()['store']}"):
        read_skill(tmp_path / "planned", "store")
    file.write_text(json.dumps(content | {"format": 2}))
    with pytest.raises(DataError, match="has format 2, this hone reads 1"):
        read_skill(tmp_path / "planned", "store")
    file.write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        read_skill(tmp_path / "planned", "store")
    with pytest.raises(DataError, match=r"sees 7 numbers .* a skill sees 12"):
        write_skill(tmp_path / "other", "fetch", skill_network(tmp_path / "wrong", size=7))


# ------------------------------------------------------------------------------------------------------- environment


def test_following_the_plan_is_paid_for_its_end_less_its_steps() -> None:
    env = WarehouseSkillEnv(skill="deliver", floor="tiny", robots=2)
    seen, _ = env.reset(seed=4)
    way, rewards, over = env.way, [], False
    while not over:
        seen, reward, over, truncated, _ = env.step(int(np.argmax(seen[:5])))
        rewards.append(reward)
        assert not truncated
    assert sum(rewards) == pytest.approx(1 - 0.01 * len(rewards))
    assert len(rewards) >= way
    env.reset(seed=4)
    assert env.way == way


def test_standing_ends_with_nothing_after_the_allotted_steps() -> None:
    env = gymnasium.make("hone/WarehouseSkill-v0", skill="fetch", floor="tiny", robots=1)
    env.reset(seed=1)
    way, total, steps, over = env.unwrapped.way, 0.0, 0, False  # type: ignore[attr-defined]
    while not over:
        _, reward, over, _, _ = env.step(STAND)
        total, steps = total + float(reward), steps + 1
    assert steps == 3 * way + 20
    assert total == pytest.approx(-0.01 * steps)


def test_the_environment_is_resumed_to_the_bit() -> None:
    options = {"skill": "fetch", "floor": "tiny", "robots": 2}
    factory = env_factory(GymConfig(id="hone/WarehouseSkill-v0", kwargs=options))
    assert why_inexact_resume(factory.make_many, seed=3) is None
