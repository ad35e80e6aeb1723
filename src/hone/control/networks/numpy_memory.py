"""Acting with a memory in numpy: recurrent units, stacks of the newest observations, and the policies behind them.

A state is a row of numbers: zeros of a unit, and no numbers (NaN) of frames, where an episode begins. Whoever acts says
where that is, by `forget`: never a number in the observation.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.networks.mlp import Floats, ObservationInputs
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.core.errors import ConfigError

Array: TypeAlias = NDArray[np.generic]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyUnit:
    """One step of a recurrent unit of torch's."""

    input_weight: Floats
    """`[inputs, gates * units]`"""
    state_weight: Floats
    """`[units, gates * units]`"""
    input_bias: Floats
    state_bias: Floats
    """`[gates * units]`"""

    @abstractmethod
    def __call__(self, x: Floats, state: Floats) -> Floats:
        """`[n, inputs]`, `[n, state_size]` -> the next state; its first numbers are the output."""

    @property
    def units(self) -> int:
        """Numbers of the output."""
        return len(self.state_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyGru(NumpyUnit):
    """Gates in the order reset, update, new."""

    def __call__(self, x: Floats, state: Floats) -> Floats:
        units = self.units
        fresh, kept = x @ self.input_weight + self.input_bias, state @ self.state_weight + self.state_bias
        gates = _sigmoid(fresh[:, : 2 * units] + kept[:, : 2 * units])
        reset, update = gates[:, :units], gates[:, units:]
        new: Floats = np.tanh(fresh[:, 2 * units :] + reset * kept[:, 2 * units :])
        return (new + update * (state - new)).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyLstm(NumpyUnit):
    """Gates in the order input, forget, cell, output; a state is the output, then the cells."""

    def __call__(self, x: Floats, state: Floats) -> Floats:
        units = self.units
        hidden, cells = state[:, :units], state[:, units:]
        raw = x @ self.input_weight + self.input_bias + hidden @ self.state_weight + self.state_bias
        opened = _sigmoid(raw[:, : 2 * units])
        cells = opened[:, units:] * cells + opened[:, :units] * np.tanh(raw[:, 2 * units : 3 * units])
        shown = _sigmoid(raw[:, 3 * units :]) * np.tanh(cells)
        return np.concatenate((shown, cells), axis=1).astype(np.float32, copy=False)


def _sigmoid(x: NDArray[np.floating[Any]]) -> Floats:
    one = np.float32(1.0)
    return (one / (one + np.exp(-x))).astype(np.float32, copy=False)


@dataclass
class NumpyMemoryPolicy:
    """Acts in `n` environments at a time by what it was shown before in each of their episodes.

    `forget` tells it which episodes begin; the first observations of all begin one. A new object begins anew.
    """

    head: NumpyPolicy
    """Policy over what is recalled."""
    inputs: ObservationInputs
    """Inputs of one observation."""
    memory: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32), kw_only=True)
    """`[n, H]` states before the next observations."""

    @property
    @abstractmethod
    def initial(self) -> Floats:
        """`[H]` state where an episode begins."""

    @abstractmethod
    def recall(self, seen: Array) -> Array:
        """`[n, *observation]` -> what the head reads; moves the memory on."""

    def forget(self, begun: Flags) -> None:
        """Put the initial state into rows `[n]` whose episode begins with the next observation."""
        if len(self.memory) != len(begun):
            self.memory = np.tile(self.initial, (len(begun), 1))
        else:
            self.memory = np.where(begun[:, None], self.initial, self.memory)

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return self.head.noise(draws, shape)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        return self.head.decide(self._recalled(seen), noise, mask)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        return self.head.best(self._recalled(seen), mask)

    def _recalled(self, seen: Array) -> Array:
        if len(self.memory) != len(seen):
            self.forget(np.ones(len(seen), np.bool_))
        return self.recall(seen)


@dataclass
class NumpyRecurrentPolicy(NumpyMemoryPolicy):
    """A policy behind recurrent units, of which the first is its own; the others' states are kept for the critic."""

    units: Sequence[Callable[[Floats, Floats], Floats]] = field(kw_only=True)
    sizes: Sequence[int] = field(kw_only=True)
    """Numbers of each unit's state."""

    @property
    def initial(self) -> Floats:
        return np.zeros(sum(self.sizes), np.float32)

    def recall(self, seen: Array) -> Floats:
        x = self.inputs.array(seen)
        parts = np.split(self.memory, np.cumsum(self.sizes)[:-1], axis=1)
        after = [unit(x, state) for unit, state in zip(self.units, parts, strict=True)]
        self.memory = np.concatenate(after, axis=1)
        assert isinstance(self.units[0], NumpyUnit)
        return after[0][:, : self.units[0].units]


@dataclass
class NumpyFramePolicy(NumpyMemoryPolicy):
    """A policy over the newest observations of an episode; a state holds the earlier ones, oldest first."""

    frames: int = field(kw_only=True)
    size: int = field(kw_only=True)
    """Numbers of one observation."""

    @property
    def initial(self) -> Floats:
        return np.full((self.frames - 1) * self.size, np.nan, np.float32)

    def recall(self, seen: Array) -> Array:
        """`[n, frames, *observation]`, in their own type."""
        now = seen.reshape(len(seen), 1, -1).astype(np.float32)
        stack = np.concatenate((self.memory.reshape(len(seen), self.frames - 1, -1), now), axis=1)
        stack = np.where(np.isnan(stack), now, stack)
        self.memory = stack[:, 1:].reshape(len(seen), -1)
        return stack.astype(seen.dtype).reshape(len(seen), self.frames, *seen.shape[1:])


def require_no_memory(acting: NumpyPolicy, use: str) -> NumpyPolicy:
    """`acting`, unless it has a memory. Raises ConfigError: `use` asks it about single observations."""
    if isinstance(acting, NumpyMemoryPolicy):
        raise ConfigError(
            f"{use}: this policy has a memory (network.memory), and it would be asked about observations out of their "
            "episodes; take a policy without one"
        )
    return acting


def with_frames(head: NumpyPolicy, inputs: ObservationInputs) -> NumpyPolicy:
    """`head` behind a stack of observations, where `inputs` read several together."""
    if inputs.frames == 1:
        return head
    return NumpyFramePolicy(head=head, inputs=inputs, frames=inputs.frames, size=inputs.shown_size)
