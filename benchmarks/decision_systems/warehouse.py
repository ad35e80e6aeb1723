"""A warehouse of robots: who fetches what is learnt, skills drive, and motion keeps robots apart by reservations.

The floors are RWARE's, its package where it is installed and the built-in floor, which follows the same rules, where
not. The dispatcher sees all requests (`privileged`), but for the figure of the partial view, where it knows only
requests that a robot has seen within one cell. The negative control assigns at random.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.api import warehouse
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import save_policy
from hone.control.warehouse.dispatcher import (
    Chooser,
    Dispatcher,
    DispatcherConfig,
    RobotReport,
    choose_nearest,
    play_floor,
    policy_chooser,
    random_chooser,
)
from hone.control.warehouse.envs import FlatWarehouseVectorEnv
from hone.control.warehouse.floor import SKILLS, Floor, FloorSpec, floor_spec
from hone.control.warehouse.skills import write_skill
from hone.core.random import generator
from hone.estimators.means import paired_difference
from hone.recipes.on_policy.dispatch import ENTRY as DISPATCH
from hone.recipes.on_policy.ppo import ENTRY as PPO
from hone.recipes.tabular.q_learning import ENTRY as Q_LEARNING
from hone.run.loop import train

TITLE = "Warehouse"
SEED = 100
"""First seed of every figure; settings were chosen on the training seeds below 10 and floors from 1000 on."""
EASY: dict[str, Any] = {"floor": "small", "robots": 8, "requests": 16}
"""RWARE's small-8ag-easy, where a robot has several requests to choose from."""


