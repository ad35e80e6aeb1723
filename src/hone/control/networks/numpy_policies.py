"""Acting in numpy: one class per kind of policy, with the methods of `NumpyPolicy`.

Network outputs -> an action and its log-probability, without torch and without global randomness: `noise` draws the
random numbers of a whole rollout, `decide` uses one row of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.control.networks.box_gaussian import LOG_TWO_PI, from_gaussian, log_density
from hone.control.networks.mlp import BoxActions, DiscreteActions, FactoredActions, Floats, ObservationInputs
from hone.core.errors import ConfigError

LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of a squashed Gaussian's log standard deviation (Haarnoja et al., 2018)."""

Array = NDArray[np.generic]
Flags = NDArray[np.bool_]


class NumpyPolicy(Protocol):
    """A policy that acts on `n` observations at a time."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Random numbers for decisions of this `shape` -> `[*shape, *numbers of a decision]`."""
        ...

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """`[n, *observation]` -> actions `[n, *action]`, their log-probabilities (densities) `[n]` in nats; legal ones
        of the masks `[n, M]`."""
        ...

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        """Deterministic actions `[n, *action]`: the mode of the policy among the legal ones of the masks `[n, M]`."""
        ...


class HasNumpyPolicy(Protocol):
    """A policy of any kind: a network, a table."""

    def numpy_policy(self) -> NumpyPolicy:
        """Its numpy form for acting."""
        ...


