"""Networks that learn from a log: twin critics beside a value, a generator of logged actions, a model of the log.

Belongs here: policies of offline recipes, in torch. Deciding by them in numpy is `acting_logged.py`; what holds them to
the log is in `objectives`. They take observations as `Inputs` encodes them, `[n, size]`, and boxes of actions scaled to
[-1, 1]: a log is encoded once, not once per network and update.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from hone.core.errors import ConfigError
from hone.models.control.actor_critic import Policy, categorical, gaussian, mlps
from hone.models.control.mlp import Bounds, Choices, Mlp, MlpConfig, Spaces
from hone.models.control.numpy_offline import ActAdmissible, ActBestOf, ActBounded, Generated, Proposes, Squashed
from hone.models.control.numpy_policies import LOG_STD_RANGE, ActCategorical, Acting

LATENT_LIMIT = 0.5
"""Latent codes are drawn no further from 0 than this when actions are generated (BCQ, Fujimoto et al., 2019)."""
CODE_LOG_STD = (-4.0, 15.0)
"""Bounds of the encoder's log standard deviation, as in BCQ's code."""
CLIPPED_STD = (-5.0, 2.0)
"""Bounds of a Gaussian policy's log standard deviation (IQL, Kostrikov et al., 2022)."""


def twins(spaces: Spaces, network: MlpConfig, *, seed: int) -> nn.ModuleList:
    """Two critics: a table of values of finite actions, or one value of an observation and a point of a box."""
    size, actions = spaces.inputs.size, spaces.actions
    shape = (size, actions.count) if isinstance(actions, Choices) else (size + actions.size, 1)
    return nn.ModuleList(Mlp(*shape, network, seed=seed, stream=f"critic{number}") for number in (1, 2))


def slow_twins(spaces: Spaces, network: MlpConfig, *, seed: int) -> nn.ModuleList:
    """The same two, which only ever follow others."""
    return twins(spaces, network, seed=seed).requires_grad_(requires_grad=False)


def worths(critics: nn.ModuleList, seen: Tensor, chosen: Tensor, *, frozen: bool = False) -> tuple[Tensor, Tensor]:
    """Both critics' values `[n]` of what was chosen: numbers `[n]` from 0, or points `[n, a]` in [-1, 1].

    `frozen` lets gradients through to the actions only.
    """
    if chosen.dim() == 1:
        first, second = (critic(seen).gather(1, chosen[:, None]) for critic in mlps(critics))
    else:
        x = torch.cat((seen, chosen), dim=1)
        first, second = (critic.frozen(x) if frozen else critic(x) for critic in mlps(critics))
    return first.squeeze(1), second.squeeze(1)


def first_worth(critics: nn.ModuleList, seen: Tensor, unit: Tensor) -> Tensor:
    """The first critic's value `[n]` of points of a box `[n, a]`, with gradients through to the actions only."""
    return mlps(critics)[0].frozen(torch.cat((seen, unit), dim=1)).squeeze(1)


def box_of(spaces: Spaces, what: str) -> Bounds:
    """Raises ConfigError unless actions are a box with finite bounds."""
    if not isinstance(spaces.actions, Bounds) or not spaces.actions.finite:
        raise ConfigError(f"{what} needs a box of actions with finite bounds, got {spaces.actions}")
    return spaces.actions