def train_dispatcher(options: dict[str, Any], *, steps: int, seed: int, horizon: int = 40) -> ControlPolicy:
    """The policy of `recipe = "dispatch"` after `steps` iterations of 256 decisions."""
    config = DISPATCH.config.model_validate({
        "recipe": "dispatch", "name": "warehouse", "steps": steps, "seed": seed, "rollout_steps": 16,
        "env": {"id": "hone/Warehouse-v0", "num_envs": 16, "check": False, "kwargs": options},
        "algorithm": {"horizon": horizon},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        train(job.recipe, steps=steps, callback=lambda *_: None)
    finally:
        job.close()
    return job.recipe.learner.policy


def played(spec: FloorSpec, choose: Chooser, seeds: range) -> list[Floor]:
    """An episode of each seed."""
    return [play_floor(Floor(spec), choose, seed=seed) for seed in seeds]


def deliveries(floors: list[Floor]) -> NDArray[np.float64]:
    """Deliveries of each."""
    return np.array([float(floor.state["deliveries"]) for floor in floors])


# --------------------------------------------------------------------------------------------------------------- RWARE


def play_rware(name: str, seeds: range) -> tuple[list[float], int, int]:
    """Deliveries of each episode of the package, collisions in all, and the longest stand of a robot."""
    import gymnasium  # noqa: PLC0415 - with the package, which registers its names
    import rware  # noqa: F401, PLC0415

    from hone.control.warehouse.rware import RwareFloor  # noqa: PLC0415

    env: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    mirrored = RwareFloor(env)
    totals: list[float] = []
    collisions = longest = 0
    for seed in seeds:
        mirrored.begin(seed)
        total = 0
        while mirrored.floor.state["time"] < mirrored.floor.spec.limit:
            pairs = mirrored.floor.choices()
            if len(pairs):
                mirrored.floor.assign(pairs[choose_nearest(mirrored.floor, pairs)])
            else:
                total += mirrored.step()
        totals.append(float(total))
        collisions += mirrored.collisions
        longest = max(longest, int(mirrored.floor.state["longest_still"]))
    return totals, collisions, longest


def rware_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Deliveries of the nearest-first dispatcher, collisions, deadlocks."""
    seeds = range(SEED, SEED + (4 if fast else 20))
    has_package = find_spec("rware") is not None
    collisions = longest = 0
    for size, robots, bar, reference in (("tiny", 2, 29.0, 29.8), ("small", 4, 39.5, 40.4)):
        with cpu_seconds() as spent:
            if has_package:
                totals, own_collisions, own_longest = play_rware(f"rware-{size}-{robots}ag-v2", seeds)
            else:
                floors = played(floor_spec(size, robots=robots), choose_nearest, seeds)
                totals = deliveries(floors).tolist()
                own_collisions = sum(int(floor.state["collisions"]) for floor in floors)
                own_longest = max(int(floor.state["longest_still"]) for floor in floors)
        collisions, longest = collisions + own_collisions, max(longest, own_longest)
        where = "package rware" if has_package else "SKIPPED: package rware is not installed; built-in floor instead"
        yield AcceptanceLine(figure=f"{size}-{robots}ag, nearest first: deliveries an episode",
                             value=float(np.mean(totals)), at_least=bar, seeds=len(totals), cpu_s=spent.spent,
                             words=f"{where}; worst {min(totals):.0f}; published greedy {reference}")  # fmt: skip
    yield AcceptanceLine(figure="collisions on these floors", value=float(collisions), at_most=0.0, seeds=len(seeds))
    yield AcceptanceLine(figure="longest stand with a task elsewhere, steps", value=float(longest), at_most=50.0,
                         seeds=len(seeds), words="above 50: a deadlock")  # fmt: skip


# ------------------------------------------------------------------------------------------------------ the learnt one


def learnt_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """The learnt dispatcher, random assignment and flat Q-learning beside the nearest-first rule, on equal seeds."""
    steps, horizon = (4 if fast else 14), 24
    with cpu_seconds() as spent:
        policy = train_dispatcher(EASY, steps=steps, seed=1, horizon=horizon)
    spec, seeds = floor_spec(**EASY), range(SEED, SEED + 20)
    greedy = deliveries(played(spec, choose_nearest, seeds))
    floors = played(spec, policy_chooser(policy, spec), seeds)
    learnt = deliveries(floors)
    found, mean = paired_difference(greedy, learnt), float(greedy.mean())
    yield AcceptanceLine(
        figure="small-8ag-easy: learnt dispatcher above nearest first, share", value=found.difference / mean,
        at_least=0.02, seeds=20, cpu_s=spent.spent,
        words=f"95% interval {found.low / mean:.3f} to {found.high / mean:.3f}, paired; {learnt.mean():.1f} and "
        f"{mean:.1f} deliveries; worst seed {learnt.min():.0f}; trained on {steps * 256:,} decisions",
    )  # fmt: skip
    collisions = sum(int(floor.state["collisions"]) for floor in floors)
    longest = max(int(floor.state["longest_still"]) for floor in floors)
    yield AcceptanceLine(
        figure="collisions under the learnt dispatcher", value=float(collisions), at_most=0.0, seeds=20
    )
    yield AcceptanceLine(figure="longest stand under the learnt one, steps", value=float(longest), at_most=50.0,
                         seeds=20)  # fmt: skip
    random = deliveries(played(spec, random_chooser(SEED), seeds))
    yield AcceptanceLine(figure="random assignment above nearest first, share", value=float(random.mean()) / mean - 1.0,
                         at_most=0.0, negative=True, seeds=20,
                         words=f"{random.mean():.1f} deliveries; the bar of the learnt one is 0.02")  # fmt: skip
    with cpu_seconds() as spent:
        flat = flat_deliveries(iterations=600 if fast else 1200, episodes=5 if fast else 20)
    yield AcceptanceLine(
        figure="flat Q-learning, share of the learnt dispatcher", value=float(flat.mean() / learnt.mean()),
        at_most=0.25, seeds=len(flat), cpu_s=spent.spent,
        words=f"{flat.mean():.2f} deliveries after {64 * (600 if fast else 1200):,} steps of the floor; the "
        f"dispatcher's credit simulated at most {2 * horizon * steps * 256:,}",
    )  # fmt: skip


def flat_deliveries(*, iterations: int, episodes: int) -> NDArray[np.float64]:
    """Deliveries `[episodes]` of robots that share one table of their own moves, learnt by Q-learning."""
    config = Q_LEARNING.config.model_validate({
        "recipe": "q_learning", "name": "flat", "steps": iterations, "seed": 1, "rollout_steps": 16,
        "env": {"id": "hone/WarehouseFlat-v0", "num_envs": 32, "check": False, "kwargs": EASY},
        "table": {"initial": 0.1, "rate": {"rate": 0.3}},
        "exploration": {"kind": "epsilon_greedy", "epsilon": {
            "kind": "linear", "start": 0.5, "end": 0.05, "decay_iterations": iterations // 2}},
        "algorithm": {"discount": 0.98},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        train(job.recipe, steps=iterations, callback=lambda *_: None)
    finally:
        job.close()
    table = job.recipe.learner.policy.q
    env = FlatWarehouseVectorEnv(8, **EASY)
    totals = np.zeros(episodes)
    for episode in range(episodes):
        seen, _ = env.reset(seed=SEED + episode)
        draws = generator(SEED, "flat", episode)
        for _ in range(env.floor_spec.limit):
            actions = table[np.asarray(seen, np.int64)].argmax(axis=1)
            lost = draws.random(8) < 0.05  # a deterministic table would stand before the first obstacle for ever
            actions = np.where(lost, draws.integers(0, 5, 8), actions)
            seen, reward, *_ = env.step(actions)
            totals[episode] += float(np.sum(reward))
    return totals


def partial_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """The learnt dispatcher that knows only what robots have seen, beside one that knows all."""
    options: dict[str, Any] = {"floor": "small", "robots": 4, "requests": 4}
    with cpu_seconds() as spent:
        policy = train_dispatcher({**options, "sensor": 1}, steps=4 if fast else 20, seed=1, horizon=24)
    seeds = range(SEED, SEED + 20)
    known = deliveries(played(floor_spec(**options), choose_nearest, seeds))
    spec = floor_spec(**options, sensor=1)
    unknown = deliveries(played(spec, policy_chooser(policy, spec), seeds))
    yield AcceptanceLine(figure="small-4ag, learnt on a partial view: share of the privileged nearest-first rule",
                         value=float(unknown.mean() / known.mean()), at_least=0.6, seeds=20, cpu_s=spent.spent,
                         words=f"{unknown.mean():.1f} and {known.mean():.1f} deliveries; requests are known once a "
                         "robot was within a cell of them")  # fmt: skip


# --------------------------------------------------------------------------------------------------- versions of skills


@dataclass(slots=True)
class CountedClock:
    """A clock that goes on by a hundredth of a second at each look."""

    at_s: float = 1000.0

    def now_s(self) -> float:
        self.at_s += 0.01
        return self.at_s

    def monotonic_s(self) -> float:
        return self.now_s()


def train_skill(folder: Path, *, steps: int, seed: int) -> Path:
    """Folder of a version of `fetch`, trained by PPO for `steps` iterations of 512 moves."""
    config = PPO.config.model_validate({
        "recipe": "ppo", "name": "fetch", "steps": steps, "seed": seed, "rollout_steps": 64,
        "env": {"id": "hone/WarehouseSkill-v0", "num_envs": 8, "check": False,
                "kwargs": {"skill": "fetch", "floor": "small", "robots": 4}},
        "network": {"hidden": [32]}, "learner": {"lr": 3e-3}, "algorithm": {"discount": 0.97},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        train(job.recipe, steps=steps, callback=lambda *_: None)
    finally:
        job.close()
    save_policy(job.recipe.learner.policy, folder / "policy")
    write_skill(folder / "skill", "fetch", folder / "policy")
    return folder / "skill"


def tried_skill(hall: Path, versions: tuple[Path, Path], seed: int) -> tuple[str, int, float, int]:
    """A version on trial beside the champion, from the first episode on -> how the trial ended, executions of the new
    version until then, deliveries an episode meanwhile, and collisions."""
    clock = CountedClock()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "hall.toml"
        file.write_text(hall.read_text())
        with warehouse.open_library(Path(folder) / "skills", clock=clock) as library:
            first, second = (library.add("fetch", version).id for version in versions)
            library.publish("fetch", first, "the first")
            library.begin_trial("fetch", second)
        used = collisions = 0
        totals: list[int] = []
        for episode in range(60):
            played_one = warehouse.play(file, seed=SEED + 100 * seed + episode, clock=clock)
            used += played_one.versions["fetch"].get(second, 0)
            collisions += played_one.collisions
            totals.append(played_one.deliveries)
            ends = [one.after for one in played_one.transitions if one.after in ("100%", "rolled_back")]
            if ends:
                return ends[0], used, float(np.mean(totals)), collisions
    return "none", used, float(np.mean(totals)), collisions


def untried_skill(hall: Path, version: Path, episodes: range) -> tuple[int, float]:
    """A version that replaces the champion at once -> its executions, and deliveries an episode."""
    clock = CountedClock()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "hall.toml"
        file.write_text(hall.read_text())
        with warehouse.open_library(Path(folder) / "skills", clock=clock) as library:
            number = library.add("fetch", version).id
            library.publish("fetch", number, "without a trial")
        ran = [warehouse.play(file, seed=seed, clock=clock) for seed in episodes]
        assert all(not one.transitions for one in ran)
    return sum(one.versions["fetch"].get(number, 0) for one in ran), float(np.mean([one.deliveries for one in ran]))


def skill_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Trials of versions of a skill: bad ones go back, one as good does not, and without a trial a bad one stays."""
    logging.getLogger("hone.warehouse").setLevel(logging.ERROR)
    seeds = range(3 if fast else 10)
    with TemporaryDirectory() as folder, cpu_seconds() as spent:
        root = Path(folder)
        hall = root / "hall.toml"
        hall.write_text('floor = "small"\nrobots = 4\nrequests = 4\n[skills]\nlibrary = "skills"\n')
        write_skill(root / "planned", "fetch")
        bad = [train_skill(root / f"bad{seed}", steps=4, seed=SEED + seed) for seed in seeds]
        trials = [
            tried_skill(hall, (root / "planned", version), seed) for seed, version in zip(seeds, bad, strict=True)
        ]
        champion = untried_skill(hall, root / "planned", range(SEED, SEED + 10))[1]
        untried = [untried_skill(hall, version, range(SEED, SEED + 10)) for version in bad[: 1 if fast else 3]]
    back = [one for one in trials if one[0] == "rolled_back"]
    harmed = max(one[1] for one in trials)
    yield AcceptanceLine(figure="bad versions of a skill that were rolled back, share", value=len(back) / len(trials),
                         at_least=1.0, seeds=len(trials), cpu_s=spent.spent,
                         words="fetch after 2,048 moves of training, on trial beside the planned way")  # fmt: skip
    yield AcceptanceLine(
        figure="executions of a bad version until it was rolled back, at most", value=float(harmed), at_most=200.0,
        seeds=len(trials),
        words=f"of each: {', '.join(str(one[1]) for one in trials)}; {np.mean([one[2] for one in trials]):.1f} "
        f"deliveries an episode meanwhile, {champion:.1f} under the champion alone",
    )  # fmt: skip
    yield AcceptanceLine(figure="collisions while bad versions were tried", value=float(sum(one[3] for one in trials)),
                         at_most=0.0, seeds=len(trials))  # fmt: skip
    count = min(one[0] for one in untried)
    share = float(np.mean([one[1] for one in untried])) / champion
    yield AcceptanceLine(
        figure="executions of a bad version that is published without a trial, at least", value=float(count),
        at_least=201.0, negative=True, seeds=len(untried),
        words=f"10 episodes, and it stays; deliveries {share:.0%} of the champion's",
    )  # fmt: skip
    if fast:
        return
    with TemporaryDirectory() as folder, cpu_seconds() as spent:
        root = Path(folder)
        hall = root / "hall.toml"
        hall.write_text('floor = "small"\nrobots = 4\nrequests = 4\n[skills]\nlibrary = "skills"\n')
        pairs = [
            (train_skill(root / f"a{seed}", steps=30, seed=SEED + seed),
             train_skill(root / f"b{seed}", steps=30, seed=SEED + 50 + seed))
            for seed in range(5)
        ]  # fmt: skip
        trials = [tried_skill(hall, pair, seed) for seed, pair in enumerate(pairs)]
    promoted = [one for one in trials if one[0] == "100%"]
    yield AcceptanceLine(
        figure="trained versions that replaced another trained one, share", value=len(promoted) / len(trials),
        at_least=0.6, seeds=len(trials), cpu_s=spent.spent,
        words=f"15,360 moves of training each, on seeds of their own; ends: {', '.join(one[0] for one in trials)}",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- failures


def some_robot(floor: Floor, skill: str) -> int:
    """A robot in a skill; the episode goes on until there is one."""
    while not (busy := np.flatnonzero(floor.robots["skill"] == SKILLS.index(skill))).size:
        go_on(floor, 1)
    return int(busy[0])


def go_on(floor: Floor, steps: int) -> None:
    """So many steps under the nearest-first rule."""
    until = floor.state["time"] + steps
    while floor.state["time"] < until:
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[choose_nearest(floor, pairs)])
        else:
            floor.tick()


def failed_skills(floor: Floor, event: str) -> tuple[int, int]:
    """Robots whose task an event ends, and those of them that have another task, or nothing left to do, within a
    step."""
    if event == "shelf vanishes":
        robot = some_robot(floor, "fetch")
        floor.lose_shelf(int(floor.robots[robot]["shelf"]))
        hit = [robot]
    elif event == "robot dies with a load":
        lost = some_robot(floor, "deliver")
        floor.stop_robot(lost)
        hit = [number for number in range(floor.spec.robots) if number != lost]
    else:
        some_robot(floor, "fetch")
        floor.close_cells([row * floor.spec.width + 3 for row in range(2, 8)])
        hit = list(range(floor.spec.robots))
    go_on(floor, 1)
    while len(pairs := floor.choices()):  # a skill that ended in this step is followed before the next
        floor.assign(pairs[choose_nearest(floor, pairs)])
    closed = set(np.flatnonzero(floor.state["blocked"]).tolist())
    dead = set(floor.robots["cell"][floor.robots["dead"] == 1].tolist())
    answered = 0
    for number in hit:
        robot = floor.robots[number]
        cells = {int(pose) // 4 for pose in robot["plan"][robot["at"] : robot["steps"]]}
        leaves = SKILLS[robot["skill"]] == "evacuate"
        answered += SKILLS[robot["skill"]] != "none" and (leaves or not cells & (closed | dead))
    return len(hit), answered


def drill_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Failures in the middle of an episode: another plan within a step, and no collision or deadlock afterwards."""
    seeds = range(SEED, SEED + (8 if fast else 40))
    for event in ("robot dies with a load", "shelf vanishes", "aisle is blocked"):
        hit = answered = collisions = longest = 0
        with cpu_seconds() as spent:
            for seed in seeds:
                floor = play_floor(Floor(floor_spec("small", robots=4, limit=60)), choose_nearest, seed=seed)
                own_hit, own_answered = failed_skills(floor, event)
                go_on(floor, 200)
                hit, answered = hit + own_hit, answered + own_answered
                collisions += int(floor.state["collisions"])
                longest = max(longest, int(floor.state["longest_still"]))
        yield AcceptanceLine(figure=f"{event}: robots with another task or plan within a step, share",
                             value=answered / hit, at_least=1.0, seeds=len(seeds), cpu_s=spent.spent,
                             words=f"{hit} robots; longest stand afterwards {longest} steps")  # fmt: skip
        yield AcceptanceLine(figure=f"{event}: collisions and deadlocks in 200 steps",
                             value=float(collisions + (longest > 50)), at_most=0.0, seeds=len(seeds))  # fmt: skip


def latency_lines(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Processor time of planning anew for four robots."""
    dispatcher = Dispatcher(DispatcherConfig())
    draws, count = generator(SEED, "latency"), 50 if fast else 400
    homes = [divmod(int(cell), 10) for cell in dispatcher.floor.state["shelf_cell"][:80]]
    calls: list[Callable[[], object]] = []
    for _ in range(count):
        cells = draws.choice(200, 4, replace=False)
        picks = draws.choice(80, 5, replace=False)
        tasks = [homes[int(pick)] for pick in picks[:4]]
        ways = [divmod(int(cell), 10) for cell in cells]
        robots = [RobotReport(cell=way) for way in ways]
        calls.append(lambda robots=robots, tasks=tasks: dispatcher.assign(robots, tasks))
    with cpu_seconds() as spent:
        for call in calls:
            call()
    yield AcceptanceLine(figure="assigning and planning four robots anew: CPU ms", value=1000 * spent.spent / count,
                         at_most=10.0 * slack(fast=fast), cpu_s=spent.spent, words=f"mean of {count}")  # fmt: skip


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """All figures."""
    yield from rware_lines(fast=fast)
    yield from drill_lines(fast=fast)
    yield from latency_lines(fast=fast)
    yield from learnt_lines(fast=fast)
    yield from partial_lines(fast=fast)
    yield from skill_lines(fast=fast)
