"""Robustness of a control policy: scores under perturbations, compared with the unperturbed score on the same seeds.

Belongs here: from perturbations to a table with paired intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig, GymVectorEnv, evaluation_limit
from hone.control.environments.play import ActionFn, play_episodes
from hone.control.evaluate.perturbations import (
    ObservationSpread,
    PerturbationConfig,
    PerturbedPolicy,
    incompatible_perturbations,
    open_perturbed_envs,
)
from hone.control.evaluate.returns import ignore_warning, load_policy_and_env
from hone.control.networks.numpy_policies import HasNumpyPolicy
from hone.core.clock import counted
from hone.core.errors import ConfigError, ResourceError
from hone.core.random import key
from hone.core.strict_json import Json
from hone.estimators.means import bootstrap_mean, paired_difference
from hone.run.store.records import UNPERTURBED, PerturbedScore

Floats = NDArray[np.float64]


def evaluate_robustness(
    folder: Path,
    changes: Sequence[PerturbationConfig],
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> list[PerturbedScore]:
    """Evaluate a saved policy's mode in the environment of its run: unperturbed, then under each perturbation.

    Raises ConfigError for all perturbations that do not fit the environment, and as `evaluate_control`.
    """
    policy, env = load_policy_and_env(folder, config)
    return compare_with_unperturbed(policy, env, changes, episodes=episodes, seed=seed, warn=warn)


def compare_with_unperturbed(
    policy: HasNumpyPolicy,
    env: GymConfig,
    changes: Sequence[PerturbationConfig],
    *,
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> list[PerturbedScore]:
    """Evaluate unperturbed and under each perturbation. Episode k has the same start and random numbers in all."""
    alone, limit = any(change.physics for change in changes), evaluation_limit(env)
    usual = open_perturbed_envs(env, episodes=episodes, physics={}, single_envs=alone)
    faults = [
        fault
        for change in changes
        for fault in incompatible_perturbations(change, usual.single_observation_space, usual.single_action_space)
    ]
    if faults:
        usual.close()
        raise ConfigError(*faults)
    space = usual.single_action_space
    spread = ObservationSpread(policy.numpy_policy().best)
    before = _returns(usual, spread, UNPERTURBED, episodes=episodes, seed=seed, step_limit=limit, warn=warn)
    rows = [_row(UNPERTURBED, before, before)]
    for change in counted(changes, "perturbations"):
        arena = open_perturbed_envs(env, episodes=episodes, physics=change.physics, single_envs=alone)
        best = PerturbedPolicy(
            greedy_action=policy.numpy_policy().best,
            perturbation=change,
            observation_std=spread.std(),
            action_space=space,
            seed=key(seed, "judge"),
        )
        after = _returns(arena, best, change.label, episodes=episodes, seed=seed, step_limit=limit, warn=warn)
        rows.append(_row(change.label, before, after))
    return rows


def _returns(
    arena: GymVectorEnv,
    best: ActionFn,
    name: str,
    *,
    episodes: int,
    seed: int,
    step_limit: int,
    warn: Callable[[str], None],
) -> Floats:
    try:
        played = play_episodes(arena, best, seed=key(seed, "judge") & 0xFFFFFFFF, step_limit=step_limit)
    finally:
        arena.close()
    if played.lost_episodes:
        raise ResourceError(
            f"{name}: {played.lost_episodes} of {episodes} episodes were lost with their environments, so a "
            "paired comparison is impossible"
        )
    if played.truncated_episodes:
        warn(
            f"{name}: {played.truncated_episodes} of {episodes} episodes did not end within {played.step_limit} "
            f"steps and were cut there"
        )
    return played.returns


def _row(name: str, before: Floats, after: Floats) -> PerturbedScore:
    estimate, difference = bootstrap_mean(after), paired_difference(before, after)
    return PerturbedScore(
        name=name,
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        difference=difference.difference,
        difference_low=difference.low,
        difference_high=difference.high,
        p_value=difference.p_value,
        n=estimate.n,
    )
