"""Policies over options: a table over given options, and the option-critic's networks.

The torch side; acting is in `numpy_options.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.control.networks.actor_critic import ControlPolicy, categorical
from hone.control.networks.mlp import DiscreteActions, Mlp, MlpConfig, PolicySpaces
from hone.control.networks.numpy_options import NumpyCallAndReturnPolicy, NumpyOptionCriticPolicy
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.core.errors import ConfigError


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
        for name, given in (("policies", policies), ("stops", stops), ("begins", begins)):
            self.get_buffer(name).copy_(torch.from_numpy(given))

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
class OptionCriticOutput:
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

    def evaluate_actions(self, seen: Tensor, chosen: Tensor) -> OptionCriticOutput:
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
        return OptionCriticOutput(
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
