"""Evaluation of a control policy: returns of its mode in newly opened environments, in one task or in several, and
exact values of tables in a finite MDP."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.control.environments.make import GymConfig, evaluation_limit
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.finite.config import FiniteConfig, build_finite_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import backward_induction, evaluate_policy, finite_horizon_value, start_value
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.decision_tree import KIND as TREE
from hone.control.networks.decision_tree import load_tree
from hone.control.networks.multitask import MultitaskActorCritic
from hone.control.networks.numpy_policies import HasNumpyPolicy
from hone.control.tables.tables import KINDS, StateFeatures, StateValues, Table, load_table, policy_kind
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.random import key
from hone.core.strict_json import Json
from hone.estimators.means import Estimate, bootstrap_mean

# -------------------------------------------------------------------------------------------------- dynamic programming


HORIZON = 500
"""Number of steps evaluated without a time limit."""


def exact_metrics(table: Table, mdp: FiniteMdp) -> Metrics:
    """Exact metrics of a table in the MDP that it was learned in. Raises ConfigError for a table of another MDP.

    Of action values: the expected undiscounted return of the greedy policy within the time limit (`HORIZON` without
    one), the optimum of time-dependent policies `eval/best`, and `eval/of_best`, 1 - (best - score) / |best|. Of state
    values: errors against the values from a linear solve.
    """
    if isinstance(table, StateValues):
        return _value_metrics(table, mdp)
    features = table.features
    if not isinstance(features, StateFeatures) or (features.count, features.actions) != (mdp.states, mdp.actions):
        raise ConfigError(f"the table has {features}, the environment {mdp.states} states x {mdp.actions} actions")
    horizon, total = mdp.step_limit or HORIZON, mdp.with_discount(1.0)
    score = start_value(mdp, finite_horizon_value(total, table.q.argmax(axis=1), horizon))
    best = start_value(mdp, backward_induction(total, horizon).value)
    share = 1.0 - (best - score) / abs(best) if best else float(score == best)
    return {"eval/score": score, "eval/best": best, "eval/of_best": share}


def _value_metrics(table: StateValues, mdp: FiniteMdp) -> Metrics:
    """Root mean squared error over non-terminal states against the values from a linear solve; `eval/score` is its
    negative."""
    if table.target_policy.shape != (mdp.states, mdp.actions):
        raise ConfigError(
            f"the values have the shape {table.target_policy.shape}, the environment {(mdp.states, mdp.actions)}"
        )
    off = (table.v - evaluate_policy(mdp, table.target_policy))[~mdp.terminal]
    error = float(np.sqrt(np.mean(off**2)))
    return {"eval/score": -error, "eval/error": error, "eval/error_max": float(np.abs(off).max())}


# ------------------------------------------------------------------------------------------ episodes


def ignore_warning(text: str) -> None:
    """Ignores a warning."""
    del text


def evaluate_returns(
    policy: HasNumpyPolicy, config: GymConfig, *, episodes: int, seed: int, warn: Callable[[str], None] = ignore_warning
) -> NDArray[np.float64]:
    """Returns `[n]` of the policy's mode in `episodes` new environments; n excludes episodes with a lost environment.
    `warn` receives warnings about them, and about episodes that did not end.

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
    """Load the network, the table or the tree of a folder. Raises DataError."""
    kind = policy_kind(folder)
    if kind == TREE:
        return load_tree(folder)
    return load_table(folder) if kind in KINDS else load_policy(folder)


def evaluate_control(
    folder: Path,
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> Metrics:
    """Evaluate a saved policy in the environment of its run's `config`, or exactly in its finite MDP; `warn` as in
    `evaluate_returns`. Raises ConfigError, DataError.
    """
    if isinstance(config.get("finite"), dict) and policy_kind(folder) in KINDS:
        return exact_metrics(load_table(folder), _finite_mdp(folder, config))
    policy, env = load_policy_and_env(folder, config)
    encoder = policy.spaces.inputs.encoder if isinstance(policy, ControlPolicy) else None
    if encoder is not None and encoder.module:
        warn(f"the policy's network is code of its folder, which was run: {encoder.module.rpartition(':')[0]}")
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
    env = run_environment(folder, config)
    return load_control_policy(folder), env


def run_environment(folder: Path, config: Mapping[str, Json]) -> GymConfig:
    """The environment of a run's `config`; messages name the policy's `folder`. Raises ConfigError, DataError."""
    table = config.get("env")
    if not isinstance(table, dict):
        problem = "uses a table of outcomes (finite), not an environment" if "finite" in config else "has no [env]"
        raise ConfigError(f"{folder}: its run {problem}: there is no environment to evaluate it in")
    try:
        return GymConfig.model_validate(table)
    except ValidationError as error:
        raise DataError(f"{folder}: the environment of its run cannot be read: {error}") from None


# ------------------------------------------------------------------------------------------------------------ multitask


def task_scores(
    policy: MultitaskActorCritic,
    tasks: Sequence[GymConfig],
    *,
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> tuple[NDArray[np.float64], Metrics]:
    """Returns `[tasks * episodes]` of the policy's mode, ordered by task (fewer if environments were lost), and the
    means as `eval/task0` .. in the order of `tasks`."""
    scores = [
        evaluate_returns(policy.for_task(number), task, episodes=episodes, seed=seed, warn=warn)
        for number, task in enumerate(tasks)
    ]
    return np.concatenate(scores), {f"eval/task{number}": float(own.mean()) for number, own in enumerate(scores)}


def evaluate_tasks(
    folder: Path,
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> Metrics:
    """Evaluate a saved policy in the tasks of its run's `config`. Raises DataError."""
    policy, tables = load_policy(folder), config.get("tasks")
    if not isinstance(policy, MultitaskActorCritic) or not isinstance(tables, list):
        raise DataError(f"{folder}: not a policy for several tasks")
    try:
        tasks = [GymConfig.model_validate(table) for table in tables]
    except ValidationError as error:
        raise DataError(f"{folder}: the tasks of its run cannot be read: {error}") from None
    scores, each = task_scores(policy, tasks, episodes=episodes, seed=seed, warn=warn)
    return {**score_metrics(scores)[1], **each}
