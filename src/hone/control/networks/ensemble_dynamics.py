"""Learned dynamics: an ensemble of networks that predict the next observation and their uncertainty (Chua et al.,
2018).

The ensemble in torch with gradient, and its form for planning, where normalisation is folded into the weights. Planning
is in `mpc.py`. The K members are one batched module, because the cost of small networks is mostly overhead per call.

A member maps (observation, action), standardised, to a normal distribution of (change of the observation, reward),
standardised. The logarithm of its variance is softly clamped to learned bounds.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.mlp import Floats, MlpConfig, orthogonal

LOG_VARIANCE_RANGE = (-10.0, 0.5)
"""Initial values of the learned bounds, in units of the standardised targets."""


class DynamicsEnsemble(nn.Module):
    """`members` MLPs as one batched module; weights `[K, in, out]`."""

    def __init__(self, members: int, *, observation_size: int, actions: int, network: MlpConfig, seed: int) -> None:
        super().__init__()
        self.members, self.observation_size, self.actions = members, observation_size, actions
        self.relu = network.activation == "relu"
        sizes = [observation_size + actions, *network.hidden, 2 * (observation_size + 1)]
        self.weights = nn.ParameterList(
            torch.stack([torch.from_numpy(_weight(a, b, seed, f"{k}/{layer}")) for k in range(members)])
            for layer, (a, b) in enumerate(pairwise(sizes))
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, size) for size in sizes[1:])
        self.bounds = nn.Parameter(torch.tensor(LOG_VARIANCE_RANGE)[:, None].repeat(1, observation_size + 1))
        """`[2, D]` lower and upper bound of the log variance."""
        self.register_buffer("measured", torch.zeros(1, dtype=torch.int64))
        for name, size in (("input", observation_size + actions), ("output", observation_size + 1)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised inputs `[K, n, observation + actions]` -> mean and log variance `[K, n, observation + 1]`,
        standardised.
        """
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight)
            x = x.relu_() if self.relu else x.tanh_()
        mean, raw = torch.baddbmm(last[1], x, last[0]).chunk(2, dim=2)
        return mean, soft_clamp(raw, self.bounds)

    def standardise_inputs(self, seen: Tensor, action: Tensor) -> Tensor:
        """`[..., observation]`, `[..., actions]` -> `[..., observation + actions]`."""
        return (torch.cat((seen, action), dim=-1) - self.get_buffer("input_mean")) / self.get_buffer("input_scale")

    def standardise_targets(self, seen: Tensor, after: Tensor, reward: Tensor) -> Tensor:
        """Observation, next observation and reward -> `[..., observation + 1]`."""
        change = torch.cat((after - seen, reward.unsqueeze(-1)), dim=-1)
        return (change - self.get_buffer("output_mean")) / self.get_buffer("output_scale")

    @torch.no_grad()
    def set_statistics(self, count: int, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor, Tensor]) -> None:
        """Set mean and scale of `[observation + actions]` inputs and `[observation + 1]` outputs, from `count`
        transitions.
        """
        self.get_buffer("measured").fill_(count)
        for name, (mean, scale) in (("input", inputs), ("output", outputs)):
            self.get_buffer(f"{name}_mean").copy_(mean)
            self.get_buffer(f"{name}_scale").copy_(scale)

    @property
    def is_fitted(self) -> bool:
        """True if statistics have been set."""
        return int(self.get_buffer("measured")) > 0

    @torch.no_grad()
    def for_planning(self) -> "PlanningDynamics":
        """The same function on raw observations and actions, with copies of the weights."""
        weights = [weight.detach().clone() for weight in self.weights]
        biases = [bias.detach().clone() for bias in self.biases]
        mean, scale = self.get_buffer("input_mean"), self.get_buffer("input_scale")
        weights[0] = weights[0] / scale[:, None]
        biases[0] = biases[0] - (mean @ weights[0]).unsqueeze(1)
        size, out = self.observation_size + 1, self.get_buffer("output_scale")
        weights[-1][:, :, :size] *= out
        biases[-1][:, :, :size] = biases[-1][:, :, :size] * out + self.get_buffer("output_mean")
        return PlanningDynamics(
            observation_weight=weights[0][:, : self.observation_size].contiguous(),
            action_weight=weights[0][:, self.observation_size :].contiguous(),
            first_bias=biases[0],
            other_layers=tuple(zip(weights[1:], biases[1:], strict=True)),
            log_variance_bounds=self.bounds.detach()[:, : self.observation_size].clone(),
            change_scale=out[: self.observation_size].clone(),
            relu=self.relu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningDynamics:
    """An ensemble for planning on raw observations and actions."""

    observation_weight: Tensor
    """`[K, observation, h]` first layer."""
    action_weight: Tensor
    """`[K, actions, h]`"""
    first_bias: Tensor
    """`[K, 1, h]`"""
    other_layers: tuple[tuple[Tensor, Tensor], ...]
    """Weight `[K, in, out]` and bias `[K, 1, out]` of the other layers."""
    log_variance_bounds: Tensor
    """`[2, observation]`"""
    change_scale: Tensor
    """`[observation]` scale of a standardised change."""
    relu: bool

    def action_features(self, plans: Tensor) -> Tensor:
        """First-layer contribution of the actions `[H, m, actions]`, for all steps at once -> `[H, K, m, h]`."""
        return torch.matmul(plans.unsqueeze(1), self.action_weight) + self.first_bias

    def predict_change(self, seen: Tensor, drive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[K, p, m, observation]` particles, `[K, m, h]` -> mean and standard deviation of the change, shaped like the
        particles, and the mean reward `[K, p, m]`.
        """
        members, particles, count, size = seen.shape
        x = torch.bmm(seen.reshape(members, particles * count, size), self.observation_weight)
        x = x.view(members, particles, count, -1).add_(drive.unsqueeze(1)).view(members, particles * count, -1)
        for weight, bias in self.other_layers:
            x = x.relu_() if self.relu else x.tanh_()
            x = torch.baddbmm(bias, x, weight)
        x = x.view(members, particles, count, -1)
        spread = (
            (0.5 * soft_clamp(x[..., size + 1 : 2 * size + 1], self.log_variance_bounds)).exp_().mul_(self.change_scale)
        )
        return x[..., :size], spread, x[..., size]


def soft_clamp(raw: Tensor, bounds: Tensor) -> Tensor:
    """`raw` `[..., D]` softly clamped to `bounds` `[2, D]`: greatest - softplus(greatest - raw), and the same from
    below.
    """
    least, greatest = bounds[0], bounds[1]
    raw = greatest - F.softplus(greatest - raw)
    return least + F.softplus(raw - least)


def _weight(inputs: int, outputs: int, seed: int, stream: str) -> Floats:
    return orthogonal(outputs, inputs, seed=seed, stream=f"ensemble/{stream}").T.copy()
