"""Action values of a team: one network of values for each seat, and a mixer of the values of the actions taken.

VDN adds them (Sunehag et al., 2018). QMIX mixes them by a network whose weights are functions of the state of the whole
match and not negative (Rashid et al., 2018), so that the team's value rises with each of them and the best joint action
is that of every seat's best: the mixer is needed for learning only.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import Mlp, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import NumpyGreedyPolicy


class MonotonicMixer(nn.Module):
    """Q_tot = elu(q W1(s) + b1(s)) w2(s) + v(s) with W1, w2 >= 0, made by networks of the state (Rashid et al.,
    2018)."""

    def __init__(self, seats: int, state_size: int, *, units: int, seed: int) -> None:
        super().__init__()
        self.seats, self.units = seats, units
        plain, deep = MlpConfig(hidden=[]), MlpConfig(hidden=[units], activation="relu")
        self.first = Mlp(state_size, seats * units, plain, seed=seed, stream="mixer/first")
        self.first_bias = Mlp(state_size, units, plain, seed=seed, stream="mixer/first_bias")
        self.second = Mlp(state_size, units, plain, seed=seed, stream="mixer/second")
        self.value = Mlp(state_size, 1, deep, seed=seed, stream="mixer/value")

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Values of the seats' actions `[n, S]`, states `[n, Z]` -> values of the team `[n]`."""
        first = self.first(state).abs().view(len(values), self.seats, self.units)
        hidden = F.elu(torch.bmm(values[:, None], first).squeeze(1) + self.first_bias(state))
        return (hidden * self.second(state).abs()).sum(dim=1) + self.value(state).squeeze(1)


class TeamValues(ControlPolicy):
    """A network of action values for every seat, with a target network, and a mixer; acts greedily, each seat by its
    own observation. Joint observations are the rows of all seats, then the state of the whole match."""

    kind = "team_values"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, seats: int, state_size: int, mixer_units: int
    ) -> None:
        """`mixer_units` 0: the values are added."""
        super().__init__(spaces, network)
        self.team_size, self.state_size, self.mixer_units = seats, state_size, mixer_units
        self.values, self.mixer = self._networks(seed)
        self.target_values, self.target_mixer = self._networks(seed)
        for target in (self.target_values, self.target_mixer):
            target.requires_grad_(requires_grad=False)

    def _networks(self, seed: int) -> tuple[Mlp, nn.Module]:
        values = Mlp(self.spaces.inputs.size, self.spaces.choices.count, self.network, seed=seed, stream="values")
        if not self.mixer_units:
            return values, nn.Identity()
        return values, MonotonicMixer(self.team_size, self.state_size, units=self.mixer_units, seed=seed)

    def seat_values(self, joint: Tensor, mask: Tensor | None, *, target: bool = False) -> Tensor:
        """`[n, S, choices]` values of each seat's actions; -inf where `mask` `[n, S * choices]` says illegal."""
        size, count = self.spaces.inputs.size, self.spaces.choices.count
        rows = joint[:, : self.team_size * size].reshape(-1, size)
        network = self.target_values if target else self.values
        values = network(self.spaces.inputs.tensor(rows)).view(len(joint), self.team_size, count)
        return values if mask is None else values.masked_fill(~mask.view_as(values), -torch.inf)

    def team_value(self, values: Tensor, joint: Tensor, *, target: bool = False) -> Tensor:
        """Value of the team `[n]` from those of the seats' actions `[n, S]`: their sum, or the mixer's."""
        if not self.mixer_units:
            return values.sum(dim=1)
        mixer = self.target_mixer if target else self.mixer
        return mixer(values, joint[:, self.team_size * self.spaces.inputs.size :].to(values.dtype))

    def greedy_policy(self, epsilon: float = 0.0) -> NumpyGreedyPolicy:
        """The best action of each seat, or with probability `epsilon` a random one."""
        return NumpyGreedyPolicy(
            network=self.values.to_numpy(), inputs=self.spaces.inputs, actions=self.spaces.choices, epsilon=epsilon
        )

    def numpy_policy(self) -> NumpyGreedyPolicy:
        return self.greedy_policy()

    def extras(self) -> Mapping[str, Any]:
        return {"seats": self.team_size, "state_size": self.state_size, "mixer_units": self.mixer_units}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(
            spaces, network, seed=0, **{name: int(extras[name]) for name in ("seats", "state_size", "mixer_units")}
        )
