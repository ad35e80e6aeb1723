"""A deterministic policy for a box of actions, with critics and target networks of both (DDPG, TD3, TD3+BC).

The networks, and the numpy form that adds exploration noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from hone.control.networks.actor_critic import ControlPolicy, as_mlps
from hone.control.networks.mlp import BoxActions, Floats, Mlp, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import Array, BoxNetworkPolicy, scale_to_box
from hone.core.errors import ConfigError


class DeterministicActorCritic(ControlPolicy):
    """tanh of a network, scaled to the box; `critics` values of observation and action; target networks of all.

    Two critics are TD3's (Fujimoto et al., 2018), one is DDPG's (Lillicrap et al., 2016).
    """

    kind = "deterministic_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, critics: int = 2) -> None:
        super().__init__(spaces, network)
        if not isinstance(spaces.actions, BoxActions) or not spaces.actions.is_finite:
            raise ConfigError(f"a deterministic policy needs a box of actions with finite bounds, got {spaces.actions}")
        size, actions = spaces.inputs.size, spaces.actions.size
        streams = [f"critic{number}" for number in range(1, critics + 1)]
        self.actor = Mlp(size, actions, network, seed=seed, stream="actor", gain=0.01)
        self.critics = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=name) for name in streams)
        self.slow_actor = Mlp(size, actions, network, seed=seed, stream="actor", gain=0.01)
        self.slow_critics = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=name) for name in streams)
        for slow in (self.slow_actor, self.slow_critics):
            slow.requires_grad_(requires_grad=False)
        self.register_buffer("middle", torch.from_numpy(spaces.actions.middle), persistent=False)
        self.register_buffer("reach", torch.from_numpy(spaces.actions.reach), persistent=False)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return self.get_buffer("reach").numel()

    def to_unit_box(self, chosen: Tensor) -> Tensor:
        """Environment actions `[n, *action]` -> `[n, actions]` in [-1, 1], the scale of the critics."""
        return (chosen.reshape(len(chosen), -1) - self.get_buffer("middle")) / self.get_buffer("reach")

    def actions_of(self, seen: Tensor) -> Tensor:
        """Actions `[n, actions]` in [-1, 1]."""
        return torch.tanh(self.actor(self.spaces.inputs.tensor(seen)))

    @torch.no_grad()
    def target_actions(self, seen: Tensor) -> Tensor:
        """Actions `[n, actions]` in [-1, 1] of the target network."""
        return torch.tanh(self.slow_actor(self.spaces.inputs.tensor(seen)))

    def q_values(self, seen: Tensor, unit: Tensor) -> list[Tensor]:
        """Each critic's values `[n]`."""
        x = torch.cat((self.spaces.inputs.tensor(seen), unit), dim=1)
        return [critic(x).squeeze(-1) for critic in as_mlps(self.critics)]

    def first_q_value(self, seen: Tensor, unit: Tensor) -> Tensor:
        """The first critic's values `[n]`; gradients reach the actions only."""
        x = torch.cat((self.spaces.inputs.tensor(seen), unit), dim=1)
        return as_mlps(self.critics)[0].forward_frozen(x).squeeze(-1)

    @torch.no_grad()
    def target_q_values(self, seen: Tensor, unit: Tensor) -> list[Tensor]:
        """Each target critic's values `[n]`."""
        x = torch.cat((self.spaces.inputs.tensor(seen), unit), dim=1)
        return [critic(x).squeeze(-1) for critic in as_mlps(self.slow_critics)]

    def numpy_policy(self) -> "NumpyDeterministicPolicy":
        return NumpyDeterministicPolicy(
            network=self.actor.to_numpy(), inputs=self.spaces.inputs, actions=self.spaces.box
        )

    def extras(self) -> Mapping[str, Any]:
        return {"critics": len(self.critics)}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, critics=int(extras["critics"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyDeterministicPolicy(BoxNetworkPolicy):
    """tanh of the outputs, scaled to the box; exploration noise is added before the scaling."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Zeros: without added noise it does not explore."""
        del draws
        return np.zeros((*shape, self.actions.size), np.float32)

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        """`noise` `[n, actions]` is added on the scale [-1, 1], and clipped there: the action has no density."""
        unit = np.clip(np.tanh(self.network(self.inputs.array(seen))) + noise, -1.0, 1.0)
        return scale_to_box(unit, self.actions), np.full(len(unit), math.nan, np.float32)

    def best(self, seen: Array) -> Array:
        return scale_to_box(np.tanh(self.network(self.inputs.array(seen))), self.actions)
