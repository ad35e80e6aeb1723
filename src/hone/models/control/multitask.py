"""Policies for several tasks: one trunk that all share, and a head for each.

Belongs here: the network and its acting. The number of the task stands one-hot at the end of what is seen; it picks the
head, and reaches the trunk only where that is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hone.models.control.actor_critic import Judgement, Policy, categorical
from hone.models.control.mlp import Bounds, Choices, Floats, Mlp, MlpConfig, NumpyMlp, Spaces, orthogonal
from hone.models.control.numpy_policies import LOG_TWO_PI, ActCategorical, ActGaussian, Acting

Array = NDArray[np.generic]


class MultitaskActorCritic(Policy):
    """A softmax or a Gaussian and a value per task, linear in what the trunk makes of an observation.

    `spaces.inputs` are the numbers seen, then the task one-hot. `told`: the trunk sees the task as well.
    """

    kind: ClassVar[str] = "multitask_actor_critic"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int, tasks: int, told: bool = False) -> None:
        super().__init__(spaces, network)
        self.tasks, self.told = tasks, told
        self.size = spaces.inputs.size - tasks
        """Numbers seen."""
        actions, width = spaces.actions, network.hidden[-1]
        outputs = actions.count if isinstance(actions, Choices) else actions.size
        inner = network.model_copy(update={"hidden": network.hidden[:-1]})
        self.trunk = Mlp(self.size + tasks * told, width, inner, seed=seed, stream="trunk", gain=2.0**0.5)
        self.actors = _heads(tasks, width, outputs, gain=0.01, seed=seed, stream="actor")
        self.critics = _heads(tasks, width, 1, gain=1.0, seed=seed, stream="critic")
        self.actor_biases = nn.Parameter(torch.zeros(tasks, outputs))
        self.critic_biases = nn.Parameter(torch.zeros(tasks, 1))
        self.log_std = None if isinstance(actions, Choices) else nn.Parameter(torch.zeros(tasks, actions.size))

    def judge(self, seen: Tensor, chosen: Tensor) -> Judgement:
        """What the policy says now of what was chosen then."""
        features, task = self._features(seen)
        outputs = _picked(features, self.actors, self.actor_biases, task)
        value = _picked(features, self.critics, self.critic_biases, task).squeeze(-1)
        actions = self.spaces.actions
        if isinstance(actions, Choices):
            logp, entropy = categorical(outputs, chosen - actions.start)
            return Judgement(logp=logp, entropy=entropy, value=value)
        assert self.log_std is not None
        log_std = self.log_std[task]
        scaled = (chosen.reshape(outputs.shape) - outputs) * torch.exp(-log_std)
        logp = (-0.5 * scaled.square() - log_std - 0.5 * LOG_TWO_PI).sum(dim=1)
        return Judgement(logp=logp, entropy=lambda: (log_std + 0.5 * (1.0 + LOG_TWO_PI)).sum(dim=1), value=value)

    def value(self, seen: Tensor) -> Tensor:
        """`[n]` worth of what is seen, in its task."""
        features, task = self._features(seen)
        return _picked(features, self.critics, self.critic_biases, task).squeeze(-1)

    def acting(self) -> Acting:
        """Reads the task from the end of what is seen."""
        parts = [self.of_task(task).acting() for task in range(self.tasks)]
        return ActTasks(parts=parts, size=self.size)

    def of_task(self, task: int) -> "OfTask":
        """The policy in one task: it sees no number of it."""
        return OfTask(self, task)

    def extras(self) -> Mapping[str, Any]:
        return {"tasks": self.tasks, "told": self.told}

    @classmethod
    def made(cls, spaces: Spaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, tasks=extras["tasks"], told=extras["told"])

    def _features(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.spaces.inputs.tensor(seen)
        task = x[:, self.size :].argmax(dim=1)
        x = x if self.told else x[:, : self.size]
        features = self.trunk(x)
        return (features.relu() if self.trunk.relu else features.tanh()), task


@dataclass(frozen=True, slots=True)
class OfTask:
    """A policy for several tasks, in one of them."""

    policy: MultitaskActorCritic
    task: int

    def acting(self) -> Acting:
        policy, task = self.policy, self.task
        weight, bias = (tensor.detach().cpu().numpy()[task] for tensor in (policy.actors, policy.actor_biases))
        mark = np.eye(policy.tasks, dtype=np.float32)[task] if policy.told else None
        network = _Head(trunk=policy.trunk.numpy(), weight=weight, bias=bias, mark=mark)
        inputs, actions = replace(policy.spaces.inputs, size=policy.size), policy.spaces.actions
        if isinstance(actions, Choices):
            return ActCategorical(network=network, inputs=inputs, actions=actions)
        assert isinstance(actions, Bounds)
        assert policy.log_std is not None
        log_std = policy.log_std.detach().cpu().numpy()[task]
        return ActGaussian(network=network, inputs=inputs, actions=actions, log_std=log_std)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Trunk and head of one task, in numpy."""

    trunk: NumpyMlp | Callable[[Floats], Floats]
    weight: Floats
    bias: Floats
    mark: Floats | None
    """The task one-hot, where the trunk is told."""

    def __call__(self, x: Floats) -> Floats:
        if self.mark is not None:
            x = np.concatenate((x, np.broadcast_to(self.mark, (len(x), len(self.mark)))), axis=1)
        features = self.trunk(x)
        relu = isinstance(self.trunk, NumpyMlp) and self.trunk.relu
        return (np.maximum(features, np.float32(0.0)) if relu else np.tanh(features)) @ self.weight + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class ActTasks:
    """Hands each observation to the head of its task."""

    parts: Sequence[Acting]
    size: int
    """Numbers seen, before the task."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return self.parts[0].noise(draws, shape)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        chosen: list[Array] = []
        logp = np.empty(len(seen), np.float32)
        order: list[NDArray[np.int64]] = []
        for rows, part, own in self._shares(seen):
            decided, logp[rows] = part.decide(own, noise[rows])
            chosen.append(decided)
            order.append(rows)
        return np.concatenate(chosen)[np.argsort(np.concatenate(order))], logp

    def best(self, seen: Array) -> Array:
        shares = [(rows, part.best(own)) for rows, part, own in self._shares(seen)]
        order = np.argsort(np.concatenate([rows for rows, _ in shares]))
        return np.concatenate([best for _, best in shares])[order]

    def _shares(self, seen: Array) -> list[tuple[NDArray[np.int64], Acting, Array]]:
        flat = seen.reshape(len(seen), -1)
        task = flat[:, self.size :].argmax(axis=1)
        numbers = [int(number) for number in np.unique(task)]
        return [
            (rows, self.parts[number], flat[rows, : self.size])
            for number in numbers
            for rows in (np.flatnonzero(task == number),)
        ]


def _heads(tasks: int, width: int, outputs: int, *, gain: float, seed: int, stream: str) -> nn.Parameter:
    drawn = [gain * orthogonal(width, outputs, seed=seed, stream=f"{stream}/{task}") for task in range(tasks)]
    return nn.Parameter(torch.from_numpy(np.stack(drawn).astype(np.float32)))


def _picked(features: Tensor, weights: Tensor, biases: Tensor, task: Tensor) -> Tensor:
    """Outputs of each row's own head: `[n, h]`, `[tasks, h, o]`, `[tasks, o]`, `[n]` -> `[n, o]`."""
    every = torch.einsum("nh,tho->nto", features, weights) + biases
    mark = F.one_hot(task, len(weights)).to(every.dtype)
    return torch.einsum("nto,nt->no", every, mark)
