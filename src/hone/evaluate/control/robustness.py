"""A control policy judged in worlds that were made worse, against itself as it was, on the same seeds.

Belongs here: from perturbations to a table with paired intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError, ResourceError
from hone.core.random import key
from hone.envs.gym.make import GymConfig, Vector
from hone.envs.gym.play import Best, play
from hone.estimators.means import bootstrap_mean, paired
from hone.evaluate.control.perturbations import (
    Disturbed,
    Perturbation,
    Spread,
    disturbed_arena,
    needs_singles,
    refuse_what_cannot_be,
)
from hone.evaluate.control.returns import load_judged, unheard
from hone.models.control.numpy_policies import Decides
from hone.store.durable import Json
from hone.store.robustness import AS_IT_WAS, Perturbed

Floats = NDArray[np.float64]


def robustness(
    folder: Path,
    changes: Sequence[Perturbation],
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    tell: Callable[[str], None] = unheard,
) -> list[Perturbed]:
    """The saved policy's mode in the environment of its run's `config`: as it was, then under each perturbation.

    Raises ConfigError for perturbations that make no sense there, all of them at once, and what `evaluate_control`
    raises.
    """
    policy, env = load_judged(folder, config)
    return against_itself(policy, env, changes, episodes=episodes, seed=seed, tell=tell)


def against_itself(
    policy: Decides,
    env: GymConfig,
    changes: Sequence[Perturbation],
    *,
    episodes: int,
    seed: int,
    tell: Callable[[str], None] = unheard,
) -> list[Perturbed]:
    """As it was, and under each perturbation. Episode k begins in the same state and meets the same luck in all."""
    alone = needs_singles(changes)
    usual = disturbed_arena(env, episodes=episodes, physics={}, alone=alone)
    faults = [
        fault
        for change in changes
        for fault in refuse_what_cannot_be(change, usual.single_observation_space, usual.single_action_space)
    ]
    if faults:
        usual.close()
        raise ConfigError(*faults)
    space = usual.single_action_space
    heard = Spread(policy.acting().best)
    before = _returns(usual, heard, AS_IT_WAS, episodes=episodes, seed=seed, tell=tell)
    rows = [_row(AS_IT_WAS, before, before)]
    for change in changes:
        arena = disturbed_arena(env, episodes=episodes, physics=change.physics, alone=alone)
        best = Disturbed(
            best=policy.acting().best, change=change, deviation=heard.deviation(), space=space, seed=key(seed, "judge")
        )
        after = _returns(arena, best, change.label, episodes=episodes, seed=seed, tell=tell)
        rows.append(_row(change.label, before, after))
    return rows


def _returns(arena: Vector, best: Best, name: str, *, episodes: int, seed: int, tell: Callable[[str], None]) -> Floats:
    try:
        played = play(arena, best, seed=key(seed, "judge") & 0xFFFFFFFF)
    finally:
        arena.close()
    if played.lost:
        raise ResourceError(
            f"{name}: {played.lost} of {episodes} episodes were lost with their environments, so what is left cannot "
            "be held against the others pair by pair"
        )
    if played.cut:
        tell(f"{name}: {played.cut} of {episodes} episodes did not end within {played.limit} steps and were cut there")
    return played.returns


def _row(name: str, before: Floats, after: Floats) -> Perturbed:
    estimate, difference = bootstrap_mean(after), paired(before, after)
    return Perturbed(
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
