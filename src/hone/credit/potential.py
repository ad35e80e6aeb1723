"""Reward shaping by a potential, which keeps the optimal policies, and by a state bonus, which may not.

Functions `Episodes -> Episodes` that change rewards and not scores, so that metrics and evaluation show the
environment's own return. Potentials are functions of the observation.
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
from hone.credit.grouping import CreditFunction, Floats

Potential: TypeAlias = Callable[[NDArray[np.generic]], Floats]
"""Observations `[n, *observation]` -> potentials `[n]`."""


class TablePotential(Config):
    """A number for every state of a finite observation space."""

    kind: Literal["table"]
    """Selects this alternative."""
    values: list[float] = Field(min_length=1)
    """Potentials by the number of the state, from 0."""


class LinearPotential(Config):
    """A weighted sum of the observation."""

    kind: Literal["linear"]
    """Selects this alternative."""
    weights: list[float] = Field(min_length=1)
    """One weight for each number of the flattened observation."""


class DistancePotential(Config):
    """Minus the distance between some columns of the observation and a target."""

    kind: Literal["distance"]
    """Selects this alternative."""
    columns: list[int] = Field(min_length=1)
    """Columns of the flattened observation."""
    target: list[float]
    """Target, one number per column."""
    weight: float = 1.0
    """Factor of the distance."""


PotentialConfig: TypeAlias = Annotated[
    TablePotential | LinearPotential | DistancePotential, Field(discriminator="kind")
]


def build_potential(config: PotentialConfig) -> Potential:
    """Potential function of a config; it raises DataError for observations that it does not fit."""

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
    """r + discount * Phi(s') - Phi(s), with Phi = 0 at terminal states (Ng, Harada & Russell, 1999).

    Along an episode the terms telescope, so every return from s changes by -Phi(s) for every policy, and the order of
    policies stays. That holds for this discount only: take the credit's discount. A truncated episode keeps the
    potential of its final observation.
    """
    worth, after = _around(episodes, potential)
    return replace(episodes, reward=(episodes.reward + discount * after - worth).astype(np.float32))


def state_bonus_shaped(episodes: Episodes, *, potential: Potential) -> Episodes:
    """r + Phi(s'): a bonus per state. It can make circling optimal (Randloev & Alstroem, 1998), and is here to show
    that.
    """
    _, after = _around(episodes, potential)
    return replace(episodes, reward=(episodes.reward + after).astype(np.float32))


def with_shaped_rewards(
    episodes: Episodes, values: Values, *, credit: CreditFunction, shaping: Callable[[Episodes], Episodes]
) -> Credits:
    """A = `credit` of the rewards after `shaping`; the mean change of a reward is `reward/shaping_mean`."""
    changed = shaping(episodes)
    credits = credit(changed, values)
    moved = float((changed.reward - episodes.reward).mean()) if episodes.decisions else 0.0
    return replace(credits, metrics={**credits.metrics, "reward/shaping_mean": moved})


def _around(episodes: Episodes, potential: Potential) -> tuple[Floats, Floats]:
    """Phi of the observation before `[N]` and after `[N]` each decision; 0 after a termination."""
    steps = episodes.transitions()
    assert steps.final is not None
    worth, after = (np.asarray(potential(seen), np.float64) for seen in (steps.observations, steps.final))
    return worth, np.where(steps.terminated, 0.0, after)
