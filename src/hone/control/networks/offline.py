"""Networks of offline recipes: twin critics with a value, generators of logged actions, behaviour models.

Policies in torch and their numpy forms for acting; their losses are in `objectives`. Torch policies take observations
encoded by `ObservationInputs`, `[n, size]`, and boxes of actions scaled to [-1, 1], so that the data are encoded once,
not once per network and update.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from hone.control.networks.actor_critic import ControlPolicy, as_mlps, categorical, gaussian
from hone.control.networks.mlp import (
    BoxActions,
    DiscreteActions,
    Floats,
    Mlp,
    MlpConfig,
    ObservationInputs,
    PolicySpaces,
)
from hone.control.networks.numpy_policies import (
    LOG_STD_RANGE,
    LOG_TWO_PI,
    Array,
    BoxNetworkPolicy,
    DiscreteNetworkPolicy,
    Flags,
    NumpyCategoricalPolicy,
    NumpyPolicy,
    require_mask,
    scale_to_box,
)
from hone.core.errors import ConfigError
from hone.core.random import generator

# -------------------------------------------------------------------------------------------------------- numpy offline


_NumpyNetwork = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyTanhGaussianPolicy(BoxNetworkPolicy):
    """A normal distribution around tanh of the outputs, clipped to the box."""

    log_std: Floats
    """`[actions]` on the scale [-1, 1]."""

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """The density is that of the sample before clipping."""
        del mask
        mean = np.tanh(self.network(self.inputs.array(seen)))
        offset = self.log_std.sum() + self.actions.log_volume + 0.5 * LOG_TWO_PI * self.actions.size
        logp = -0.5 * (noise * noise).sum(axis=1) - offset
        unit = np.clip(mean + np.exp(self.log_std) * noise, -1.0, 1.0)
        return scale_to_box(unit, self.actions), logp.astype(np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        return scale_to_box(np.tanh(self.network(self.inputs.array(seen))), self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyDiscreteBcqPolicy(DiscreteNetworkPolicy):
    """The action of the highest value among those at least `threshold` times as likely as the most likely one in the
    data.
    """

    behaviour: _NumpyNetwork
    threshold: float

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 0), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        return self.best(seen, mask), np.zeros(len(noise), np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        require_mask(self.actions, mask)
        x = self.inputs.array(seen)
        logits = self.behaviour(x) if mask is None else np.where(mask, self.behaviour(x), -np.inf)
        allowed = np.exp(logits - logits.max(axis=1, keepdims=True)) >= self.threshold
        if mask is not None:
            allowed &= mask  # a threshold of 0 allows what has no probability
        return np.where(allowed, self.network(x), -np.inf).argmax(axis=1) + self.actions.start


_ActionProposer = Callable[[Floats, Floats], Floats]
"""Candidate actions: encoded observations `[n, size]`, noise `[n, width]` -> actions `[n, a]` in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class _VaeProposer:
    """Decoded from latent codes, then perturbed by at most `reach`."""

    decoder: _NumpyNetwork
    perturbation: _NumpyNetwork
    max_perturbation: float
    latent_limit: float
    """Bound of the codes."""

    def __call__(self, x: Floats, noise: Floats) -> Floats:
        code = np.clip(noise, -self.latent_limit, self.latent_limit)
        unit = np.tanh(self.decoder(np.concatenate((x, code), axis=1)))
        by = self.max_perturbation * np.tanh(self.perturbation(np.concatenate((x, unit), axis=1)))
        return np.clip(unit + by, -1.0, 1.0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _SquashedGaussianProposer:
    """Samples of a squashed Gaussian."""

    network: _NumpyNetwork
    log_std: tuple[float, float]
    """Bounds of its log standard deviation."""

    def __call__(self, x: Floats, noise: Floats) -> Floats:
        mean, log_std = np.split(self.network(x), 2, axis=1)
        return np.tanh(mean + np.exp(np.clip(log_std, *self.log_std)) * noise).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyBestOfSamplesPolicy:
    """Samples `samples` candidate actions, and takes the critic's best. Its density is not known: NaN."""

    proposer: _ActionProposer
    critic: _NumpyNetwork
    inputs: ObservationInputs
    actions: BoxActions
    samples: int
    noise_size: int
    """Random numbers of one candidate."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.standard_normal((*shape, self.samples, self.noise_size), dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        del mask
        count = len(noise)
        x = np.repeat(self.inputs.array(seen), self.samples, axis=0)
        unit = self.proposer(x, noise.reshape(count * self.samples, self.noise_size))
        worth = self.critic(np.concatenate((x, unit), axis=1)).reshape(count, self.samples)
        best = unit.reshape(count, self.samples, -1)[np.arange(count), worth.argmax(axis=1)]
        return scale_to_box(best, self.actions), np.full(count, np.nan, np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        """Actions with fixed noise, so that an evaluation is reproducible."""
        del mask
        draws = generator(0, "best of", self.samples)
        noise = draws.standard_normal((self.samples, self.noise_size), dtype=np.float32)
        return self.decide(seen, np.broadcast_to(noise, (len(seen), *noise.shape)))[0]


# -------------------------------------------------------------------------------------------------------------- offline


_LATENT_LIMIT = 0.5
"""Bound of latent codes when actions are generated (BCQ, Fujimoto et al., 2019)."""
_LATENT_LOG_STD_RANGE = (-4.0, 15.0)
"""Bounds of the encoder's log standard deviation, as in BCQ's code."""
_LOG_STD_CLIP = (-5.0, 2.0)
"""Bounds of a Gaussian policy's log standard deviation (IQL, Kostrikov et al., 2022)."""


def _twin_critics(spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> nn.ModuleList:
    """Two critics: action values of finite actions, or one value of an observation and a point of a box."""
    size, actions = spaces.inputs.size, spaces.actions
    shape = (size, actions.count) if isinstance(actions, DiscreteActions) else (size + actions.size, 1)
    return nn.ModuleList(Mlp(*shape, network, seed=seed, stream=f"critic{number}") for number in (1, 2))


def twin_q_values(
    critics: nn.ModuleList, seen: Tensor, chosen: Tensor, *, frozen: bool = False
) -> tuple[Tensor, Tensor]:
    """Both critics' values `[n]` of actions: numbers `[n]` from 0, or points `[n, a]` in [-1, 1].

    `frozen` lets gradients through to the actions only.
    """
    if chosen.dim() == 1:
        first, second = (critic(seen).gather(1, chosen[:, None]) for critic in as_mlps(critics))
    else:
        x = torch.cat((seen, chosen), dim=1)
        first, second = (critic.forward_frozen(x) if frozen else critic(x) for critic in as_mlps(critics))
    return first.squeeze(1), second.squeeze(1)


def first_q_value(critics: nn.ModuleList, seen: Tensor, unit: Tensor) -> Tensor:
    """The first critic's value `[n]` of points of a box `[n, a]`, with gradients to the actions only."""
    return as_mlps(critics)[0].forward_frozen(torch.cat((seen, unit), dim=1)).squeeze(1)


def _require_finite_box(spaces: PolicySpaces, what: str) -> BoxActions:
    """Raises ConfigError unless actions are a box with finite bounds."""
    if not isinstance(spaces.actions, BoxActions) or not spaces.actions.is_finite:
        raise ConfigError(f"{what} needs a box of actions with finite bounds, got {spaces.actions}")
    return spaces.actions


class IqlPolicy(ControlPolicy):
    """A policy, twin critics with target networks, and a state value (IQL, Kostrikov et al., 2022).

    Finite actions: a softmax. A box: a Gaussian around tanh of the outputs, whose log standard deviation is one
    parameter per action dimension.
    """

    kind = "implicit_values"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        actions, size = spaces.actions, spaces.inputs.size
        outputs = (
            actions.count
            if isinstance(actions, DiscreteActions)
            else _require_finite_box(spaces, "a Gaussian within a box").size
        )
        self.actor = Mlp(size, outputs, network, seed=seed, stream="actor", gain=0.01)
        self.critics = _twin_critics(spaces, network, seed=seed)
        self.targets = _twin_critics(spaces, network, seed=seed).requires_grad_(requires_grad=False)
        self.value = Mlp(size, 1, network, seed=seed, stream="value")
        self.log_std = None if isinstance(actions, DiscreteActions) else nn.Parameter(torch.zeros(outputs))

    def log_prob(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability (density) `[n]` of the actions in nats, among the legal ones of `mask` `[n, choices]`."""
        outputs = self.actor(seen)
        if self.log_std is None:
            return categorical(outputs, chosen, mask)[0]
        return gaussian(torch.tanh(outputs), self.log_std.clamp(*_LOG_STD_CLIP), chosen)[0]

    def numpy_policy(self) -> NumpyPolicy:
        actions, inputs, network = self.spaces.actions, self.spaces.inputs, self.actor.to_numpy()
        if isinstance(actions, DiscreteActions):
            return NumpyCategoricalPolicy(network=network, inputs=inputs, actions=actions)
        assert self.log_std is not None
        log_std = self.log_std.detach().clamp(*_LOG_STD_CLIP).cpu().numpy()
        return _NumpyTanhGaussianPolicy(network=network, inputs=inputs, actions=self.spaces.box, log_std=log_std)


class DiscreteBcqPolicy(ControlPolicy):
    """A Q-network, its target network, and a behaviour model; acts greedily among the actions that are likely enough in
    the data (discrete BCQ, Fujimoto et al., 2019).
    """

    kind = "admissible_values"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, threshold: float) -> None:
        super().__init__(spaces, network)
        size, count = spaces.inputs.size, spaces.choices.count
        self.threshold = threshold
        self.values = Mlp(size, count, network, seed=seed, stream="values")
        self.target = Mlp(size, count, network, seed=seed, stream="values").requires_grad_(requires_grad=False)
        self.behaviour = Mlp(size, count, network, seed=seed, stream="behaviour", gain=0.01)

    def numpy_policy(self) -> NumpyPolicy:
        return NumpyDiscreteBcqPolicy(
            network=self.values.to_numpy(),
            behaviour=self.behaviour.to_numpy(),
            inputs=self.spaces.inputs,
            actions=self.spaces.choices,
            threshold=self.threshold,
        )

    def extras(self) -> Mapping[str, Any]:
        return {"threshold": self.threshold}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, threshold=float(extras["threshold"]))


class _ActionVae(nn.Module):
    """A conditional variational autoencoder of logged actions in [-1, 1] (Kingma and Welling, 2014), with two latent
    dimensions per action dimension.
    """

    def __init__(self, size: int, actions: int, network: MlpConfig, *, seed: int) -> None:
        super().__init__()
        self.latent_size = 2 * actions
        self.encoder = Mlp(size + actions, 2 * self.latent_size, network, seed=seed, stream="encoder")
        self.decoder = Mlp(size + self.latent_size, actions, network, seed=seed, stream="decoder")

    def encode(self, seen: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation `[n, latent]` of an action's code."""
        mean, log_std = self.encoder(torch.cat((seen, unit), dim=1)).chunk(2, dim=1)
        return mean, log_std.clamp(*_LATENT_LOG_STD_RANGE)

    def decode_pre_tanh(self, seen: Tensor, code: Tensor) -> Tensor:
        """The action of a code `[n, a]`, before tanh."""
        return self.decoder(torch.cat((seen, code), dim=1))

    def reconstruct(self, seen: Tensor, unit: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An action encoded and decoded again `[n, a]`, with mean and log standard deviation of its code."""
        mean, log_std = self.encode(seen, unit)
        return torch.tanh(self.decode_pre_tanh(seen, mean + log_std.exp() * noise)), mean, log_std


class BcqPolicy(ControlPolicy):
    """A generator of logged actions, a small perturbation of them, and twin critics, all but the generator with target
    networks; acts by the best of `samples` perturbed actions (BCQ, Fujimoto et al., 2019).
    """

    kind = "batch_constrained"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, max_perturbation: float, samples: int
    ) -> None:
        super().__init__(spaces, network)
        size, self.action_size = spaces.inputs.size, _require_finite_box(spaces, "BCQ with a generator").size
        self.max_perturbation, self.samples = max_perturbation, samples
        self.generator = _ActionVae(size, self.action_size, network, seed=seed)
        shape, wiring = (size + self.action_size, self.action_size), {"seed": seed, "gain": 0.01}
        self.perturbation = Mlp(*shape, network, stream="perturbation", **wiring)
        self.slow = Mlp(*shape, network, stream="perturbation", **wiring).requires_grad_(requires_grad=False)
        self.critics = _twin_critics(spaces, network, seed=seed)
        self.targets = _twin_critics(spaces, network, seed=seed).requires_grad_(requires_grad=False)

    @property
    def latent_size(self) -> int:
        """Dimensions of a code."""
        return self.generator.latent_size

    @torch.no_grad()
    def generate_actions(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Samples of the behaviour model `[n, a]`, without gradient."""
        return torch.tanh(self.generator.decode_pre_tanh(seen, noise.clamp(-_LATENT_LIMIT, _LATENT_LIMIT)))

    def perturb_actions(self, seen: Tensor, unit: Tensor, *, use_target: bool = False) -> Tensor:
        """`unit` perturbed by at most `max_perturbation` `[n, a]`, to increase the critics' values."""
        by = (self.slow if use_target else self.perturbation)(torch.cat((seen, unit), dim=1))
        return (unit + self.max_perturbation * torch.tanh(by)).clamp(-1.0, 1.0)

    def numpy_policy(self) -> NumpyPolicy:
        decoder, perturbation = self.generator.decoder.to_numpy(), self.perturbation.to_numpy()
        return _best_of_samples_policy(
            self, _VaeProposer(decoder, perturbation, self.max_perturbation, _LATENT_LIMIT), self.latent_size
        )

    def extras(self) -> Mapping[str, Any]:
        return {"reach": self.max_perturbation, "samples": self.samples}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, max_perturbation=float(extras["reach"]), samples=int(extras["samples"]))


class BearPolicy(ControlPolicy):
    """A generator of logged actions, a squashed Gaussian, twin critics with target networks, and the multiplier of the
    support constraint; acts by the best of `samples` draws (BEAR, Kumar et al., 2019).
    """

    kind = "support_constrained"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, samples: int) -> None:
        super().__init__(spaces, network)
        size, self.action_size, self.samples = spaces.inputs.size, _require_finite_box(spaces, "BEAR").size, samples
        self.generator = _ActionVae(size, self.action_size, network, seed=seed)
        self.actor = Mlp(size, 2 * self.action_size, network, seed=seed, stream="actor", gain=0.01)
        self.critics = _twin_critics(spaces, network, seed=seed)
        self.targets = _twin_critics(spaces, network, seed=seed).requires_grad_(requires_grad=False)
        self.log_multiplier = nn.Parameter(torch.zeros(1))

    @property
    def latent_size(self) -> int:
        """Dimensions of a code."""
        return self.generator.latent_size

    def sample_pre_tanh(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised actions before tanh `[n, m, a]`, from standard normal `noise` `[n, m, a]`."""
        mean, log_std = self.actor(seen).chunk(2, dim=1)
        return mean[:, None] + log_std.clamp(*LOG_STD_RANGE).exp()[:, None] * noise

    @torch.no_grad()
    def sample_behaviour_pre_tanh(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Samples of the behaviour model before tanh `[n, m, a]`, from `noise` `[n, m, latent]`, without gradient."""
        count = noise.shape[1]
        codes = noise.clamp(-_LATENT_LIMIT, _LATENT_LIMIT).flatten(0, 1)
        return self.generator.decode_pre_tanh(seen.repeat_interleave(count, dim=0), codes).view(len(seen), count, -1)

    def numpy_policy(self) -> NumpyPolicy:
        return _best_of_samples_policy(
            self, _SquashedGaussianProposer(self.actor.to_numpy(), LOG_STD_RANGE), self.action_size
        )

    def extras(self) -> Mapping[str, Any]:
        return {"samples": self.samples}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, samples=int(extras["samples"]))


def _best_of_samples_policy(
    policy: BcqPolicy | BearPolicy, proposer: _ActionProposer, noise_size: int
) -> _NumpyBestOfSamplesPolicy:
    """Policy that samples several actions and takes the first critic's best."""
    return _NumpyBestOfSamplesPolicy(
        proposer=proposer,
        critic=as_mlps(policy.critics)[0].to_numpy(),
        inputs=policy.spaces.inputs,
        actions=policy.spaces.box,
        samples=policy.samples,
        noise_size=noise_size,
    )
