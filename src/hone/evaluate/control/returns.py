"""A control policy judged: returns of its mode in environments opened for it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.random import key
from hone.envs.finite.config import FiniteConfig, finite_world
from hone.envs.finite.model import Finite
from hone.envs.gym.make import GymConfig
from hone.envs.gym.play import open_arena, play
from hone.estimators.means import Estimate, bootstrap_mean
from hone.evaluate.control.dynamic_programming import exact_metrics
from hone.models.control.checkpoint import load_policy
from hone.models.control.numpy_policies import Decides
from hone.store.durable import Json
from hone.tabular.tables import KINDS, kind_of, load_table


def is_control(policy: Path) -> bool:
    """Whether a folder holds a control policy (a language model's has a `config.json` instead)."""
    return (policy / "policy.json").is_file()


def unheard(text: str) -> None:
    """Nobody listens."""
    del text


def judged(
    policy: Decides, config: GymConfig, *, episodes: int, seed: int, tell: Callable[[str], None] = unheard
) -> NDArray[np.float64]:
    """Returns `[n]` of the policy's mode in `episodes` environments opened for it, n = episodes but for those whose
    environment was lost. `tell` hears of them, and of episodes that did not end.

    Raises UserCodeError where an environment does, ResourceError when no episode is left.
    """
    arena = open_arena(config, episodes=episodes)
    try:
        played = play(arena, policy.acting().best, seed=key(seed, "judge") & 0xFFFFFFFF)
    finally:
        arena.close()
    if played.lost:
        tell(f"{played.lost} of {episodes} episodes of a judgement were lost with their environments and are not in it")
    if played.cut:
        tell(
            f"{played.cut} of {episodes} episodes of a judgement did not end within {played.limit} steps and were "
            "cut there; set env.max_episode_steps"
        )
    if played.lost == episodes:
        raise ResourceError(f"{config.id}: the environments of all {episodes} episodes of a judgement were lost")
    return played.returns


def score_metrics(scores: NDArray[np.float64]) -> tuple[Estimate, Metrics]:
    """The mean of `scores` `[n]` with its interval, and the same as metrics."""
    estimate = bootstrap_mean(scores)
    return estimate, {
        "eval/score": estimate.mean,
        "eval/low": estimate.low,
        "eval/high": estimate.high,
        "eval/std": float(scores.std()),
        "eval/episodes": float(len(scores)),
    }


def load_decider(folder: Path) -> Decides:
    """The network or the table that a folder holds; raises DataError."""
    return load_table(folder) if kind_of(folder) in KINDS else load_policy(folder)


def evaluate_control(
    folder: Path,
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    tell: Callable[[str], None] = unheard,
) -> Metrics:
    """Judge a saved policy in the environment that its run's `config` names, or exactly in its finite world; `tell` as
    in `judged`.

    Raises ConfigError, DataError.
    """
    if isinstance(config.get("finite"), dict) and kind_of(folder) in KINDS:
        return exact_metrics(load_table(folder), finite_of(folder, config))
    policy, env = load_judged(folder, config)
    return score_metrics(judged(policy, env, episodes=episodes, seed=seed, tell=tell))[1]


def finite_of(folder: Path, config: Mapping[str, Json]) -> Finite:
    """The finite world of a run's `config`, under the discount of its algorithm. Raises DataError."""
    algorithm = config.get("algorithm")
    discount = algorithm.get("discount", 1.0) if isinstance(algorithm, dict) else 1.0
    try:
        world = FiniteConfig.model_validate(config["finite"])
    except ValidationError as error:
        raise DataError(f"{folder}: the world of its run cannot be read: {error}") from None
    return finite_world(world, discount=float(discount) if isinstance(discount, int | float) else 1.0)


def load_judged(folder: Path, config: Mapping[str, Json]) -> tuple[Decides, GymConfig]:
    """A saved policy, and the environment that its run's `config` names. Raises ConfigError, DataError."""
    table = config.get("env")
    if not isinstance(table, dict):
        told = "stands on a table of outcomes (finite), not on an environment" if "finite" in config else "has no [env]"
        raise ConfigError(f"{folder}: its run {told}: there is no environment here to judge it in")
    try:
        env = GymConfig.model_validate(table)
    except ValidationError as error:
        raise DataError(f"{folder}: the environment of its run cannot be read: {error}") from None
    return load_decider(folder), env
