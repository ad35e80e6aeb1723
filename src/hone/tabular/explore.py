"""Exploration: from values of actions to the probabilities of choosing them, with a schedule over the turns of a run.

Belongs here: rules on numpy arrays that do not care where the values came from, a table or a network. Equal values
share their probability, so that a table of zeros explores. Optimistic values are no rule of their own: begin with
values above all that can be reached (`table.initial`) and be greedy (Sutton & Barto, 2018, section 2.6).
"""

from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class ConstantSchedule(Config):
    """The same in every turn."""

    kind: Literal["constant"] = "constant"
    """Names this alternative."""
    value: float = Field(default=0.1, ge=0)
    """In every turn."""


class LinearSchedule(Config):
    """A straight line, and its end from then on."""

    kind: Literal["linear"]
    """Names this alternative."""
    begin: float = Field(default=1.0, ge=0)
    """In the first turn."""
    end: float = Field(default=0.05, ge=0)
    """After `turns` turns."""
    turns: int = Field(ge=1)
    """Turns of the loop from `begin` to `end`."""


class ExponentialSchedule(Config):
    """end + (begin - end) * 2^(-turn / half_life)."""

    kind: Literal["exponential"]
    """Names this alternative."""
    begin: float = Field(default=1.0, ge=0)
    """In the first turn."""
    end: float = Field(default=0.01, ge=0)
    """What it comes close to."""
    half_life: float = Field(gt=0)
    """Turns in which the distance to `end` halves."""


Schedule: TypeAlias = Annotated[ConstantSchedule | LinearSchedule | ExponentialSchedule, Field(discriminator="kind")]


class EpsilonGreedy(Config):
    """The best action, or with probability epsilon any."""

    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    """Names this alternative."""
    epsilon: Schedule = ConstantSchedule()
    """Probability of an action drawn from all."""


class SoftmaxActions(Config):
    """Probabilities proportional to exp(value / temperature)."""

    kind: Literal["boltzmann"]
    """Names this alternative."""
    temperature: Schedule = ConstantSchedule(value=1.0)
    """In the units of the values; towards 0 it is greedy."""


class UpperConfidenceBound(Config):
    """UCB1 in every state: value + weight * sqrt(ln N(s) / N(s, a)); what was never tried comes first."""

    kind: Literal["ucb"]
    """Names this alternative."""
    weight: float = Field(default=1.0, ge=0)
    """Of the bonus, in the units of the values."""


class CountBonus(Config):
    """Greedy, while learning is paid weight / sqrt(N(s, a)) besides (MBIE-EB, Strehl & Littman, 2008)."""

    kind: Literal["counts"]
    """Names this alternative."""
    weight: float = Field(default=0.1, ge=0)
    """Of the bonus, in the units of the rewards."""
    epsilon: float = Field(default=0.0, ge=0, le=1)
    """Probability of an action drawn from all."""


Exploration: TypeAlias = Annotated[
    EpsilonGreedy | SoftmaxActions | UpperConfidenceBound | CountBonus, Field(discriminator="kind")
]


def schedule_value(schedule: Schedule, turn: int) -> float:
    """The value in a turn of the loop, counted from 0."""
    match schedule:
        case ConstantSchedule():
            return schedule.value
        case LinearSchedule():
            share = min(1.0, turn / schedule.turns)
            return (1.0 - share) * schedule.begin + share * schedule.end
        case ExponentialSchedule():
            return float(schedule.end + (schedule.begin - schedule.end) * 2.0 ** (-turn / schedule.half_life))


def action_probabilities(explore: Exploration, values: Floats, counts: Ints, turn: int) -> Floats:
    """Of each action `[n, A]`, given values `[n, A]` and how often each was taken `[n, A]`."""
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
    """What learning is paid besides `[N]`, for actions taken `counts` `[N]` times; None where exploration pays none."""
    if not isinstance(explore, CountBonus) or explore.weight == 0.0:
        return None
    return explore.weight / np.sqrt(np.maximum(counts, 1))


def sample_actions(probability: Floats, noise: NDArray[np.floating]) -> tuple[Ints, NDArray[np.float32]]:
    """Actions `[n]` by inverse CDF from one uniform number each, and their log-probabilities `[n]` in nats."""
    running = probability.cumsum(axis=1)
    chosen = (running[:, :-1] <= (noise * running[:, -1])[:, None]).sum(axis=1)
    taken = probability[np.arange(len(chosen)), chosen]
    return chosen.astype(np.int64), np.log(np.maximum(taken, np.finfo(np.float64).tiny)).astype(np.float32)
