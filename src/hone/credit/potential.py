"""Rewards shaped by a potential, which changes no best policy, and by a bonus for being somewhere, which can.

Belongs here: functions `Episodes -> Episodes` that change what was paid and leave the score alone, so that what is
judged and reported is the world's own return. Potentials are functions of what is seen.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.columns import CreditFunction, Floats

Potential: TypeAlias = Callable[[NDArray[np.generic]], Floats]
"""What is seen `[n, *observation]` -> its potential `[n]`."""


class TablePotential(Config):
    """A number for every state of a finite observation space."""

    kind: Literal["table"]
    """Which one."""
    values: list[float] = Field(min_length=1)
    """By the number of the state, from 0."""


class LinearPotential(Config):
    """A weighted sum of what is seen."""

    kind: Literal["linear"]
    """Which one."""
    weights: list[float] = Field(min_length=1)
    """One for each number of a flattened observation."""


class DistancePotential(Config):
    """Minus the distance between some columns of what is seen and a place."""

    kind: Literal["distance"]
    """Which one."""
    columns: list[int] = Field(min_length=1)
    """Of a flattened observation."""
    target: list[float]
    """The place, one number a column."""
    weight: float = 1.0
    """What the distance is multiplied by."""


PotentialConfig: TypeAlias = Annotated[
    TablePotential | LinearPotential | DistancePotential, Field(discriminator="kind")
]


def build_potential(config: PotentialConfig) -> Potential:
    """The function that a config describes; it raises DataError for observations that it does not fit."""

    def table(seen: NDArray[np.generic]) -> Floats:
        assert isinstance(config, TablePotential)
        values = np.array(config.values)
        if seen.ndim != 1 or seen.dtype.kind not in "iu" or not (seen.min() >= 0 and seen.max() < len(values)):
            raise DataError(
                f"a potential of {len(values)} states, and what is seen is {seen.dtype}{list(seen.shape)} from "
                f"{seen.min()} to {seen.max()}"
            )
        return values[seen.astype(np.int64)]

    def linear(seen: NDArray[np.generic]) -> Floats:
        assert isinstance(config, LinearPotential)
        flat = seen.reshape(len(seen), -1).astype(np.float64)
        if flat.shape[1] != len(config.weights):
            raise DataError(f"a potential of {len(config.weights)} weights, and {flat.shape[1]} numbers are seen")
        return flat @ np.array(config.weights)

    def distance(seen: NDArray[np.generic]) -> Floats:
        assert isinstance(config, DistancePotential)
        flat = seen.reshape(len(seen), -1).astype(np.float64)
        if len(config.columns) != len(config.target) or max(config.columns) >= flat.shape[1]:
            raise DataError(
                f"a potential of columns {config.columns} and target {config.target}, and {flat.shape[1]} numbers are "
                "seen: one number of the target for each column"
            )
        away = flat[:, config.columns] - np.array(config.target)
        return -config.weight * np.sqrt((away**2).sum(axis=1))

    kinds: dict[str, Potential] = {"table": table, "linear": linear, "distance": distance}
    return kinds[config.kind]


def potential_shaped(episodes: Episodes, *, potential: Potential, discount: float) -> Episodes:
    """r + discount * Phi(s') - Phi(s), with Phi = 0 where the world ended (Ng, Harada & Russell, 1999).

    Along an episode the terms telescope, so every return from s changes by -Phi(s) whatever is done, and with it no
    preference. That holds for this discount only: take the one that the credit uses. A truncated episode is not ended,
    and keeps the potential of what was seen last.
    """
    worth, after = _around(episodes, potential)
    return replace(episodes, reward=(episodes.reward + discount * after - worth).astype(np.float32))


def state_bonus_shaped(episodes: Episodes, *, potential: Potential) -> Episodes:
    """r + Phi(s'): a bonus for being somewhere. It can make it best to go in circles there (Randloev & Alstroem, 1998),
    and is here to show that."""
    _, after = _around(episodes, potential)
    return replace(episodes, reward=(episodes.reward + after).astype(np.float32))


def with_shaped_rewards(
    episodes: Episodes, values: Values, *, credit: CreditFunction, shaping: Callable[[Episodes], Episodes]
) -> Credits:
    """`credit` of r + F, the rewards after `shape`; the mean change of a reward is `reward/shaping_mean`."""
    changed = shaping(episodes)
    credits = credit(changed, values)
    moved = float((changed.reward - episodes.reward).mean()) if episodes.decisions else 0.0
    return replace(credits, metrics={**credits.metrics, "reward/shaping_mean": moved})


def _around(episodes: Episodes, potential: Potential) -> tuple[Floats, Floats]:
    """Phi of what was seen before `[N]` and after `[N]` each decision; 0 after an end of the world."""
    steps = episodes.transitions()
    assert steps.final is not None
    worth, after = (np.asarray(potential(seen), np.float64) for seen in (steps.observations, steps.final))
    return worth, np.where(steps.terminated, 0.0, after)
