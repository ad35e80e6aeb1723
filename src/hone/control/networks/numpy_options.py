"""Acting in numpy with options: an option is chosen and acts until it stops.

Encodes and decodes the observations and actions of `control.environments.option_wrapper`, for given options in a table
and learned ones in networks. An evaluation uses the environment without the wrapper, so `best` keeps its option.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.networks.mlp import DiscreteActions, Floats, ObservationInputs

Array: TypeAlias = NDArray[np.generic]
Ints: TypeAlias = NDArray[np.int64]


def _state_indices(state: Array, inputs: ObservationInputs) -> Ints:
    """`[n]` numbers of the states, from 0."""
    return state.astype(np.int64) - inputs.start


def split_option_memory(seen: Array, inputs: ObservationInputs, options: int) -> tuple[Array, Ints]:
    """Observations `[n, ...]` with option memory -> observations `[n, ...]`, current option `[n]`, or -1."""
    if inputs.one_hot:
        state, memory = np.divmod(seen.astype(np.int64), options + 1)
        return state + inputs.start, memory - 1
    columns = seen[:, inputs.size :].astype(np.float32)
    if columns.shape[1] == 0:  # an environment without option memory
        return seen, np.full(len(seen), -1, dtype=np.int64)
    return seen[:, : inputs.size], np.where(columns.any(axis=1), columns.argmax(axis=1), -1)


def encode_option_action(began: NDArray[np.bool_], option: Ints, action: Ints, *, options: int, actions: int) -> Ints:
    """`[n]` actions of the environment with option memory."""
    return (began * options + option) * actions + action


def decode_option_action(chosen: Array, *, options: int, actions: int) -> tuple[NDArray[np.bool_], Ints, Ints]:
    """Flag that the option began, the option, the action, `[n]` each."""
    message, action = np.divmod(chosen.astype(np.int64), actions)
    began, option = np.divmod(message, options)
    return began.astype(np.bool_), option, action


def epsilon_greedy(values: NDArray[np.floating], allowed: NDArray[np.bool_], noise: Floats, epsilon: float) -> Ints:
    """`[n]` an allowed column of `values` `[n, k]`: a best one, ties at random, or with probability `epsilon` any.

    `noise` `[n, 2]` in [0, 1): whether to explore, and which. Random ties matter: a table of zeros would otherwise
    always choose its first option.
    """
    within = np.where(allowed, values, -np.inf)
    best = within == within.max(axis=1, keepdims=True)
    among = np.where(noise[:, :1] < epsilon, allowed, best)
    count = among.sum(axis=1)
    rank = np.minimum((noise[:, 1] * count).astype(np.int64), count - 1)
    return (among.cumsum(axis=1) > rank[:, None]).argmax(axis=1)


@dataclass(slots=True, kw_only=True)
class NumpyCallAndReturnPolicy:
    """Call and return: a chosen option acts until it stops."""

    values: NDArray[np.float64]
    """`[S, options]`."""
    policies: Ints
    """`[options, S]`."""
    termination: NDArray[np.float64]
    """`[options, S]`."""
    initiation_set: NDArray[np.bool_]
    """`[options, S]`."""
    inputs: ObservationInputs
    actions: DiscreteActions
    epsilon: float = 0.0
    active_options: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """`[n]` current options in an evaluation."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 3), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        options = len(self.policies)
        state, memory = split_option_memory(seen, self.inputs, options)
        place = _state_indices(state, self.inputs)
        option, began = self._options(place, memory, noise, self.epsilon)
        action = self.policies[option, place]
        chosen = encode_option_action(began, option, action, options=options, actions=self.actions.count)
        return chosen, np.full(len(chosen), np.nan, dtype=np.float32)

    def best(self, seen: Array) -> Array:
        if len(self.active_options) != len(seen):
            self.active_options = np.full(len(seen), -1, dtype=np.int64)
        state = _state_indices(seen, self.inputs)
        self.active_options, _ = self._options(
            state, self.active_options, np.full((len(seen), 3), 0.5, np.float32), 0.0
        )
        return self.policies[self.active_options, state] + self.actions.start

    def _options(self, state: Ints, memory: Ints, noise: Floats, epsilon: float) -> tuple[Ints, NDArray[np.bool_]]:
        began = (memory < 0) | (noise[:, 0] < self.termination[memory, state])
        fresh = epsilon_greedy(self.values[state], self.initiation_set[:, state].T, noise[:, 1:], epsilon)
        return np.where(began, fresh, memory), began


@dataclass(slots=True, kw_only=True)
class NumpyOptionCriticPolicy:
    """Learned options: epsilon-greedy over options, a softmax within, and a termination probability at each step."""

    values: Callable[[Floats], Floats]
    action_logits: Callable[[Floats], Floats]
    termination_logits: Callable[[Floats], Floats]
    inputs: ObservationInputs
    actions: DiscreteActions
    options: int
    epsilon: float
    active_options: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """`[n]` current options in an evaluation."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 4), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        raw, memory = split_option_memory(seen, self.inputs, self.options)
        x = self.inputs.array(raw)
        option, began = self._options(x, memory, noise[:, :3], self.epsilon)
        logits = self._logits(x, option)
        cumulated = np.exp(logits).cumsum(axis=1)
        action = (cumulated[:, :-1] <= (noise[:, 3] * cumulated[:, -1])[:, None]).sum(axis=1)
        chosen = encode_option_action(began, option, action, options=self.options, actions=self.actions.count)
        return chosen, logits[np.arange(len(action)), action] - np.log(cumulated[:, -1])

    def best(self, seen: Array) -> Array:
        if len(self.active_options) != len(seen):
            self.active_options = np.full(len(seen), -1, dtype=np.int64)
        x = self.inputs.array(seen)
        self.active_options, _ = self._options(x, self.active_options, np.full((len(seen), 3), 0.5, np.float32), 0.0)
        return self._logits(x, self.active_options).argmax(axis=1) + self.actions.start

    def _options(self, x: Floats, memory: Ints, noise: Floats, epsilon: float) -> tuple[Ints, NDArray[np.bool_]]:
        chance = 1.0 / (1.0 + np.exp(-self.termination_logits(x)[np.arange(len(x)), memory]))
        began = (memory < 0) | (noise[:, 0] < chance)
        values = self.values(x)
        fresh = epsilon_greedy(values, np.ones(values.shape, np.bool_), noise[:, 1:], epsilon)
        return np.where(began, fresh, memory), began

    def _logits(self, x: Floats, option: Ints) -> Floats:
        table = self.action_logits(x).reshape(len(x), self.options, self.actions.count)
        logits = table[np.arange(len(x)), option]
        return logits - logits.max(axis=1, keepdims=True)
