"""Evaluation of a control policy: returns of its mode in newly opened environments."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.control.environments.make import GymConfig, evaluation_limit
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.evaluate.dynamic_programming import exact_metrics
from hone.control.finite.config import FiniteConfig, build_finite_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.numpy_policies import HasNumpyPolicy
from hone.control.tables.tables import KINDS, load_table, policy_kind
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.random import key
from hone.core.strict_json import Json
from hone.estimators.means import Estimate, bootstrap_mean


def ignore_warning(text: str) -> None:
    """Nobody listens."""
    del text


def evaluate_returns(
    policy: HasNumpyPolicy, config: GymConfig, *, episodes: int, seed: int, warn: Callable[[str], None] = ignore_warning
) -> NDArray[np.float64]:
    """Returns `[n]` of the policy's mode in `episodes` new environments; n excludes episodes with a lost environment.
    `tell` receives warnings about them, and about episodes that did not end.

    Raises UserCodeError for an error of an environment, ResourceError if no episode is left.
    """
    arena = open_evaluation_envs(config, episodes=episodes)
    try:
        played = play_episodes(
            arena,
            policy.numpy_policy().best,
            seed=key(seed, "judge") & 0xFFFFFFFF,
            step_limit=evaluation_limit(config),
        )
    finally:
        arena.close()
    if played.lost_episodes:
        warn(
            f"{played.lost_episodes} of {episodes} episodes of an evaluation were lost with their environments and "
            f"are left out"
        )
    if played.truncated_episodes:
        warn(
            f"{played.truncated_episodes} of {episodes} episodes of an evaluation did not end within "
            f"{played.step_limit} steps and were "
            "cut there; set env.max_episode_steps"
        )
    if played.lost_episodes == episodes:
        raise ResourceError(f"{config.id}: the environments of all {episodes} episodes of an evaluation were lost")
    return played.returns


def score_metrics(scores: NDArray[np.float64]) -> tuple[Estimate, Metrics]:
    """Mean of `scores` `[n]` with its interval, and both as metrics."""
    estimate = bootstrap_mean(scores)
    return estimate, {
        "eval/score": estimate.mean,
        "eval/low": estimate.low,
        "eval/high": estimate.high,
        "eval/std": float(scores.std()),
        "eval/episodes": float(len(scores)),
    }


def load_control_policy(folder: Path) -> HasNumpyPolicy:
    """Load the network or the table of a folder. Raises DataError."""
    return load_table(folder) if policy_kind(folder) in KINDS else load_policy(folder)


def evaluate_control(
    folder: Path,
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> Metrics:
    """Evaluate a saved policy in the environment of its run's `config`, or exactly in its finite MDP; `tell` as in
    `evaluate_returns`.

    Raises ConfigError, DataError.
    """
    if isinstance(config.get("finite"), dict) and policy_kind(folder) in KINDS:
        return exact_metrics(load_table(folder), _finite_mdp(folder, config))
    policy, env = load_policy_and_env(folder, config)
    return score_metrics(evaluate_returns(policy, env, episodes=episodes, seed=seed, warn=warn))[1]


def _finite_mdp(folder: Path, config: Mapping[str, Json]) -> FiniteMdp:
    """Finite MDP of a run's `config`, with the discount of its algorithm. Raises DataError."""
    algorithm = config.get("algorithm")
    discount = algorithm.get("discount", 1.0) if isinstance(algorithm, dict) else 1.0
    try:
        world = FiniteConfig.model_validate(config["finite"])
    except ValidationError as error:
        raise DataError(f"{folder}: the environment of its run cannot be read: {error}") from None
    return build_finite_mdp(world, discount=float(discount) if isinstance(discount, int | float) else 1.0)


def load_policy_and_env(folder: Path, config: Mapping[str, Json]) -> tuple[HasNumpyPolicy, GymConfig]:
    """Load a saved policy and the environment of its run's `config`. Raises ConfigError, DataError."""
    table = config.get("env")
    if not isinstance(table, dict):
        problem = "uses a table of outcomes (finite), not an environment" if "finite" in config else "has no [env]"
        raise ConfigError(f"{folder}: its run {problem}: there is no environment to evaluate it in")
    try:
        env = GymConfig.model_validate(table)
    except ValidationError as error:
        raise DataError(f"{folder}: the environment of its run cannot be read: {error}") from None
    return load_control_policy(folder), env