class ImplicitValues(Policy):
    """A policy, twin critics with slow copies, and a value of what is seen (IQL, Kostrikov et al., 2022).

    Finite actions: a softmax. A box: a Gaussian around tanh of the outputs, whose log standard deviation is one
    parameter per action.
    """

    kind = "implicit_values"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        actions, size = spaces.actions, spaces.inputs.size
        outputs = actions.count if isinstance(actions, Choices) else box_of(spaces, "a Gaussian within a box").size
        self.actor = Mlp(size, outputs, network, seed=seed, stream="actor", gain=0.01)
        self.critics = twins(spaces, network, seed=seed)
        self.targets = slow_twins(spaces, network, seed=seed)
        self.value = Mlp(size, 1, network, seed=seed, stream="value")
        self.log_std = None if isinstance(actions, Choices) else nn.Parameter(torch.zeros(outputs))

    def judge(self, seen: Tensor, chosen: Tensor) -> Tensor:
        """Log-probability (density) of what was chosen `[n]` nats."""
        outputs = self.actor(seen)
        if self.log_std is None:
            return categorical(outputs, chosen)[0]
        return gaussian(torch.tanh(outputs), self.log_std.clamp(*CLIPPED_STD), chosen)[0]

    def acting(self) -> Acting:
        actions, inputs, network = self.spaces.actions, self.spaces.inputs, self.actor.numpy()
        if isinstance(actions, Choices):
            return ActCategorical(network=network, inputs=inputs, actions=actions)
        assert self.log_std is not None
        log_std = self.log_std.detach().clamp(*CLIPPED_STD).cpu().numpy()
        return ActBounded(network=network, inputs=inputs, actions=actions, log_std=log_std)


class AdmissibleValues(Policy):
    """A value for every choice, a slow copy of it, and a model of the log; acts on the greatest value among the actions
    that are likely enough in the log (discrete BCQ, Fujimoto et al., 2019)."""

    kind = "admissible_values"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int, threshold: float) -> None:
        super().__init__(spaces, network)
        assert isinstance(spaces.actions, Choices), "a table of action values needs a finite set of actions"
        size, count = spaces.inputs.size, spaces.actions.count
        self.threshold = threshold
        self.values = Mlp(size, count, network, seed=seed, stream="values")
        self.target = Mlp(size, count, network, seed=seed, stream="values").requires_grad_(requires_grad=False)
        self.behaviour = Mlp(size, count, network, seed=seed, stream="behaviour", gain=0.01)

    def acting(self) -> Acting:
        actions = self.spaces.actions
        assert isinstance(actions, Choices)
        return ActAdmissible(
            network=self.values.numpy(),
            behaviour=self.behaviour.numpy(),
            inputs=self.spaces.inputs,
            actions=actions,
            threshold=self.threshold,
        )

    def extras(self) -> Mapping[str, Any]:
        return {"threshold": self.threshold}

    @classmethod
    def made(cls, spaces: Spaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, threshold=float(extras["threshold"]))


