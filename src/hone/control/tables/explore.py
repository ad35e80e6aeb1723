"""Exploration: from action values to action probabilities, with a schedule over the iterations of a run.

Rules on numpy arrays, for tables and networks alike. Equal values share their probability, so that a table of zeros
explores. Optimistic initial values need no rule of their own: set the initial value above every reachable return and be
greedy (Sutton & Barto, 2018, section 2.6).
"""

from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class ConstantSchedule(Config):
    """A constant."""

    kind: Literal["constant"] = "constant"
    """Selects this alternative."""
    value: float = Field(default=0.1, ge=0)
    """Value in every iteration."""


class LinearSchedule(Config):
    """Linear interpolation, constant after the last iteration."""

    kind: Literal["linear"]
    """Selects this alternative."""
    start: float = Field(default=1.0, ge=0)
    """Value in the first iteration."""
    end: float = Field(default=0.05, ge=0)
    """Value after `decay_iterations` iterations."""
    decay_iterations: int = Field(ge=1)
    """Iterations from `start` to `end`."""


class ExponentialSchedule(Config):
    """end + (start - end) * 2^(-iteration / half_life)."""

    kind: Literal["exponential"]
    """Selects this alternative."""
    start: float = Field(default=1.0, ge=0)
    """Value in the first iteration."""
    end: float = Field(default=0.01, ge=0)
    """Value in the limit."""
    half_life: float = Field(gt=0)
    """Iterations in which the distance to `end` halves."""


Schedule: TypeAlias = Annotated[ConstantSchedule | LinearSchedule | ExponentialSchedule, Field(discriminator="kind")]


class EpsilonGreedy(Config):
    """The best action, or with probability epsilon a uniformly random one."""

    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    """Selects this alternative."""
    epsilon: Schedule = ConstantSchedule()
    """Probability of a uniformly random action."""


class SoftmaxActions(Config):
    """Probabilities proportional to exp(value / temperature)."""

    kind: Literal["boltzmann"]
    """Selects this alternative."""
    temperature: Schedule = ConstantSchedule(value=1.0)
    """Temperature in the units of the values; towards 0 it is greedy."""


class UpperConfidenceBound(Config):
    """UCB1 in every state: value + weight * sqrt(ln N(s) / N(s, a)); untried actions come first."""

    kind: Literal["ucb"]
    """Selects this alternative."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of the bonus, in the units of the values."""


class CountBonus(Config):
    """Greedy, with weight / sqrt(N(s, a)) added to the reward (MBIE-EB, Strehl & Littman, 2008)."""

    kind: Literal["counts"]
    """Selects this alternative."""
    weight: float = Field(default=0.1, ge=0)
    """Weight of the bonus, in the units of the rewards."""
    epsilon: float = Field(default=0.0, ge=0, le=1)
    """Probability of a uniformly random action."""


Exploration: TypeAlias = Annotated[
    EpsilonGreedy | SoftmaxActions | UpperConfidenceBound | CountBonus, Field(discriminator="kind")
]


def schedule_value(schedule: Schedule, turn: int) -> float:
    """Value of a schedule in an iteration, counted from 0."""
    match schedule:
        case ConstantSchedule():
            return schedule.value
        case LinearSchedule():
            share = min(1.0, turn / schedule.decay_iterations)
            return (1.0 - share) * schedule.start + share * schedule.end
        case ExponentialSchedule():
            return float(schedule.end + (schedule.start - schedule.end) * 2.0 ** (-turn / schedule.half_life))


def action_probabilities(explore: Exploration, values: Floats, counts: Ints, turn: int) -> Floats:
    """Action probabilities `[n, A]`, given values `[n, A]` and how often each was taken `[n, A]`."""
    match explore:
        case EpsilonGreedy():
            return epsilon_greedy(values, min(1.0, schedule_value(explore.epsilon, turn)))
        case SoftmaxActions():
            return boltzmann(values, schedule_value(explore.temperature, turn))
        case UpperConfidenceBound():
            return epsilon_greedy(upper_confidence(values, counts, explore.weight), 0.0)
        case CountBonus():
            return epsilon_greedy(values, explore.epsilon)


def epsilon_greedy(values: Floats, epsilon: float) -> Floats:
    """`[n, A]`: (1 - epsilon) shared by the best actions, epsilon by all."""
    best = values == values.max(axis=1, keepdims=True)
    return best * ((1.0 - epsilon) / best.sum(axis=1, keepdims=True)) + epsilon / values.shape[1]


def boltzmann(values: Floats, temperature: float) -> Floats:
    """softmax(values / temperature) -> `[n, A]`; at temperature 0 the best share it."""
    if temperature <= 0.0:
        return epsilon_greedy(values, 0.0)
    # Differences first: values far from 0 must not lose them to rounding, nor overflow.
    weight = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
    return weight / weight.sum(axis=1, keepdims=True)


def upper_confidence(values: Floats, counts: Ints, weight: float) -> Floats:
    """UCB1's index `[n, A]` (Auer, Cesa-Bianchi & Fischer, 2002); infinite where an action was never tried."""
    tried = np.maximum(counts, 1)
    bonus = weight * np.sqrt(np.log(np.maximum(counts.sum(axis=1, keepdims=True), 1)) / tried)
    return np.where(counts > 0, values + bonus, np.inf)


def count_bonus(explore: Exploration, counts: Ints) -> Floats | None:
    """Reward bonus `[N]` for actions taken `counts` `[N]` times; None where the exploration has none."""
    if not isinstance(explore, CountBonus) or explore.weight == 0.0:
        return None
    return explore.weight / np.sqrt(np.maximum(counts, 1))


def sample_actions(probability: Floats, noise: NDArray[np.floating]) -> tuple[Ints, NDArray[np.float32]]:
    """Actions `[n]` by inverse CDF from one uniform number each, and their log-probabilities `[n]` in nats."""
    running = probability.cumsum(axis=1)
    chosen = (running[:, :-1] <= (noise * running[:, -1])[:, None]).sum(axis=1)
    taken = probability[np.arange(len(chosen)), chosen]
    return chosen.astype(np.int64), np.log(np.maximum(taken, np.finfo(np.float64).tiny)).astype(np.float32)
