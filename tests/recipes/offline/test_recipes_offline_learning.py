"""Offline recipes learn what imitation cannot: the stitching task, and a log of which most was decided by chance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.behaviour_logs import LogShare, record_log
from hone.control.environments.make import GymConfig
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.stitching import stitching_log, stitching_mdp
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.actor_critic import SoftActorCritic
from hone.control.networks.mlp import BoxActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

QUICK: dict[str, dict[str, Any]] = {
    "iql": {"expectile": 0.9, "inverse_temperature": 10.0, "tau": 0.05},
    "bcq": {"tau": 0.05},
    "cql": {"tau": 0.05, "conservatism": 0.5},
    "td3_bc": {"tau": 0.05, "discount": 0.5},
    "bear": {"tau": 0.05, "discount": 0.5, "samples": 20, "threshold": 0.2},
}


def silent(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
    """A report that says nothing."""
    del step, episodes, credits, metrics


def learnt(recipe: str, log: Path, *, steps: int, **more: Any) -> TrainingJob[Any]:
    entry = load_recipe(recipe)
    tables = {
        "recipe": recipe, "name": "x", "steps": steps, "log": str(log), "batch": 64,
        "network": {"hidden": [32], "activation": "relu"},
        "learner": {"lr": 3e-3, "updates_per_iteration": 10, "max_grad_norm": None},
    }  # fmt: skip
    if "algorithm" in entry.config.model_fields:
        tables["algorithm"] = QUICK[recipe]
    job = entry.build(entry.config.model_validate(tables | more))
    train(job.recipe, steps=steps, callback=silent)
    return job


@pytest.fixture(scope="module")
def stitched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stitching") / "log.parquet"
    write_log(path, stitching_log())
    return path


@pytest.mark.parametrize(("recipe", "score"), [("bc", 1.0), ("iql", 2.0), ("bcq", 2.0), ("cql", 2.0)])
def test_stitching(recipe: str, score: float, stitched: Path) -> None:
    """What a policy is worth is looked up in the table, and found again by whoever tries it out."""
    job = learnt(recipe, stitched, steps=60, env={"id": "hone/Stitching-v0"}, evaluation={"episodes": 2})
    mdp = stitching_mdp(discount=1.0)
    best = job.recipe.learner.policy.numpy_policy().best(np.arange(mdp.states))
    assert start_value(mdp, evaluate_policy(mdp, best)) == score
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == score
    assert start_value(mdp, policy_iteration(mdp).value) == 2.0


def wanted(seen: np.ndarray) -> np.ndarray:
    """Of Pendulum's torque: braking."""
    return np.clip(-2.0 * seen[:, 2:3], -2.0, 2.0).astype(np.float32)


@pytest.fixture(scope="module")
def braking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pendulum with uniform torques, paid for how close they come to braking: the best action is known everywhere."""
    spaces = PolicySpaces(inputs=ObservationInputs(size=3), actions=BoxActions(low=(-2.0,), high=(2.0,), shape=(1,)))
    chance = SoftActorCritic(spaces, MlpConfig(hidden=[4]), seed=0)
    log = record_log(
        [LogShare(policy=chance, min_decisions=3000, epsilon=1.0)], GymConfig(id="Pendulum-v1", num_envs=8), seed=1
    )
    episodes = log.episodes
    episodes.reward[:] = -np.abs(episodes.chosen - wanted(episodes.observations))[:, 0]
    path = tmp_path_factory.mktemp("braking") / "log.parquet"
    write_log(
        path, BehaviourLog(episodes=episodes, observation_space=log.observation_space, action_space=log.action_space)
    )
    return path


def distance(job: TrainingJob[Any], episodes: Episodes) -> float:
    seen = episodes.observations[:500]
    return float(np.abs(job.recipe.learner.policy.numpy_policy().best(seen) - wanted(seen)).mean())


@pytest.mark.parametrize("recipe", ["iql", "bcq", "cql", "td3_bc", pytest.param("bear", marks=pytest.mark.slow)])
def test_a_box_is_searched_for_better_actions_than_the_mean_of_the_log(recipe: str, braking: Path) -> None:
    more: dict[str, Any] = {"algorithm": {**QUICK[recipe], "discount": 0.5}}
    if recipe == "iql":
        more["algorithm"]["inverse_temperature"] = 20.0
    if recipe == "cql":
        more["algorithm"] |= {"samples": 4, "conservatism": 0.2}
    if recipe == "bcq":
        more["algorithm"]["samples"] = 50
    job = learnt(recipe, braking, steps=40, **more)
    cloned = learnt("bc", braking, steps=20)
    source: Any = job.recipe.source
    mean = distance(cloned, source.log)
    assert distance(job, source.log) < 0.65 * mean
    assert mean > 0.6
