"""Boxes of shape (), of integers and of 64-bit floats, as observations and as actions, in every family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.environments.world import GymConfig, open_world
from hone.control.logs.parquet import BehaviourLog, read_log, write_log
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.spaces import network_spaces
from hone.recipes.registry import load_recipe
from hone.run.loop import train

FILE = Path(__file__).parents[1] / "support" / "odd_boxes.py"
SMALL = {"network": {"hidden": [8]}}
ROLLOUT = {"rollout_steps": 10, "learner": {"minibatches": 1, "epochs": 1}, **SMALL}
REPLAY = {"replay": {"batch": 8, "warmup": 4, "capacity": 40}, **SMALL}
LOOPED = {"replay": {**REPLAY["replay"], "collect": 7}, **SMALL}
LOGGED = {"batch": 16, **SMALL}
PLANNED = {
    "rollout_steps": 8,
    "learner": {"updates_per_iteration": 2},
    "algorithm": {"warmup": 8, "members": 2, "replay_capacity": 50},
    "planning": {"candidates": 8, "elites": 4, "horizon": 2},
    **SMALL,
}
BOXES = [
    ("ppo", ROLLOUT), ("ppo", {**ROLLOUT, "network": {"hidden": [8], "gaussian": "squashed"}}), ("trpo", ROLLOUT),
    ("ppo_icm", ROLLOUT), ("gail", ROLLOUT), ("sac", REPLAY), ("td3", REPLAY), ("pets", PLANNED), ("bc", LOGGED),
    ("cql", LOGGED), ("iql", LOGGED), ("bear", LOGGED), ("bcq", LOGGED), ("td3_bc", LOGGED),
]  # fmt: skip
NUMBERED = [("ppo", ROLLOUT), ("dqn", LOOPED), ("discrete_sac", LOOPED), ("tile_sarsa", {}), ("option_critic", ROLLOUT)]
KINDS: dict[str, dict[str, Any]] = {
    "scalars": {},
    "integers": {"seen_kind": "uint8", "seen_shape": [3], "action_kind": "int64", "action_shape": [2]},
    "small integers": {"seen_kind": "int64", "action_kind": "uint8"},
    "long floats": {"seen_kind": "float64", "action_kind": "float64", "action_shape": [2, 2]},
}


def config(*, isolation: str = "none", **kwargs: Any) -> dict[str, Any]:
    return {
        "id": f"{FILE}:OddBox", "num_envs": 3, "workers": 2, "isolation": isolation, "clip_actions": True,
        "kwargs": kwargs,
    }  # fmt: skip


class Chance:
    """Any action of a box from 0 to 7."""

    version = 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random((*shape, *self.shape), dtype=np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 7 * noise, np.zeros(len(seen), np.float32)


def written_log(path: Path, **kwargs: Any) -> str:
    world = open_world(GymConfig.model_validate(config(**kwargs)), steps=40, seed=0)
    seen, action = world.envs.single_observation_space, world.envs.single_action_space
    lived = world.rollout(Chance(action.shape or ()))
    write_log(path, BehaviourLog(episodes=lived, observation_space=seen, action_space=action))
    read = read_log(path)
    whole = np.dtype(action.dtype).kind in "iu"
    assert (read.episodes.chosen == (np.rint(lived.chosen) if whole else lived.chosen)).all(), "as taken"
    assert read.episodes.chosen.dtype == action.dtype
    return str(path)


def ignore(step: int, episodes: object, credits: object, metrics: object) -> None:
    """Watch nothing of a training."""


def run(recipe: str, more: dict[str, Any], env: dict[str, Any], folder: Path) -> None:
    entry = load_recipe(recipe)
    given = {"recipe": recipe, "name": "x", "steps": 2, "env": env, "evaluation": {"episodes": 2}, **more}
    job = entry.build(entry.config.model_validate(given))
    try:
        policy = train(job.recipe, steps=2, callback=ignore)
        assert job.evaluate is not None
        assert np.isfinite(job.evaluate().estimate.mean)
        if recipe != "tile_sarsa":
            save_policy(policy, folder)
            assert load_policy(folder).spaces == policy.spaces
    finally:
        job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_acts_in_boxes_of_any_shape_and_type(kind: str, tmp_path: Path) -> None:
    kwargs = KINDS[kind]
    log = {"log": written_log(tmp_path / "log.parquet", **kwargs)}
    for recipe, more in BOXES:
        run(recipe, {**more, **(log if recipe == "gail" or more is LOGGED else {})}, config(**kwargs), tmp_path)
    for recipe, more in NUMBERED:
        run(recipe, more, config(numbered=True, **kwargs), tmp_path)


@pytest.mark.parametrize("kind", ["scalars", "integers"])
def test_processes_take_them_too(kind: str, tmp_path: Path) -> None:
    run("ppo", ROLLOUT, config(isolation="process", **KINDS[kind]), tmp_path)


def test_a_number_is_a_network_of_one_input() -> None:
    world = open_world(GymConfig.model_validate(config()), steps=1, seed=0)
    spaces = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    assert (spaces.inputs.size, spaces.box.size, spaces.box.shape) == (1, 1, ())
