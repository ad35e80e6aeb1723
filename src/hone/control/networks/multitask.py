"""Policies for several tasks: a shared trunk, and a head per task.

The network and its acting. The task is one-hot at the end of the observation; it selects the head, and is an input of
the trunk only on request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ControlPolicy, PolicyOutput, categorical, numpy_actor
from hone.control.networks.box_gaussian import entropy_shift, to_gaussian
from hone.control.networks.mlp import (
    DiscreteActions,
    Floats,
    Mlp,
    MlpConfig,
    NumpyMlp,
    PolicySpaces,
    orthogonal,
)
from hone.control.networks.numpy_policies import LOG_TWO_PI, Flags, NumpyPolicy

Array = NDArray[np.generic]


class MultitaskActorCritic(ControlPolicy):
    """A categorical or Gaussian policy and a value per task, linear in the trunk's features of an observation.

    `spaces.inputs` are the observation, then the task one-hot. `trunk_sees_task`: the task is an input of the trunk.
    """

    kind: ClassVar[str] = "multitask_actor_critic"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, tasks: int, trunk_sees_task: bool = False
    ) -> None:
        super().__init__(spaces, network)
        self.tasks, self.trunk_sees_task = tasks, trunk_sees_task
        self.observation_size = spaces.inputs.size - tasks
        """Size of the observation without the task."""
        actions, width = spaces.actions, network.hidden[-1]
        outputs = actions.count if isinstance(actions, DiscreteActions) else actions.size
        inner = network.model_copy(update={"hidden": network.hidden[:-1]})
        self.trunk = Mlp(
            self.observation_size + tasks * trunk_sees_task, width, inner, seed=seed, stream="trunk", gain=2.0**0.5
        )
        self.actors = _task_weights(tasks, width, outputs, gain=0.01, seed=seed, stream="actor")
        self.critics = _task_weights(tasks, width, 1, gain=1.0, seed=seed, stream="critic")
        self.actor_biases = nn.Parameter(torch.zeros(tasks, outputs))
        self.critic_biases = nn.Parameter(torch.zeros(tasks, 1))
        self.log_std = None if isinstance(actions, DiscreteActions) else nn.Parameter(torch.zeros(tasks, actions.size))

    def evaluate_actions(self, seen: Tensor, chosen: Tensor) -> PolicyOutput:
        """Log-probability and entropy of `chosen` under the current policy, and the value."""
        outputs, log_std, value = self.own_head_outputs(seen)
        actions = self.spaces.actions
        if isinstance(actions, DiscreteActions):
            logp, entropy = categorical(outputs, chosen - actions.start)
            return PolicyOutput(logp=logp, entropy=entropy, value=value)
        assert log_std is not None
        box = self.spaces.box
        samples, volume = to_gaussian(chosen.reshape(outputs.shape), box)
        scaled = (samples - outputs) * torch.exp(-log_std)
        logp = (-0.5 * scaled.square() - log_std - 0.5 * LOG_TWO_PI).sum(dim=1)

        def entropy_of_box() -> Tensor:
            entropy, shift = (log_std + 0.5 * (1.0 + LOG_TWO_PI)).sum(dim=1), entropy_shift(outputs, log_std, box)
            return entropy if shift is None else entropy + shift

        return PolicyOutput(logp=logp if volume is None else logp - volume, entropy=entropy_of_box, value=value)

    def value(self, seen: Tensor) -> Tensor:
        """State values `[n]`, each in its task."""
        features, task = self._features(seen)
        return _outputs_of_own_head(features, self.critics, self.critic_biases, task).squeeze(-1)

    def own_head_outputs(self, seen: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Logits or means `[n, outputs]` of each observation's own task, log standard deviations `[n, a]` (None for
        choices), and values `[n]`."""
        features, task = self._features(seen)
        outputs = _outputs_of_own_head(features, self.actors, self.actor_biases, task)
        value = _outputs_of_own_head(features, self.critics, self.critic_biases, task).squeeze(-1)
        return outputs, None if self.log_std is None else self.log_std[task], value

    def numpy_policy(self) -> NumpyPolicy:
        """Policy that reads the task from the end of the observation."""
        parts = [self.for_task(task).numpy_policy() for task in range(self.tasks)]
        return _NumpyMultitaskPolicy(task_policies=parts, observation_size=self.observation_size)

    def for_task(self, task: int) -> "_SingleTaskPolicy":
        """The policy in one task; its observations do not include the task."""
        return _SingleTaskPolicy(self, task)

    def extras(self) -> Mapping[str, Any]:
        return {"tasks": self.tasks, "told": self.trunk_sees_task}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, tasks=extras["tasks"], trunk_sees_task=extras["told"])

    def _features(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.spaces.inputs.tensor(seen)
        task = x[:, self.observation_size :].argmax(dim=1)
        x = x if self.trunk_sees_task else x[:, : self.observation_size]
        features = self.trunk(x)
        return (features.relu() if self.trunk.relu else features.tanh()), task


@dataclass(frozen=True, slots=True)
class _SingleTaskPolicy:
    """A multitask policy in one task."""

    policy: MultitaskActorCritic
    task: int

    def numpy_policy(self) -> NumpyPolicy:
        policy, task = self.policy, self.task
        weight, bias = (tensor.detach().cpu().numpy()[task] for tensor in (policy.actors, policy.actor_biases))
        mark = np.eye(policy.tasks, dtype=np.float32)[task] if policy.trunk_sees_task else None
        network = _NumpyTaskNetwork(trunk=policy.trunk.to_numpy(), weight=weight, bias=bias, task_one_hot=mark)
        inputs, actions = replace(policy.spaces.inputs, size=policy.observation_size), policy.spaces.actions
        return numpy_actor(inputs, actions, network, None if policy.log_std is None else policy.log_std[task])


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyTaskNetwork:
    """Trunk and head of one task, in numpy."""

    trunk: NumpyMlp | Callable[[Floats], Floats]
    weight: Floats
    bias: Floats
    task_one_hot: Floats | None
    """The one-hot task, where it is an input of the trunk."""

    def __call__(self, x: Floats) -> Floats:
        if self.task_one_hot is not None:
            x = np.concatenate((x, np.broadcast_to(self.task_one_hot, (len(x), len(self.task_one_hot)))), axis=1)
        features = self.trunk(x)
        relu = isinstance(self.trunk, NumpyMlp) and self.trunk.relu
        return (np.maximum(features, np.float32(0.0)) if relu else np.tanh(features)) @ self.weight + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyMultitaskPolicy:
    """Passes each observation to the head of its task."""

    task_policies: Sequence[NumpyPolicy]
    observation_size: int
    """Size of the observation without the task."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return self.task_policies[0].noise(draws, shape)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        chosen: list[Array] = []
        logp = np.empty(len(seen), np.float32)
        order: list[NDArray[np.int64]] = []
        for rows, part, own in self._rows_by_task(seen):
            decided, logp[rows] = part.decide(own, noise[rows])
            chosen.append(decided)
            order.append(rows)
        return np.concatenate(chosen)[np.argsort(np.concatenate(order))], logp

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        shares = [(rows, part.best(own)) for rows, part, own in self._rows_by_task(seen)]
        order = np.argsort(np.concatenate([rows for rows, _ in shares]))
        return np.concatenate([best for _, best in shares])[order]

    def _rows_by_task(self, seen: Array) -> list[tuple[NDArray[np.int64], NumpyPolicy, Array]]:
        flat = seen.reshape(len(seen), -1)
        task = flat[:, self.observation_size :].argmax(axis=1)
        numbers = [int(number) for number in np.unique(task)]
        return [
            (rows, self.task_policies[number], flat[rows, : self.observation_size])
            for number in numbers
            for rows in (np.flatnonzero(task == number),)
        ]


def _task_weights(tasks: int, width: int, outputs: int, *, gain: float, seed: int, stream: str) -> nn.Parameter:
    drawn = [gain * orthogonal(width, outputs, seed=seed, stream=f"{stream}/{task}") for task in range(tasks)]
    return nn.Parameter(torch.from_numpy(np.stack(drawn).astype(np.float32)))


def _outputs_of_own_head(features: Tensor, weights: Tensor, biases: Tensor, task: Tensor) -> Tensor:
    """Outputs of each row's own head: `[n, h]`, `[tasks, h, o]`, `[tasks, o]`, `[n]` -> `[n, o]`."""
    every = torch.einsum("nh,tho->nto", features, weights) + biases
    mark = F.one_hot(task, len(weights)).to(every.dtype)
    return torch.einsum("nto,nt->no", every, mark)