class Autoencoder(nn.Module):
    """A conditional variational autoencoder of logged actions in [-1, 1] (Kingma and Welling, 2014), with two latent
    dimensions per number of an action."""

    def __init__(self, size: int, actions: int, network: MlpConfig, *, seed: int) -> None:
        super().__init__()
        self.latent = 2 * actions
        self.encoder = Mlp(size + actions, 2 * self.latent, network, seed=seed, stream="encoder")
        self.decoder = Mlp(size + self.latent, actions, network, seed=seed, stream="decoder")

    def encode(self, seen: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation `[n, latent]` of an action's code."""
        mean, log_std = self.encoder(torch.cat((seen, unit), dim=1)).chunk(2, dim=1)
        return mean, log_std.clamp(*CODE_LOG_STD)

    def raw(self, seen: Tensor, code: Tensor) -> Tensor:
        """The action of a code `[n, a]`, before tanh."""
        return self.decoder(torch.cat((seen, code), dim=1))

    def rebuilt(self, seen: Tensor, unit: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An action encoded and decoded again `[n, a]`, with mean and log standard deviation of its code."""
        mean, log_std = self.encode(seen, unit)
        return torch.tanh(self.raw(seen, mean + log_std.exp() * noise)), mean, log_std


class BatchConstrained(Policy):
    """A generator of logged actions, a small perturbation of them, and twin critics, all but the generator with slow
    copies; acts on the best of `samples` perturbed actions (BCQ, Fujimoto et al., 2019)."""

    kind = "batch_constrained"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int, reach: float, samples: int) -> None:
        super().__init__(spaces, network)
        size, self.actions = spaces.inputs.size, box_of(spaces, "BCQ with a generator").size
        self.reach, self.samples = reach, samples
        self.generator = Autoencoder(size, self.actions, network, seed=seed)
        shape, wiring = (size + self.actions, self.actions), {"seed": seed, "gain": 0.01}
        self.perturbation = Mlp(*shape, network, stream="perturbation", **wiring)
        self.slow = Mlp(*shape, network, stream="perturbation", **wiring).requires_grad_(requires_grad=False)
        self.critics = twins(spaces, network, seed=seed)
        self.targets = slow_twins(spaces, network, seed=seed)

    @property
    def latent(self) -> int:
        """Numbers in a code."""
        return self.generator.latent

    @torch.no_grad()
    def generated(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Actions as in the log `[n, a]`: data."""
        return torch.tanh(self.generator.raw(seen, noise.clamp(-LATENT_LIMIT, LATENT_LIMIT)))

    def perturbed(self, seen: Tensor, unit: Tensor, *, slow: bool = False) -> Tensor:
        """`unit` moved by at most `reach` `[n, a]`, towards what the critics find better."""
        by = (self.slow if slow else self.perturbation)(torch.cat((seen, unit), dim=1))
        return (unit + self.reach * torch.tanh(by)).clamp(-1.0, 1.0)

    def acting(self) -> Acting:
        decoder, perturbation = self.generator.decoder.numpy(), self.perturbation.numpy()
        return best_of(self, Generated(decoder, perturbation, self.reach, LATENT_LIMIT), self.latent)

    def extras(self) -> Mapping[str, Any]:
        return {"reach": self.reach, "samples": self.samples}

    @classmethod
    def made(cls, spaces: Spaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, reach=float(extras["reach"]), samples=int(extras["samples"]))


class SupportConstrained(Policy):
    """A generator of logged actions, a squashed Gaussian, twin critics with slow copies, and the price of leaving the
    log; acts on the best of `samples` draws (BEAR, Kumar et al., 2019)."""

    kind = "support_constrained"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int, samples: int) -> None:
        super().__init__(spaces, network)
        size, self.actions, self.samples = spaces.inputs.size, box_of(spaces, "BEAR").size, samples
        self.generator = Autoencoder(size, self.actions, network, seed=seed)
        self.actor = Mlp(size, 2 * self.actions, network, seed=seed, stream="actor", gain=0.01)
        self.critics = twins(spaces, network, seed=seed)
        self.targets = slow_twins(spaces, network, seed=seed)
        self.log_multiplier = nn.Parameter(torch.zeros(1))

    @property
    def latent(self) -> int:
        """Numbers in a code."""
        return self.generator.latent

    def drawn(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised actions before tanh `[n, m, a]`, from standard normal `noise` `[n, m, a]`."""
        mean, log_std = self.actor(seen).chunk(2, dim=1)
        return mean[:, None] + log_std.clamp(*LOG_STD_RANGE).exp()[:, None] * noise

    @torch.no_grad()
    def imitated(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Actions as in the log, before tanh `[n, m, a]`, from `noise` `[n, m, latent]`: data."""
        count = noise.shape[1]
        codes = noise.clamp(-LATENT_LIMIT, LATENT_LIMIT).flatten(0, 1)
        return self.generator.raw(seen.repeat_interleave(count, dim=0), codes).view(len(seen), count, -1)

    def acting(self) -> Acting:
        return best_of(self, Squashed(self.actor.numpy(), LOG_STD_RANGE), self.actions)

    def extras(self) -> Mapping[str, Any]:
        return {"samples": self.samples}

    @classmethod
    def made(cls, spaces: Spaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, samples=int(extras["samples"]))


def best_of(policy: BatchConstrained | SupportConstrained, proposes: Proposes, width: int) -> ActBestOf:
    """The acting that proposes several actions and lets the first critic choose."""
    critic = mlps(policy.critics)[0].numpy()
    actions = policy.spaces.actions
    assert isinstance(actions, Bounds)
    return ActBestOf(
        proposes=proposes,
        critic=critic,
        inputs=policy.spaces.inputs,
        actions=actions,
        samples=policy.samples,
        width=width,
    )