def scale_to_box(unit: Floats, actions: BoxActions) -> Array:
    """Points in [-1, 1] `[n, a]` -> environment actions `[n, *action]`, always within the bounds."""
    low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
    chosen = low + 0.5 * (high - low) * (unit + np.float32(1.0))
    return np.clip(chosen, low, high).reshape(-1, *actions.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteNetworkPolicy:
    """Base of the policies over the outputs of a network, one for each action; `best` is the action of the greatest."""

    network: Callable[[Floats], Floats]
    inputs: ObservationInputs
    actions: DiscreteActions

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        return self.legal_outputs(seen, mask).argmax(axis=1) + self.actions.start

    def legal_outputs(self, seen: Array, mask: Flags | None) -> Floats:
        """Outputs `[n, choices]` of the network, -inf where `mask` `[n, choices]` says that a choice is illegal. Raises
        ConfigError for a policy that was trained with masks and gets none."""
        outputs = self.network(self.inputs.array(seen))
        if mask is None:
            require_mask(self.actions, mask)
            return outputs
        return np.where(mask, outputs, -np.inf).astype(outputs.dtype, copy=False)


def require_mask(actions: DiscreteActions | FactoredActions, mask: Flags | None) -> None:
    """Raises ConfigError for a policy that was trained with masks and gets none: it would take illegal actions."""
    if actions.masked and mask is None:
        raise ConfigError(
            "this policy was trained with masks of legal actions, and got none: give it the environment's mask with "
            'each observation (env.mask = "auto"; decide(observations, noise, mask) and best(observations, mask))'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxNetworkPolicy:
    """Base of the policies that draw a normal number for each dimension of a box of actions."""

    network: Callable[[Floats], Floats]
    inputs: ObservationInputs
    actions: BoxActions

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.standard_normal((*shape, self.actions.size), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyCategoricalPolicy(DiscreteNetworkPolicy):
    """Softmax of the outputs, sampled by inverse CDF."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        chosen, logp = sample_choices(self.legal_outputs(seen, mask), noise)
        return chosen + self.actions.start, logp


def sample_choices(logits: Floats, noise: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Draw from the softmax of `logits` `[n, k]`, which it changes, by uniform numbers `[n]`: choices `[n]` and their
    log-probabilities `[n]` nats. A choice with the logit -inf is never drawn."""
    logits -= logits.max(axis=1, keepdims=True)
    cumulated = np.exp(logits).cumsum(axis=1)
    total = cumulated[:, -1]
    chosen = (cumulated[:, :-1] <= (noise * total)[:, None]).sum(axis=1)
    if (logits[:, -1] == -np.inf).any():  # noise * total may round to the total, which illegal choices at the end share
        chosen = np.minimum(chosen, logits.shape[1] - 1 - (logits[:, ::-1] > -np.inf).argmax(axis=1))
    return chosen, logits[np.arange(len(chosen)), chosen] - np.log(total)


def uniform_choices(
    noise: Floats, choices: int, mask: Flags | None
) -> tuple[NDArray[np.int64], int | NDArray[np.int64]]:
    """Choices `[n]` from 0 on, evenly at random by uniform numbers `[n]`, legal ones where there is a `mask`
    `[n, choices]`; and how many there were."""
    count: int | NDArray[np.int64] = choices if mask is None else mask.sum(axis=1)
    number = np.minimum((noise * count).astype(np.int64), count - 1)
    if mask is not None:  # the legal choice of that number
        number = (mask.cumsum(axis=1) <= number[:, None]).sum(axis=1)
    return number, count


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyGreedyPolicy(DiscreteNetworkPolicy):
    """The action of the highest value, or with probability `epsilon` a uniformly random one."""

    epsilon: float = 0.0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 2), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        best = self.legal_outputs(seen, mask).argmax(axis=1)
        explored, count = uniform_choices(noise[:, 1], self.actions.count, mask)
        chosen = np.where(noise[:, 0] < self.epsilon, explored, best)
        probability = self.epsilon / count + (chosen == best) * (1.0 - self.epsilon)
        return chosen + self.actions.start, np.log(probability).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzmannLogits:
    """Values over a temperature: the logits of a Boltzmann policy."""

    values: Callable[[Floats], Floats]
    temperature: float

    def __call__(self, x: Floats) -> Floats:
        return self.values(x) / np.float32(self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyGaussianPolicy(BoxNetworkPolicy):
    """A normal distribution around the outputs, in the form of the box (`box_gaussian.py`); where it is not squashed,
    samples may be outside the box, and the environment clips them."""

    log_std: Floats
    """`[actions]`"""

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        mean = self.network(self.inputs.array(seen))
        samples = mean + np.exp(self.log_std) * noise
        chosen = from_gaussian(samples, self.actions)
        if chosen is samples:
            logp = -0.5 * (noise * noise).sum(axis=1) - (self.log_std.sum() + 0.5 * LOG_TWO_PI * self.actions.size)
        else:  # of the action as it is recorded, so that the learner finds the same
            logp = log_density(chosen, mean, self.log_std, self.actions)
        return chosen.reshape(-1, *self.actions.shape), logp.astype(np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        return from_gaussian(self.network(self.inputs.array(seen)), self.actions).reshape(-1, *self.actions.shape)

    def log_density(self, seen: Array, chosen: Array) -> Floats:
        """Log-density `[n]` nats of actions `[n, *action]` in the environment's units."""
        mean = self.network(self.inputs.array(seen))
        return log_density(chosen.reshape(mean.shape).astype(np.float32), mean, self.log_std, self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpySquashedGaussianPolicy(BoxNetworkPolicy):
    """tanh of a normal distribution, scaled to the box. Outputs are means, then log standard deviations."""

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        outputs, size = self.network(self.inputs.array(seen)), self.actions.size
        mean, log_std = outputs[:, :size], np.clip(outputs[:, size:], *LOG_STD_RANGE)
        raw = mean + np.exp(log_std) * noise
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which neither overflows nor cancels
        slope = 2.0 * (math.log(2.0) - raw - np.logaddexp(0.0, -2.0 * raw))
        logp = (-0.5 * noise * noise - log_std - 0.5 * LOG_TWO_PI - slope).sum(axis=1)
        return scale_to_box(np.tanh(raw), self.actions), (logp - np.log(self.actions.reach).sum()).astype(np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        return scale_to_box(np.tanh(self.network(self.inputs.array(seen))[:, : self.actions.size]), self.actions)
