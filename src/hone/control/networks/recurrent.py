"""Recurrent policies: a gated recurrent unit whose state lasts for a trial and is reset at the next one.

The unit in torch (whole trials, with gradient through time) and in numpy (one step of many trials). The first number of
an observation flags the start of a trial (`control/suite/meta_tasks.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.control.networks.actor_critic import ControlPolicy, PolicyOutput, categorical
from hone.control.networks.mlp import DiscreteActions, Floats, MlpConfig, ObservationInputs, PolicySpaces, orthogonal
from hone.control.networks.numpy_memory import NumpyGru
from hone.control.networks.numpy_policies import Flags, NumpyCategoricalPolicy, NumpyPolicy
from hone.core.errors import ConfigError

Array = NDArray[np.generic]


class RecurrentActorCritic(ControlPolicy):
    """A softmax over choices and a value, both linear in the state of a gated recurrent unit (Cho et al., 2014).

    `network.hidden` is its one layer. Raises ConfigError for other actions than choices.
    """

    kind: ClassVar[str] = "recurrent_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        if not isinstance(spaces.actions, DiscreteActions):
            raise ConfigError(f"a recurrent policy chooses among finitely many actions, got {spaces.actions}")
        if len(network.hidden) != 1:
            raise ConfigError(f"network.hidden = {network.hidden}: a recurrent policy has one layer, as in [48]")
        units, size = network.hidden[0], spaces.inputs.size
        self.gru = nn.GRU(size, units)
        self.actor = nn.Linear(units, spaces.actions.count)
        self.critic = nn.Linear(units, 1)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.zero_()
                    continue
                gain = 0.01 if name.startswith("actor") else 1.0
                rows, columns = parameter.shape
                parameter.copy_(torch.from_numpy(gain * orthogonal(rows, columns, seed=seed, stream=name)))

    def evaluate_actions(self, seen: Tensor, chosen: Tensor) -> PolicyOutput:
        """Whole trials `[n, T, *observation]` and actions `[n, T]` -> log-probabilities and values `[n * T]`, trial by
        trial.
        """
        logits, value = self._outputs(seen)
        logp, entropy = categorical(logits, chosen.flatten() - self.spaces.choices.start)
        return PolicyOutput(logp=logp, entropy=entropy, value=value)

    def value(self, seen: Tensor) -> Tensor:
        """Values `[n * T]` of whole trials `[n, T, *observation]`."""
        return self._outputs(seen)[1]

    def numpy_policy(self) -> NumpyPolicy:
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in self.named_parameters()}
        unit = NumpyGru(
            input_weight=weights["gru.weight_ih_l0"].T,
            state_weight=weights["gru.weight_hh_l0"].T,
            input_bias=weights["gru.bias_ih_l0"],
            state_bias=weights["gru.bias_hh_l0"],
        )
        head = (weights["actor.weight"].T, weights["actor.bias"])
        return NumpyTrialPolicy(gru=unit, head=head, inputs=self.spaces.inputs, actions=self.spaces.choices)

    def _outputs(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        trials, length = seen.shape[:2]
        x = self.spaces.inputs.tensor(seen.flatten(0, 1)).view(trials, length, -1).transpose(0, 1)
        state = self.gru(x)[0].transpose(0, 1).reshape(trials * length, -1)
        return self.actor(state), self.critic(state).squeeze(-1)


@dataclass
class NumpyTrialPolicy:
    """Acts in `n` trials at a time, and keeps the state of each until the next begins."""

    gru: Callable[[Floats, Floats], Floats]
    head: tuple[Floats, Floats]
    """Weight `[units, choices]` and bias `[choices]`."""
    inputs: ObservationInputs
    actions: DiscreteActions
    state: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """`[n, units]`"""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        return self._softmax(seen).decide(seen, noise)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        return self._softmax(seen).best(seen)

    def _softmax(self, seen: Array) -> NumpyCategoricalPolicy:
        x = self.inputs.array(seen)
        weight, bias = self.head
        if len(self.state) != len(x):
            self.state = np.zeros((len(x), len(weight)), np.float32)
        self.state = self.gru(x, np.where(x[:, :1] != 0.0, np.float32(0.0), self.state))
        logits = self.state @ weight + bias
        return NumpyCategoricalPolicy(network=lambda _: logits, inputs=self.inputs, actions=self.actions)
