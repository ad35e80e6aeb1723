"""Policies over options: a table over given options, and the option-critic's networks.

Acting in numpy encodes and decodes the observations and actions of `environments/option_wrapper.py`. An evaluation uses
the environment without the wrapper, so `best` keeps its option.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.control.networks.actor_critic import ControlPolicy, categorical
from hone.control.networks.mlp import DiscreteActions, Floats, Mlp, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.numpy_policies import Flags, NumpyPolicy
from hone.core.errors import ConfigError

# -------------------------------------------------------------------------------------------------------- numpy options
# Acting in numpy with options: an option is chosen and acts until it stops.
#
# Encodes and decodes the observations and actions of `hone.control.environments.option_wrapper`, for given options in
# a table and learned ones in networks. An evaluation uses the environment without the wrapper, so `best` keeps the
# current option.


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

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        options = len(self.policies)
        state, memory = split_option_memory(seen, self.inputs, options)
        place = _state_indices(state, self.inputs)
        option, began = self._options(place, memory, noise, self.epsilon)
        action = self.policies[option, place]
        chosen = encode_option_action(began, option, action, options=options, actions=self.actions.count)
        return chosen, np.full(len(chosen), np.nan, dtype=np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
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

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        raw, memory = split_option_memory(seen, self.inputs, self.options)
        x = self.inputs.array(raw)
        option, began = self._options(x, memory, noise[:, :3], self.epsilon)
        logits = self._logits(x, option)
        cumulated = np.exp(logits).cumsum(axis=1)
        action = (cumulated[:, :-1] <= (noise[:, 3] * cumulated[:, -1])[:, None]).sum(axis=1)
        chosen = encode_option_action(began, option, action, options=self.options, actions=self.actions.count)
        return chosen, logits[np.arange(len(action)), action] - np.log(cumulated[:, -1])

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
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


# -------------------------------------------------------------------------------------------------------------- options


class OptionTablePolicy(ControlPolicy):
    """Values of given `options` in `inputs.size` states, with the options' policies, as a table."""

    kind = "option_table"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, options: int) -> None:
        super().__init__(spaces, network)
        states = spaces.inputs.size
        if not spaces.inputs.one_hot or not isinstance(spaces.actions, DiscreteActions):
            raise ConfigError("a table of options needs numbered states and actions")
        self.register_buffer("values", torch.zeros(states, options, dtype=torch.float64))
        self.register_buffer("policies", torch.zeros(options, states, dtype=torch.int64))
        self.register_buffer("stops", torch.ones(options, states, dtype=torch.float64))
        self.register_buffer("begins", torch.ones(options, states, dtype=torch.bool))
        self.epsilon = 0.0

    def set_options(self, policies: NDArray[np.int64], stops: NDArray[np.float64], begins: NDArray[np.bool_]) -> None:
        """Set the options' actions, stopping probabilities and initiation sets, `[options, S]` each."""
        for name, values in (("policies", policies), ("stops", stops), ("begins", begins)):
            self.get_buffer(name).copy_(torch.from_numpy(values))

    def table(self, name: str) -> NDArray[Any]:
        """`values` `[S, options]`, or `policies`, `stops`, `begins` `[options, S]`; shares the policy's memory."""
        return self.get_buffer(name).numpy()

    def numpy_policy(self) -> NumpyPolicy:
        return NumpyCallAndReturnPolicy(
            values=self.table("values"),
            policies=self.table("policies"),
            termination=self.table("stops"),
            initiation_set=self.table("begins"),
            inputs=self.spaces.inputs,
            actions=self.spaces.choices,
            epsilon=self.epsilon,
        )

    def extras(self) -> Mapping[str, Any]:
        return {"options": len(self.get_buffer("policies"))}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, options=int(extras["options"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptionCriticOutput:
    """Outputs of the option-critic for given decisions."""

    logp: Tensor
    """`[n]` nats, of the action within its option."""
    entropy: Tensor
    """`[n]` nats."""
    q_value: Tensor
    """`[n]` Q(s, option)."""
    termination: Tensor
    """`[n]` termination probability of the current option; 0 where there was none."""
    termination_advantage: Tensor
    """`[n]` advantage of continuing the current option: Q(s, option) - V(s); 0 where there was none."""


class OptionCriticPolicy(ControlPolicy):
    """Values of `options`, a policy within each, and their termination probabilities (Bacon, Harb & Precup, 2017,
    1609.05140).
    """

    kind = "option_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, options: int, epsilon: float) -> None:
        super().__init__(spaces, network)
        if not isinstance(spaces.actions, DiscreteActions):
            raise ConfigError(f"option_critic acts on a finite set of actions, got {spaces.actions}")
        size, self.options, self.epsilon = spaces.inputs.size, options, epsilon
        self.action_count = spaces.actions.count
        self.values = Mlp(size, options, network, seed=seed, stream="option_values")
        self.within = Mlp(size, options * self.action_count, network, seed=seed, stream="within", gain=0.01)
        self.ends = Mlp(size, options, network, seed=seed, stream="ends", gain=0.01)

    def split_observation(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Observations `[n, ...]` with option memory -> network inputs `[n, size]`, current option `[n]`, or -1."""
        inputs = self.spaces.inputs
        if inputs.one_hot:
            state, memory = seen.long() // (self.options + 1), seen.long() % (self.options + 1)
            return inputs.tensor(state + inputs.start), memory - 1
        columns = seen[:, inputs.size :]
        if columns.shape[1] == 0:  # an environment without option memory
            return inputs.tensor(seen), torch.full((len(seen),), -1, device=seen.device)
        under_way = torch.where(columns.any(dim=1), columns.argmax(dim=1), -1)
        return inputs.tensor(seen[:, : inputs.size]), under_way

    def split_choice(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Option and action `[n]` of actions in the environment with option memory."""
        message = chosen.long() // self.action_count
        return message % self.options, chosen.long() % self.action_count

    def evaluate_actions(self, seen: Tensor, chosen: Tensor) -> _OptionCriticOutput:
        """Outputs of the current networks for given decisions."""
        x, memory = self.split_observation(seen)
        option, action = self.split_choice(chosen)
        values = self.values(x)
        table = self.within(x).view(len(x), self.options, self.action_count)
        logits = table.gather(1, option[:, None, None].expand(-1, 1, self.action_count)).squeeze(1)
        logp, entropy = categorical(logits, action)
        under_way, place = memory >= 0, memory.clamp(min=0)[:, None]
        stop = torch.sigmoid(self.ends(x).gather(1, place).squeeze(1))
        now = values.detach()
        gain = now.gather(1, place).squeeze(1) - self.epsilon_greedy_value(now)
        return _OptionCriticOutput(
            logp=logp,
            entropy=entropy(),
            q_value=values.gather(1, option[:, None]).squeeze(1),
            termination=torch.where(under_way, stop, torch.zeros_like(stop)),
            termination_advantage=torch.where(under_way, gain, torch.zeros_like(gain)),
        )

    def epsilon_greedy_value(self, values: Tensor) -> Tensor:
        """V(s) `[n]` of choosing among `values` `[n, options]`, epsilon-greedily."""
        return (1.0 - self.epsilon) * values.amax(dim=1) + self.epsilon * values.mean(dim=1)

    def q_value(self, seen: Tensor, chosen: Tensor) -> Tensor:
        """Q(s, option) `[n]` of the chosen options."""
        x, _ = self.split_observation(seen)
        return self.values(x).gather(1, self.split_choice(chosen)[0][:, None]).squeeze(1)

    def value_on_arrival(self, seen: Tensor) -> Tensor:
        """U(s, option) `[n]` = (1 - stop) Q(s, option) + stop V(s), on arrival, before the option may stop."""
        x, memory = self.split_observation(seen)
        values, place = self.values(x), memory.clamp(min=0)[:, None]
        stop = torch.where(memory >= 0, torch.sigmoid(self.ends(x).gather(1, place).squeeze(1)), 1.0)
        return (1.0 - stop) * values.gather(1, place).squeeze(1) + stop * self.epsilon_greedy_value(values)

    def numpy_policy(self) -> NumpyPolicy:
        return NumpyOptionCriticPolicy(
            values=self.values.to_numpy(),
            action_logits=self.within.to_numpy(),
            termination_logits=self.ends.to_numpy(),
            inputs=self.spaces.inputs,
            actions=self.spaces.choices,
            options=self.options,
            epsilon=self.epsilon,
        )

    def extras(self) -> Mapping[str, Any]:
        return {"options": self.options, "epsilon": self.epsilon}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, options=int(extras["options"]), epsilon=float(extras["epsilon"]))
