"""Acting in numpy by offline-trained policies: Gaussians in a box, discrete BCQ, and the best of several samples.

The networks are in `offline.py`, the protocol and the common kinds in `numpy_policies.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hone.control.networks.mlp import BoxActions, Floats, ObservationInputs
from hone.control.networks.numpy_policies import (
    LOG_TWO_PI,
    Array,
    BoxNetworkPolicy,
    DiscreteNetworkPolicy,
    scale_to_box,
)
from hone.core.random import generator

NumpyNetwork = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyTanhGaussianPolicy(BoxNetworkPolicy):
    """A normal distribution around tanh of the outputs, clipped to the box."""

    log_std: Floats
    """`[actions]` on the scale [-1, 1]."""

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        """The density is that of the sample before clipping."""
        mean = np.tanh(self.network(self.inputs.array(seen)))
        offset = self.log_std.sum() + self.actions.log_volume + 0.5 * LOG_TWO_PI * self.actions.size
        logp = -0.5 * (noise * noise).sum(axis=1) - offset
        unit = np.clip(mean + np.exp(self.log_std) * noise, -1.0, 1.0)
        return scale_to_box(unit, self.actions), logp.astype(np.float32)

    def best(self, seen: Array) -> Array:
        return scale_to_box(np.tanh(self.network(self.inputs.array(seen))), self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyDiscreteBcqPolicy(DiscreteNetworkPolicy):
    """The action of the highest value among those at least `threshold` times as likely as the most likely one in the
    data.
    """

    behaviour: NumpyNetwork
    threshold: float

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 0), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        return self.best(seen), np.zeros(len(noise), np.float32)

    def best(self, seen: Array) -> Array:
        x = self.inputs.array(seen)
        logits = self.behaviour(x)
        allowed = np.exp(logits - logits.max(axis=1, keepdims=True)) >= self.threshold
        return np.where(allowed, self.network(x), -np.inf).argmax(axis=1) + self.actions.start


class ActionProposer(Protocol):
    """Candidate actions."""

    def __call__(self, x: Floats, noise: Floats) -> Floats:
        """Encoded observations `[n, size]`, noise `[n, width]` -> actions `[n, a]` in [-1, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class VaeProposer:
    """Decoded from latent codes, then perturbed by at most `reach`."""

    decoder: NumpyNetwork
    perturbation: NumpyNetwork
    max_perturbation: float
    latent_limit: float
    """Bound of the codes."""

    def __call__(self, x: Floats, noise: Floats) -> Floats:
        code = np.clip(noise, -self.latent_limit, self.latent_limit)
        unit = np.tanh(self.decoder(np.concatenate((x, code), axis=1)))
        by = self.max_perturbation * np.tanh(self.perturbation(np.concatenate((x, unit), axis=1)))
        return np.clip(unit + by, -1.0, 1.0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class SquashedGaussianProposer:
    """Samples of a squashed Gaussian."""

    network: NumpyNetwork
    log_std: tuple[float, float]
    """Bounds of its log standard deviation."""

    def __call__(self, x: Floats, noise: Floats) -> Floats:
        mean, log_std = np.split(self.network(x), 2, axis=1)
        return np.tanh(mean + np.exp(np.clip(log_std, *self.log_std)) * noise).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyBestOfSamplesPolicy:
    """Samples `samples` candidate actions, and takes the critic's best. Its density is not known: NaN."""

    proposer: ActionProposer
    critic: NumpyNetwork
    inputs: ObservationInputs
    actions: BoxActions
    samples: int
    noise_size: int
    """Random numbers of one candidate."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.standard_normal((*shape, self.samples, self.noise_size), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        count = len(noise)
        x = np.repeat(self.inputs.array(seen), self.samples, axis=0)
        unit = self.proposer(x, noise.reshape(count * self.samples, self.noise_size))
        worth = self.critic(np.concatenate((x, unit), axis=1)).reshape(count, self.samples)
        best = unit.reshape(count, self.samples, -1)[np.arange(count), worth.argmax(axis=1)]
        return scale_to_box(best, self.actions), np.full(count, np.nan, np.float32)

    def best(self, seen: Array) -> Array:
        """Actions with fixed noise, so that an evaluation is reproducible."""
        draws = generator(0, "best of", self.samples)
        noise = draws.standard_normal((self.samples, self.noise_size), dtype=np.float32)
        return self.decide(seen, np.broadcast_to(noise, (len(seen), *noise.shape)))[0]
