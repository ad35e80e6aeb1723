"""Flat or dispatched: a learner of single moves in a warehouse, and one that assigns tasks to robots with skills."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hone.control.warehouse.dispatcher import Chooser, choose_nearest, play_floor, policy_chooser, random_chooser
from hone.control.warehouse.envs import FlatWarehouseVectorEnv
from hone.control.warehouse.floor import Floor, floor_spec
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.lab.control import train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot, line_plot
from hone.recipes.on_policy.dispatch import DispatchConfig
from hone.recipes.tabular.q_learning import QLearningConfig

Floats = NDArray[np.float64]

_SPEC = floor_spec("tiny", robots=4, requests=8)
_FLOOR = {"floor": "tiny", "robots": 4, "requests": 8}
_LEARNT, _NEAREST, _RANDOM, _FLAT = "learnt dispatcher", "nearest first", "random assignment", "flat Q-learning"
_COPIES = 16
"""Floors side by side."""


def _train_dispatcher(seed: int, *, steps: int) -> Chooser:
    config = DispatchConfig.model_validate({
        "recipe": "dispatch", "name": "dispatch", "steps": steps, "seed": seed, "rollout_steps": 16,
        "env": {"id": "hone/Warehouse-v0", "num_envs": _COPIES, "check": False, "kwargs": _FLOOR},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        return policy_chooser(train_recipe(job.recipe, steps=steps), _SPEC)
    finally:
        job.close()


def _train_flat(seed: int, *, steps: int) -> tuple[Floats, Floats]:
    """The table `[S, A]` of single moves, and all deliveries until each iteration `[steps]`."""
    config = QLearningConfig.model_validate({
        "recipe": "q_learning", "name": "flat", "steps": steps, "seed": seed, "rollout_steps": 16,
        "env": {"id": "hone/WarehouseFlat-v0", "num_envs": 4 * _COPIES, "check": False, "kwargs": _FLOOR},
        "table": {"initial": 0.1, "rate": {"rate": 0.3}}, "algorithm": {"discount": 0.98},
        "exploration": {"kind": "epsilon_greedy", "epsilon": {
            "kind": "linear", "start": 0.5, "end": 0.05, "decay_iterations": max(1, steps // 2)}},
    })  # fmt: skip
    job, paid = config.open().build(config), np.zeros(steps)

    def watch(step: int, episodes: Episodes) -> None:
        paid[step - 1] = episodes.reward.sum()

    try:
        table = train_recipe(job.recipe, steps=steps, watch=watch)
    finally:
        job.close()
    return table.q, paid.cumsum()


def _play_flat(table: Floats, seed: int, *, episodes: int) -> Floats:
    """Deliveries `[episodes]` of robots that follow the table, but for one move in twenty."""
    env, totals = FlatWarehouseVectorEnv(_SPEC.robots, floor="tiny", robots=4, requests=8), np.zeros(episodes)
    for episode in range(episodes):
        seen, _ = env.reset(seed=1000 * seed + episode)
        draws = generator(seed, "flat", episode)
        for _ in range(_SPEC.limit):
            moves = table[np.asarray(seen, np.int64)].argmax(axis=1)
            moves = np.where(draws.random(_SPEC.robots) < 0.05, draws.integers(0, 5, _SPEC.robots), moves)
            seen, reward, *_ = env.step(moves)
            totals[episode] += float(np.sum(reward))
    return totals


def claims_of(score: Mapping[str, Floats], collisions: int) -> list[BoundedClaim]:
    """Claims on deliveries of each, and on collisions under the dispatchers."""
    mean = {name: float(values.mean()) for name, values in score.items()}
    return [
        at_most("flat Q-learning, share of the learnt dispatcher", mean[_FLAT] / mean[_LEARNT], 0.25),
        at_most("flat Q-learning, share of random assignment to skills", mean[_FLAT] / mean[_RANDOM], 0.25),
        at_least("nearest first, times random assignment", mean[_NEAREST] / mean[_RANDOM], 1.05),
        at_least("learnt dispatcher, times nearest first", mean[_LEARNT] / mean[_NEAREST], 1.0),
        at_most("collisions of robots with skills", collisions, 0.5),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    episodes, steps = (4, 3) if quick else (20, 12)
    choosers = {
        _LEARNT: _train_dispatcher(seed, steps=steps), _NEAREST: choose_nearest, _RANDOM: random_chooser(seed)
    }  # fmt: skip
    score: dict[str, Floats] = {}
    collisions = 0
    for name, choose in choosers.items():
        floors = [play_floor(Floor(_SPEC), choose, seed=1000 * seed + number) for number in range(episodes)]
        score[name] = np.array([float(floor.state["deliveries"]) for floor in floors])
        collisions += sum(int(floor.state["collisions"]) for floor in floors)
    flat_steps = 40 if quick else 500
    table, paid = _train_flat(seed, steps=flat_steps)
    score[_FLAT] = _play_flat(table, seed, episodes=max(2, episodes // 4))
    mean = {name: float(values.mean()) for name, values in score.items()}
    moves = flat_steps * 16 * _COPIES * _SPEC.robots
    return ExperimentResult(
        header=("decided by", "deliveries in 500 steps", "of nearest first"),
        rows=[(name, f"{mean[name]:.1f}", f"{mean[name] / mean[_NEAREST]:.1%}") for name in score],
        panels=[
            bar_plot("deliveries in 500 steps", {name: float(mean[name]) for name in score}),
            line_plot("deliveries while the flat learner learns", "iteration", range(1, flat_steps + 1), {_FLAT: paid}),
        ],
        verdict=(
            f"Robots with skills deliver {mean[_RANDOM]:.0f} shelves in 500 steps if tasks are assigned at random, "
            f"{mean[_NEAREST]:.0f} if the nearest comes first, and {mean[_LEARNT]:.0f} if the assignment is learnt. "
            f"Q-learning on their single moves delivers {mean[_FLAT]:.1f} after {moves:,} moves, and no robot with "
            f"skills touched another."
        ),
        claims=claims_of(score, collisions),
    )


EXPERIMENT = Experiment(
    title="Flat or dispatched",
    question="Should one policy move the robots, or assign tasks to robots that have skills?",
    run=_run,
    source="Sutton, Precup & Singh, 1999",
)
