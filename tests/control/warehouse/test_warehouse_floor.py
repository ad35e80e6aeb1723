"""A warehouse floor: its rules by hand and beside the package that published them, plans, shield, credit, failures."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sanitizers import check_with_sanitizers

from hone.control.warehouse.dispatcher import choose_nearest, play_floor, random_chooser
from hone.control.warehouse.floor import HEADINGS, SKILLS, Floor, floor_spec, rware_layout
from hone.core.errors import ConfigError

STAND, FORWARD, LEFT, RIGHT, LOAD = range(5)
UP, DOWN, WEST, EAST = range(4)
ROOM = ["......", ".XX...", ".XX...", "..GG.."]


def room(*robots: tuple[int, int, int], requests: int = 1, **options: object) -> Floor:
    """A floor of `ROOM` with robots at (row, column, heading), the first shelves requested."""
    floor = Floor(floor_spec(ROOM, robots=len(robots), requests=requests, **options))  # type: ignore[arg-type]
    for robot, (row, column, heading) in zip(floor.robots, robots, strict=True):
        robot["cell"] = robot["target"] = row * 6 + column
        robot["heading"] = heading
    floor.state["queue"][:requests] = np.arange(requests)
    return floor


def places(floor: Floor) -> list[tuple[int, int]]:
    return [divmod(int(cell), floor.spec.width) for cell in floor.robots["cell"]]


# ---------------------------------------------------------------------------------- rules


def test_the_tiny_floor_is_the_published_one() -> None:
    rows = rware_layout(1, 3)
    assert rows[0] == "." * 10
    assert rows[1:9] == [".XX....XX."] * 8
    assert rows[9:] == ["..........", "....GG...."]


def test_a_robot_turns_drives_loads_delivers_and_stores() -> None:
    floor = room((1, 1, DOWN))
    for action in (LOAD, LEFT, FORWARD):  # down, left of it is east; the next cell holds a shelf
        floor.move(np.array([action], np.int8))
    assert places(floor) == [(1, 1)], "a loaded robot does not drive below a shelf"
    assert floor.robots["carrying"].tolist() == [0]
    for action in (LEFT, FORWARD, RIGHT, FORWARD, FORWARD, RIGHT, FORWARD, FORWARD):
        floor.move(np.array([action], np.int8))
    assert places(floor) == [(2, 3)]
    _, delivered = floor.move(np.array([FORWARD], np.int8))
    assert delivered == 1
    assert floor.state["deliveries"] == 1
    assert floor.state["queue"][0] != 0, "the next request is another shelf"
    floor.move(np.array([LOAD], np.int8))
    assert floor.robots["carrying"].tolist() == [0], "a shelf is not put down on a way"


@pytest.mark.parametrize(
    ("robots", "ends"),
    [
        (((0, 0, EAST), (0, 1, EAST)), [(0, 1), (0, 2)]),  # one follows the other
        (((0, 0, EAST), (0, 1, WEST)), [(0, 0), (0, 1)]),  # they do not exchange places
        (((0, 0, EAST), (0, 2, WEST)), [(0, 1), (0, 2)]),  # both want one cell: the first of equals
        (((0, 2, WEST), (0, 0, EAST), (1, 0, UP)), [(0, 2), (0, 1), (0, 0)]),  # the one with a queue behind it
        (((0, 0, EAST), (0, 1, DOWN), (1, 1, WEST), (1, 0, UP)), [(0, 1), (1, 1), (1, 0), (0, 0)]),  # a ring turns
        (((0, 0, UP), (0, 1, WEST)), [(0, 0), (0, 1)]),  # a wall, and who waits behind it
    ],
)
def test_moves_are_resolved_as_the_rules_say(
    robots: tuple[tuple[int, int, int], ...], ends: list[tuple[int, int]]
) -> None:
    floor = room(*robots)
    floor.move(np.full(len(robots), FORWARD, np.int8))
    assert places(floor) == ends


def test_rules_are_those_of_the_published_package() -> None:
    gymnasium, rware = pytest.importorskip("gymnasium"), pytest.importorskip("rware")
    from hone.control.warehouse.rware import RwareFloor

    del rware
    env = gymnasium.make("rware-small-8ag-v2", disable_env_checker=True).unwrapped
    env.reset(seed=3)
    mirrored = RwareFloor(env)
    mirrored.begin(3)
    own, draws, told = Floor(mirrored.floor.spec), np.random.default_rng(3), 0
    for _ in range(400):
        own.state[...] = mirrored.floor.state
        actions = draws.choice(5, 8, p=[0.05, 0.6, 0.12, 0.12, 0.11]).astype(np.int8)
        wanted = _wanted_cells(own, actions)
        env.step(actions.tolist())
        mirrored._read()
        if len(set(wanted)) < len(wanted):  # of equals the package takes any: its order is that of a hash
            continue
        own.move(actions)
        told += 1
        assert own.robots["cell"].tolist() == mirrored.floor.robots["cell"].tolist()
        assert own.robots["heading"].tolist() == mirrored.floor.robots["heading"].tolist()
        assert own.robots["carrying"].tolist() == mirrored.floor.robots["carrying"].tolist()
        assert own.state["shelf_cell"].tolist() == mirrored.floor.state["shelf_cell"].tolist()
    assert told > 150


def _wanted_cells(floor: Floor, actions: np.ndarray) -> list[int]:
    """Cells that moving robots want, by the slow form of the rules."""
    step = {UP: (-1, 0), DOWN: (1, 0), WEST: (0, -1), EAST: (0, 1)}
    wanted: list[int] = []
    for robot, action in zip(floor.robots, actions, strict=True):
        if action == FORWARD:
            row, column = divmod(int(robot["cell"]), floor.spec.width)
            down, right = step[int(robot["heading"])]
            if 0 <= row + down < len(floor.spec.layout) and 0 <= column + right < floor.spec.width:
                wanted.append((row + down) * floor.spec.width + column + right)
    return wanted


# ---------------------------------------------------------------------------------- motion


def slow_distance(floor: Floor, robot: int, target: int, *, loaded: bool) -> int:
    """Steps of a robot alone, over poses, one after another."""
    step = {UP: (-1, 0), DOWN: (1, 0), WEST: (0, -1), EAST: (0, 1)}
    turns = {UP: (WEST, EAST), DOWN: (WEST, EAST), WEST: (UP, DOWN), EAST: (UP, DOWN)}
    begin = int(floor.robots[robot]["cell"])
    queue, seen = deque([(begin, int(floor.robots[robot]["heading"]), 0)]), set[tuple[int, int]]()
    marks = "".join(floor.spec.layout)
    while queue:
        cell, heading, steps = queue.popleft()
        if cell == target:
            return steps
        if (cell, heading) in seen:
            continue
        seen.add((cell, heading))
        queue.extend((cell, turned, steps + 1) for turned in turns[heading])
        row, column = divmod(cell, floor.spec.width)
        row, column = row + step[heading][0], column + step[heading][1]
        to = row * floor.spec.width + column
        inside = 0 <= row < len(floor.spec.layout) and 0 <= column < floor.spec.width
        if inside and not floor.state["blocked"][to] and (not loaded or marks[to] != "X" or to == target):
            queue.append((to, heading, steps + 1))
    return -1


@pytest.mark.parametrize("seed", range(6))
def test_a_robot_alone_takes_the_shortest_way(seed: int) -> None:
    floor = Floor(floor_spec("small", robots=1, requests=1), seed)
    for _ in range(400):
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[0])
        robot = floor.robots[0]
        if robot["at"] == 0 and robot["steps"]:
            expected = slow_distance(floor, 0, int(robot["target"]), loaded=robot["carrying"] >= 0)
            assert robot["steps"] == expected
        floor.tick()
    assert floor.state["deliveries"] > 3


def planned_cells(robot: np.void, steps: int) -> list[int]:
    """Cells of a robot now and in its next steps, as planned."""
    plan = [int(pose) // 4 for pose in robot["plan"][robot["at"] : robot["steps"]]]
    return [int(robot["cell"]), *plan][: steps + 1]


@pytest.mark.parametrize("choose", [choose_nearest, random_chooser(5)])
def test_plans_meet_nowhere_and_nothing_touches(choose: Callable[[Floor, np.ndarray], int]) -> None:
    floor = Floor(floor_spec("tiny", robots=6, requests=6, limit=300))

    def watch(now: Floor) -> None:
        plans = [planned_cells(robot, 96) for robot in now.robots]
        for one in range(6):
            for other in range(one):
                for step in range(min(len(plans[one]), len(plans[other])) - 1):
                    ends = plans[one][step + 1], plans[other][step + 1]
                    assert ends[0] != ends[1]
                    assert ends != (plans[other][step], plans[one][step]), "an exchange of places"

    play_floor(floor, choose, seed=2, watch=watch)
    assert floor.state["collisions"] == 0
    assert floor.state["longest_still"] <= 50
    assert floor.state["deliveries"] > 30


def test_the_shield_lets_no_two_robots_touch_and_holds_back_no_more_than_it_has_to() -> None:
    floor, draws = Floor(floor_spec("tiny", robots=8, requests=4), 4), np.random.default_rng(4)
    held = 0
    for _ in range(600):
        before = floor.robots.copy()
        wanted = draws.choice(5, 8, p=[0.05, 0.65, 0.12, 0.12, 0.06]).astype(np.int8)
        taken, _ = floor.move(wanted, shielded=True)
        cells = floor.robots["cell"].tolist()
        assert len(set(cells)) == 8
        swaps = {(int(b["cell"]), int(a["cell"])) for a, b in zip(before, floor.robots, strict=True)}
        moves = {(int(a["cell"]), int(b["cell"])) for a, b in zip(before, floor.robots, strict=True)}
        assert not {pair for pair in moves & swaps if pair[0] != pair[1]}
        stood = (taken == STAND) & (wanted == FORWARD)
        held += int(stood.sum())
        free = set(range(sum(map(len, floor.spec.layout)))) - {*cells, *before["cell"].tolist()}
        for number in np.flatnonzero(stood):
            alone = floor.robots[number]["carrying"] < 0
            ahead = _wanted_cells_of(before[number], floor)
            assert not (alone and ahead in free and not floor.state["blocked"][ahead]), "nobody was there"
    assert held > 100


def _wanted_cells_of(robot: np.void, floor: Floor) -> int:
    row, column = divmod(int(robot["cell"]), floor.spec.width)
    down, right = {UP: (-1, 0), DOWN: (1, 0), WEST: (0, -1), EAST: (0, 1)}[int(robot["heading"])]
    if 0 <= row + down < len(floor.spec.layout) and 0 <= column + right < floor.spec.width:
        return (row + down) * floor.spec.width + column + right
    return -1


# ---------------------------------------------------------------------------------- choice and credit


def test_the_nearest_pair_is_the_default() -> None:
    floor = room((0, 5, WEST), requests=2)
    pairs = floor.choices()
    # (1, 2) lies 3 cells west and one down, with a turn: 5 steps; (1, 1) is one cell further
    assert pairs["steps"].tolist() == [5, 6]
    assert floor.greedy(pairs) == 0
    assert [SKILLS[skill] for skill in pairs["skill"]] == ["fetch", "fetch"]
    assert (floor.seen[:2, 3] * 10).tolist() == pytest.approx([5, 6])


def copy_of(floor: Floor) -> Floor:
    other = Floor(floor.spec)
    other.state[...] = floor.state
    return other


def slow_outcome(floor: Floor, pair: np.void) -> float:
    """Discounted deliveries after an assignment, played step by step."""
    other = copy_of(floor)
    other.assign(np.array(pair))
    total, until = 0.0, int(floor.state["time"]) + floor.spec.difference
    while other.state["time"] < until:
        pairs = other.choices()
        if len(pairs):
            other.assign(pairs[other.greedy(pairs)])
        else:
            gain = floor.spec.discount ** (int(other.state["time"]) - (until - floor.spec.difference))
            total += gain * other.tick()
    return total


def test_a_difference_reward_is_the_difference_of_two_simulated_futures() -> None:
    from hone.control.warehouse.envs import WarehouseVectorEnv

    env = WarehouseVectorEnv(3, floor="tiny", robots=3, requests=6, difference=60)
    env.reset(seed=1)
    draws, unequal = np.random.default_rng(1), 0
    for _ in range(25):
        floors = []
        for number in range(3):
            floor = Floor(env.floor_spec)
            floor.state[...] = env.states[number].view(floor.state.dtype)[0]
            floors.append(floor)
        pairs = [floor.choices().copy() for floor in floors]
        actions = np.array([draws.integers(len(own)) for own in pairs])
        _, reward, *_ = env.step(actions)
        for number, floor in enumerate(floors):
            own, usual = pairs[number], floor.greedy(pairs[number])
            expected = slow_outcome(floor, own[actions[number]]) - slow_outcome(floor, own[usual])
            assert reward[number] == pytest.approx(expected, abs=1e-12)
            assert actions[number] != usual or reward[number] == 0.0
            unequal += reward[number] != 0.0
    assert unequal > 10


def test_belief_in_requests_that_nobody_saw_adds_up_to_their_number() -> None:
    floor = Floor(floor_spec("tiny", robots=2, requests=4, sensor=1), 3)
    for _ in range(300):
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[floor.greedy(pairs)])
        else:
            floor.tick()
        unseen = int((floor.state["seen"][:4] == 0).sum())
        assert float(floor.state["belief"][: int(floor.state["shelves"])].sum()) == pytest.approx(unseen, abs=1e-3)
        fetched = [pair for pair in pairs if SKILLS[pair["skill"]] == "fetch"]
        known = set(floor.state["queue"][:4][floor.state["seen"][:4] == 1].tolist())
        assert {int(pair["shelf"]) for pair in fetched} <= known, "only requests that a robot has seen are known"
    assert floor.state["deliveries"] > 5


# ---------------------------------------------------------------------------------- failures


def running(steps: int = 60, *, seed: int = 7, robots: int = 4) -> Floor:
    floor = Floor(floor_spec("small", robots=robots, requests=4, limit=steps), seed)
    return play_floor(floor, choose_nearest, seed=seed)


def go_on(floor: Floor, steps: int) -> None:
    until = floor.state["time"] + steps
    while floor.state["time"] < until:
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[floor.greedy(pairs)])
        else:
            floor.tick()


def robot_with(floor: Floor, skill: str) -> int:
    while not (busy := np.flatnonzero(floor.robots["skill"] == SKILLS.index(skill))).size:
        go_on(floor, 1)
    return int(busy[0])


def test_a_robot_that_dies_with_a_load_is_driven_around() -> None:
    floor = running()
    lost = robot_with(floor, "deliver")
    where = int(floor.robots[lost]["cell"])
    floor.stop_robot(lost)
    for robot in np.delete(floor.robots, lost):
        assert where not in planned_cells(robot, 96), "plans avoid it at once"
    before = int(floor.state["deliveries"])
    go_on(floor, 300)
    assert int(floor.robots[lost]["cell"]) == where
    assert floor.state["deliveries"] > before + 10
    assert (floor.state["collisions"], floor.state["longest_still"] <= 50) == (0, True)


def test_the_task_of_a_robot_that_dies_is_another_ones_within_a_step() -> None:
    floor = Floor(replace(floor_spec("small", robots=2, requests=1), preempt=False), 3)
    lost = robot_with(floor, "fetch")
    shelf, other = int(floor.robots[lost]["shelf"]), floor.robots[1 - lost]
    assert SKILLS[other["skill"]] == "wait"
    floor.stop_robot(lost)
    go_on(floor, 1)
    assert (SKILLS[other["skill"]], int(other["shelf"])) == ("fetch", shelf)


def test_a_shelf_that_vanishes_fails_the_skill_and_the_robot_has_another_within_a_step() -> None:
    floor = running()
    robot = robot_with(floor, "fetch")
    shelf, failures = int(floor.robots[robot]["shelf"]), int(floor.state["failures"])
    floor.lose_shelf(shelf)
    assert floor.state["failures"] == failures + 1
    assert shelf not in floor.state["queue"][:4].tolist()
    go_on(floor, 1)
    assert SKILLS[floor.robots[robot]["skill"]] in {"fetch", "wait"}
    assert floor.robots[robot]["shelf"] != shelf
    go_on(floor, 200)
    assert floor.state["collisions"] == 0


def test_a_blocked_aisle_is_planned_around_at_once_and_whoever_is_inside_leaves() -> None:
    floor = running()
    aisle = [row * 10 + 3 for row in range(2, 7)]
    floor.robots[0]["cell"] = aisle[1]
    floor.robots[0]["skill"], floor.robots[0]["carrying"] = 0, -1
    floor.close_cells(aisle)
    assert SKILLS[floor.robots[0]["skill"]] == "evacuate"
    outside = [robot for robot in floor.robots if robot["cell"] not in aisle]
    assert len(outside) >= 2
    for robot in outside:
        assert not set(planned_cells(robot, 96)) & set(aisle)
    go_on(floor, 12)
    assert not set(floor.robots["cell"].tolist()) & set(aisle)
    for _ in range(150):
        go_on(floor, 1)
        assert not set(floor.robots["cell"].tolist()) & set(aisle)
    floor.open_cells(aisle)
    before = int(floor.state["deliveries"])
    go_on(floor, 200)
    assert floor.state["deliveries"] > before + 5
    assert (floor.state["collisions"], floor.state["longest_still"] <= 50) == (0, True)


def test_a_place_that_nobody_can_reach_any_more_is_given_up() -> None:
    floor = Floor(floor_spec("small", robots=1, requests=1), 3)
    while SKILLS[floor.robots[0]["skill"]] != "store":
        go_on(floor, 1)
    place = int(floor.robots[0]["target"])
    around = [
        cell for cell in (place - 10, place - 1, place + 1, place + 10) if "".join(floor.spec.layout)[cell] == "."
    ]
    failures = int(floor.state["failures"])
    floor.close_cells(around)
    go_on(floor, 1)
    assert floor.state["failures"] == failures + 1
    assert SKILLS[floor.robots[0]["skill"]] in {"wait", "none"}, "there is no other free place"
    floor.open_cells(around)
    go_on(floor, 60)
    assert floor.robots[0]["carrying"] == -1 or floor.state["deliveries"] > 1


def test_a_loaded_robot_leaves_a_closed_aisle_through_it() -> None:
    floor = Floor(floor_spec("small", robots=2, requests=4), 3)
    floor.robots["cell"], floor.robots["heading"], floor.robots["skill"] = [53, 0], [UP, UP], 0
    shelf = int(floor.state["queue"][0])
    floor.robots["carrying"][0], floor.state["shelf_cell"][shelf] = shelf, 53
    aisle = [row * 10 + 3 for row in range(1, 9)]  # shelves on both sides
    floor.close_cells(aisle)
    assert SKILLS[floor.robots[0]["skill"]] == "evacuate"
    assert floor.robots[0]["steps"] == slow_way_out(5)
    go_on(floor, slow_way_out(5))
    assert int(floor.robots[0]["cell"]) not in aisle
    assert SKILLS[floor.robots[0]["skill"]] == "deliver", "the task goes on"
    assert floor.state["interventions"] == 0


def slow_way_out(row: int) -> int:
    """Steps of a robot that looks up, from a row of the aisle between rows 0 and 9: straight on, or after two turns."""
    return min(row, 9 - row + 2)


def test_a_carried_shelf_cannot_vanish() -> None:
    floor = running()
    shelf = int(floor.robots[robot_with(floor, "deliver")]["carrying"])
    with pytest.raises(ConfigError, match=f"shelf {shelf} is carried by a robot"):
        floor.lose_shelf(shelf)


# ---------------------------------------------------------------------------------- faults


def test_all_faults_of_a_floor_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as fault:
        floor_spec(["..", ".", "aX"], robots=0, requests=40)
    text = str(fault.value)
    for part in ("robots = 0", "requests = 40", "different lengths", "unknown mark 'a'", "0 goals", "1 shelves"):
        assert part in text
    with pytest.raises(ConfigError, match="did you mean small"):
        floor_spec("smal")


@pytest.mark.slow
def test_no_sanitizer_objects() -> None:
    check_with_sanitizers(Path(__file__).with_name("warehouse_checked.py"))


def test_names_are_those_of_the_numbers() -> None:
    assert (HEADINGS[WEST], SKILLS[2]) == ("left", "deliver")
