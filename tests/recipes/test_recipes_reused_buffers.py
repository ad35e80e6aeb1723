"""An environment that returns the same arrays at each step trains to the same bits as one that returns fresh arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffer_envs import LENGTH, Walker, WalkerVector
from examples import examples
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.make import sync_vector_env
from hone.control.environments.play import play_episodes
from hone.control.environments.world import GymConfig, open_world, world_from_envs
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.checkpoint import save_policy
from hone.recipes.registry import load_recipe
from hone.run.loop import train

FILE = Path(__file__).parents[1] / "support" / "buffer_envs.py"
SMALL = {"network": {"hidden": [8]}}
ROLLOUT = {"rollout_steps": LENGTH + 2, "learner": {"minibatches": 1, "epochs": 2}, **SMALL}
TRIAL = {"rollout_steps": LENGTH, "learner": {"minibatches": 1}, **SMALL}
REPLAY = {"replay": {"batch": 8, "warmup": 4, "capacity": 40}, **SMALL}
LOOPED = {"replay": {**REPLAY["replay"], "collect": 7}, **SMALL}
BOX, STATES = {"box": True}, {"states": True}
RUNS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ppo", ROLLOUT, {}),
    ("ppo", ROLLOUT, BOX),
    ("ppo", {**ROLLOUT, "algorithm": {"normalise": {"observations": True, "rewards": True}}}, {}),
    ("a2c", ROLLOUT, {}),
    ("trpo", ROLLOUT, BOX),
    ("reinforce_control", ROLLOUT, {}),
    ("ppo_icm", ROLLOUT, {}),
    ("sac", REPLAY, BOX),
    ("td3", REPLAY, BOX),
    ("dqn", LOOPED, {}),
    ("n_step_dqn", LOOPED, {}),
    ("tile_sarsa", {}, {}),
    ("q_learning", {}, STATES),
    ("gail", ROLLOUT, {}),
    ("dagger", {"rollout_steps": 7, **SMALL}, {}),
    ("rl2", TRIAL, {}),
]


class Chance:
    """Any action, drawn from the given noise."""

    version = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (noise < 0.5).astype(np.int64), np.zeros(len(seen), np.float32)


def env(*, reuse: bool, isolation: str = "none", **kwargs: Any) -> dict[str, Any]:
    return {
        "id": f"{FILE}:Walker", "num_envs": 3, "check": False, "clip_actions": True, "isolation": isolation,
        "kwargs": {"reuse": reuse, **kwargs},
    }  # fmt: skip


def flat(values: object, name: str = "") -> dict[str, bytes | str]:
    """Every array of a tree as bytes."""
    if isinstance(values, dict):
        return {k: v for key, value in values.items() for k, v in flat(value, f"{name}.{key}").items()}
    if isinstance(values, torch.Tensor | np.ndarray):
        return {name: np.asarray(values).tobytes()}
    return {name: str(values)}


def outcome(recipe: str, more: dict[str, Any], world: dict[str, Any]) -> dict[str, object]:
    """Rewards of the steps, the learner's state and the evaluation of a short run."""
    entry = load_recipe(recipe)
    config = entry.config.model_validate(
        {"recipe": recipe, "name": "x", "steps": 4, "seed": 3, "env": world, "evaluation": {"episodes": 3}, **more}
    )
    job, lines = entry.build(config), {}

    def callback(step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        lines[step] = [episodes.columns(), credits.advantage, {k: v for k, v in metrics.items() if "time" not in k}]

    try:
        train(job.recipe, steps=4, callback=callback)
        assert job.evaluate is not None
        result = job.evaluate().metrics
        return {**flat(job.recipe.learner.state(), "learner"), **flat(result, "evaluation"), "lines": str(lines)}
    finally:
        job.close()


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A log and an expert, for the recipes that imitate."""
    folder = tmp_path_factory.mktemp("reused")
    world = open_world(GymConfig.model_validate(env(reuse=False)), steps=40, seed=1)
    space = world.envs.single_observation_space, world.envs.single_action_space
    write_log(
        folder / "log.parquet",
        BehaviourLog(episodes=world.rollout(Chance()), observation_space=space[0], action_space=space[1]),
    )
    entry = load_recipe("ppo")
    config = entry.config.model_validate({"recipe": "ppo", "name": "x", "steps": 1, "env": env(reuse=False), **ROLLOUT})
    job = entry.build(config)
    save_policy(job.recipe.learner.policy, folder / "expert")
    job.close()
    expert = {"kind": "policy", "policy": str(folder / "expert")}
    return {"gail": {"log": str(folder / "log.parquet")}, "dagger": {"expert": expert}}


@pytest.mark.parametrize(
    ("recipe", "more", "kwargs"), RUNS, ids=[f"{run[0]}{number}" for number, run in enumerate(RUNS)]
)
def test_reused_buffers_change_no_bit(
    recipe: str, more: dict[str, Any], kwargs: dict[str, Any], extras: dict[str, dict[str, Any]]
) -> None:
    given = {**more, **extras.get(recipe, {})}
    fresh, reused = (outcome(recipe, given, env(reuse=reuse, **kwargs)) for reuse in (False, True))
    assert fresh == reused


def test_reused_buffers_change_no_bit_in_processes() -> None:
    fresh, reused = (outcome("ppo", ROLLOUT, env(reuse=reuse, isolation="process")) for reuse in (False, True))
    assert fresh == reused
    assert fresh == outcome("ppo", ROLLOUT, env(reuse=False)), "processes change no bit either"


@given(seed=st.integers(0, 99), count=st.integers(1, 3), steps=st.integers(1, 9), mode=st.sampled_from(AutoresetMode))
@examples(25)
def test_no_mode_of_resetting_keeps_a_buffer(seed: int, count: int, steps: int, mode: AutoresetMode) -> None:
    """Rollouts of single environments, and of a vector environment that hands out its own arrays."""
    found = []
    for reuse in (False, True):
        worlds = [
            world_from_envs(sync_vector_env([lambda r=reuse: Walker(reuse=r)] * count, mode), steps=steps, seed=seed)
        ]
        if mode is not AutoresetMode.SAME_STEP:
            worlds.append(world_from_envs(WalkerVector(count, mode=mode, reuse=reuse), steps=steps, seed=seed))
        found.append([flat(world.rollout(Chance()).columns()) for world in worlds for _ in range(3)])
    assert found[0] == found[1]


def right_of_zero(seen: np.ndarray) -> np.ndarray:
    """Action 1 on the right of 0, else 0."""
    return (seen[:, 1] > 0).astype(np.int64)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_an_evaluation_keeps_no_buffer(isolation: str) -> None:
    returns = []
    for reuse in (False, True):
        config = GymConfig.model_validate(env(reuse=reuse, isolation=isolation))
        arena = sync_vector_env([lambda r=reuse: Walker(reuse=r)] * 4) if isolation == "none" else None
        if arena is None:
            world = open_world(config, steps=1, seed=0)
            arena = world.envs
        returns.append(
            play_episodes(arena, lambda seen: np.array(seen[:, 1] > np.float32(0), np.int64), seed=4).returns.tolist()
        )
        arena.close()
    assert returns[0] == returns[1]
