"""Model-predictive control: candidate plans are simulated in a learned model and refined; the first action is taken.

An ensemble of dynamics models, planners over it, and the policy that is saved with one. The model is trained by
`recipes/off_policy/pets.py`. All candidates, particles and environments go through the networks in one batch per step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import BoxActions, Floats, MlpConfig, PolicySpaces, orthogonal
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.core.random import generator

# ---------------------------------------------------------------------------------------------------- ensemble dynamics
# Learned dynamics: an ensemble of networks that predict the next observation and their uncertainty (Chua et al., 2018).
#
# A member maps (observation, action), standardised, to a normal distribution of (change of the observation, reward),
# standardised. The logarithm of its variance is softly clamped to learned bounds.


_LOG_VARIANCE_RANGE = (-10.0, 0.5)
"""Initial values of the learned bounds, in units of the standardised targets."""


class DynamicsEnsemble(nn.Module):
    """`members` MLPs as one batched module; weights `[K, in, out]`."""

    def __init__(self, members: int, *, observation_size: int, actions: int, network: MlpConfig, seed: int) -> None:
        super().__init__()
        self.members, self.observation_size, self.actions = members, observation_size, actions
        self.relu = network.activation == "relu"
        sizes = [observation_size + actions, *network.hidden, 2 * (observation_size + 1)]
        self.weights = nn.ParameterList(
            torch.stack(
                [
                    torch.from_numpy(orthogonal(b, a, seed=seed, stream=f"ensemble/{k}/{layer}").T.copy())
                    for k in range(members)
                ]
            )
            for layer, (a, b) in enumerate(pairwise(sizes))
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, size) for size in sizes[1:])
        self.bounds = nn.Parameter(torch.tensor(_LOG_VARIANCE_RANGE)[:, None].repeat(1, observation_size + 1))
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
    def for_planning(self) -> "_PlanningDynamics":
        """The same function on raw observations and actions, with copies of the weights."""
        weights = [weight.detach().clone() for weight in self.weights]
        biases = [bias.detach().clone() for bias in self.biases]
        mean, scale = self.get_buffer("input_mean"), self.get_buffer("input_scale")
        weights[0] = weights[0] / scale[:, None]
        biases[0] = biases[0] - (mean @ weights[0]).unsqueeze(1)
        size, out = self.observation_size + 1, self.get_buffer("output_scale")
        weights[-1][:, :, :size] *= out
        biases[-1][:, :, :size] = biases[-1][:, :, :size] * out + self.get_buffer("output_mean")
        return _PlanningDynamics(
            observation_weight=weights[0][:, : self.observation_size].contiguous(),
            action_weight=weights[0][:, self.observation_size :].contiguous(),
            first_bias=biases[0],
            other_layers=tuple(zip(weights[1:], biases[1:], strict=True)),
            log_variance_bounds=self.bounds.detach()[:, : self.observation_size].clone(),
            change_scale=out[: self.observation_size].clone(),
            relu=self.relu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanningDynamics:
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


# ----------------------------------------------------------------------------------------------------- reward functions
# Known reward functions, which a planner need not learn.
#
# Rewards of environments of Gymnasium and hone, on torch tensors, for many simulated steps at once.


_RewardFunctionOfStep: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Observations `[..., O]`, actions `[..., A]` in environment units, next observations `[..., O]` -> rewards `[...]`."""


def _pendulum_reward(seen: Tensor, action: Tensor, after: Tensor) -> Tensor:
    """Gymnasium's Pendulum: -(angle^2 + 0.1 speed^2 + 0.001 torque^2), of the state before the step."""
    del after
    angle = torch.atan2(seen[..., 1], seen[..., 0])
    torque = action[..., 0].clamp(-2.0, 2.0)
    return -(angle.square() + 0.1 * seen[..., 2].square() + 0.001 * torque.square())


def _cartpole_swing_up_reward(seen: Tensor, action: Tensor, after: Tensor) -> Tensor:
    """hone's CartPoleSwingUpEnv: exp(-(distance of the tip to its goal / length)^2), of the state after the step."""
    del seen, action
    length = 0.6
    sideways, below = after[..., 0] - length * after[..., 3], length * (1.0 - after[..., 2])
    return torch.exp(-(sideways.square() + below.square()) / length**2)


REWARD_FUNCTIONS: dict[str, _RewardFunctionOfStep] = {
    "pendulum": _pendulum_reward,
    "cartpole_swing_up": _cartpole_swing_up_reward,
}


# ------------------------------------------------------------------------------------------------------------------ mpc


Array = NDArray[np.generic]
_INITIAL_PLAN_STEPS = 8
"""One in so many of the first candidates is drawn around the middle of the box, not around the last plan."""
_KEY_RANGE = 1 << 24
"""Integers that float32 represents exactly."""


class SampledPlanning(Config):
    """Planning by simulated plans, which are sampled around the best ones so far."""

    horizon: int = Field(default=20, ge=1)
    """Simulated steps."""
    particles: int = Field(default=1, ge=1)
    """Particles per plan and member."""
    propagation: Literal["ts_inf", "ts_1"] = "ts_inf"
    """`ts_inf`: a particle stays with its member of the ensemble. `ts_1`: it changes member at every step."""
    correlation: float = Field(default=0.6, ge=0, lt=1)
    """Correlation of the samples of neighbouring steps (Pinneri et al., 2020): independent ones cancel out over time.
    """
    width: float = Field(default=0.7, gt=0)
    """Standard deviation of the first samples, as a share of half the range of an action."""


class CemPlanning(SampledPlanning):
    """Cross-entropy method: a normal distribution of plans, refitted to its best samples (Rubinstein, 1999)."""

    kind: Literal["cem"] = "cem"
    """Selects this alternative."""
    candidates: int = Field(default=64, ge=2)
    """Plans per iteration."""
    elites: int = Field(default=8, ge=1)
    """Number of best plans that the distribution is fitted to."""
    iterations: int = Field(default=3, ge=1)
    """Number of refits."""


class MppiPlanning(SampledPlanning):
    """Model predictive path integral control: the mean of all samples, weighted by exp(return / temperature) (Williams
    et al., 2017)."""

    kind: Literal["mppi"]
    """Selects this alternative."""
    candidates: int = Field(default=100, ge=2)
    """Plans per iteration."""
    iterations: int = Field(default=2, ge=1)
    """Number of updates of the mean."""
    temperature: float = Field(default=0.3, gt=0)
    """Temperature in standard deviations of the candidates' returns: low follows the best, high averages."""


PlanningConfig = Annotated[CemPlanning | MppiPlanning, Field(discriminator="kind")]
_PLANNING_ADAPTER: TypeAdapter[CemPlanning | MppiPlanning] = TypeAdapter(PlanningConfig)


class ModelPlanner(ControlPolicy):
    """A dynamics ensemble with a planner. Until the ensemble has been trained, actions are random."""

    kind: ClassVar[str] = "model_planner"

    def __init__(
        self,
        spaces: PolicySpaces,
        network: MlpConfig,
        *,
        seed: int,
        members: int = 5,
        planning: CemPlanning | MppiPlanning | None = None,
        reward: str | None = None,
    ) -> None:
        super().__init__(spaces, network)
        actions = spaces.actions
        if not isinstance(actions, BoxActions) or not actions.is_finite or spaces.inputs.one_hot:
            seen = "numbered states" if spaces.inputs.one_hot else f"observations of {spaces.inputs.size} numbers"
            raise ConfigError(
                f"a planner in a learnt world needs a box of observations and a box of actions with finite bounds, "
                f"got {seen} and {actions}"
            )
        if reward is not None and reward not in REWARD_FUNCTIONS:
            raise ConfigError(f"reward {reward!r} is not known; known: {', '.join(REWARD_FUNCTIONS)}")
        self.planning, self.reward = planning or CemPlanning(), reward
        size = spaces.inputs.size
        self.ensemble = DynamicsEnsemble(
            members, observation_size=size, actions=actions.size, network=network, seed=seed
        )

    def numpy_policy(self) -> "MpcPolicy":
        world = ImaginedRollouts(dynamics=self.ensemble.for_planning(), bounds=self.spaces.box, reward=self.reward)
        return MpcPolicy(rollouts=world, planning=self.planning, is_fitted=self.ensemble.is_fitted)

    def extras(self) -> Mapping[str, Any]:
        return {"members": self.ensemble.members, "planning": self.planning.model_dump(), "reward": self.reward}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(
            spaces,
            network,
            seed=0,
            members=extras["members"],
            planning=_PLANNING_ADAPTER.validate_python(extras["planning"]),
            reward=extras["reward"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaginedRollouts:
    """Simulated rollouts in a learned model."""

    dynamics: _PlanningDynamics
    bounds: BoxActions
    reward: str | None
    """Name of a known reward function; None: the learned reward."""

    @torch.no_grad()
    def plan_returns(self, seen: Tensor, plans: Tensor, noise: Tensor, *, resample_members: bool) -> Tensor:
        """Returns of plans `[B, C, H, A]` in [-1, 1] from `seen` `[B, O]` on, mean over particles -> `[B, C]`.

        `noise` `[B, H, K, p, O]`, standard normal, is the same for all plans, so that differences are due to actions
        (common random numbers). `resample_members`: particles change members at every step.
        """
        environments, candidates, horizon, size = plans.shape
        members, particles = noise.shape[2:4]
        count = environments * candidates
        actions = self.scale_to_box(plans).permute(2, 0, 1, 3).reshape(horizon, count, size)
        drive = self.dynamics.action_features(actions)
        now = seen.repeat_interleave(candidates, dim=0).expand(members, particles, count, -1).contiguous()
        luck = noise.permute(1, 2, 3, 0, 4)  # [H, K, p, B, O]
        total = seen.new_zeros(count)
        for step in range(horizon):
            mean, spread, paid = self.dynamics.predict_change(now, drive[step])
            drawn = spread.view(members, particles, environments, candidates, -1) * luck[step].unsqueeze(3)
            after = now + mean + drawn.view_as(mean)
            if self.reward is not None:
                paid = REWARD_FUNCTIONS[self.reward](now, actions[step], after)
            total += paid.mean(dim=(0, 1))
            now = after.roll(1, dims=0) if resample_members else after
        return total.view(environments, candidates)

    def scale_to_box(self, plans: Tensor) -> Tensor:
        """Plans in [-1, 1] -> actions within the box."""
        low, high = plans.new_tensor(self.bounds.low), plans.new_tensor(self.bounds.high)
        return low + 0.5 * (high - low) * (plans + 1.0)


@dataclass
class MpcPolicy:
    """Plans before every decision, starting from the rest of the last plan; `best` plans as `decide` does, with random
    numbers of its own.
    """

    rollouts: ImaginedRollouts
    planning: CemPlanning | MppiPlanning
    is_fitted: bool
    plan: Tensor | None = None
    """`[B, H, A]` in [-1, 1]: the last plan."""
    decisions: int = field(default=0)
    """Calls of `best`."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Two integers that seed a decision's samples."""
        return draws.integers(0, _KEY_RANGE, (*shape, 2)).astype(np.float32)

    def decide(self, seen: Array, noise: Floats, mask: NDArray[np.bool_] | None = None) -> tuple[Array, Floats]:
        """Log-probabilities are NaN: the density of a plan is not known."""
        del mask
        first = self._plan_actions(seen, noise) if self.is_fitted else self._at_random(noise)
        chosen = self.rollouts.scale_to_box(first).numpy().reshape(-1, *self.rollouts.bounds.shape)
        return chosen, np.full(len(seen), np.nan, np.float32)

    def best(self, seen: Array, mask: NDArray[np.bool_] | None = None) -> Array:
        del mask
        self.decisions += 1
        keys = generator(0, "best", self.decisions).integers(0, _KEY_RANGE, (len(seen), 2))
        return self.decide(seen, keys.astype(np.float32))[0]

    def _at_random(self, noise: Floats) -> Tensor:
        drawn = [_draws(row).uniform(-1.0, 1.0, self.rollouts.bounds.size) for row in noise]
        return torch.from_numpy(np.stack(drawn).astype(np.float32))

    @torch.no_grad()
    def _plan_actions(self, seen: Array, noise: Floats) -> Tensor:
        planning, count = self.planning, len(seen)
        flat = torch.from_numpy(np.ascontiguousarray(seen.reshape(count, -1), dtype=np.float32))
        draws, luck = self._drawn(noise)
        mean, fresh = self._begin(count), max(1, planning.candidates // _INITIAL_PLAN_STEPS)
        std = torch.full_like(mean, planning.width)
        for iteration in range(planning.iterations):
            middle = mean.unsqueeze(1).repeat(1, planning.candidates, 1, 1)
            if iteration == 0:
                middle[:, :fresh] = 0.0
            middle[:, fresh] = mean
            step = draws[:, iteration] * std.unsqueeze(1)
            step[:, fresh] = 0.0  # the mean itself is among them
            plans = (middle + step).clamp_(-1.0, 1.0)
            worth = self.rollouts.plan_returns(flat, plans, luck, resample_members=planning.propagation == "ts_1")
            mean, std = refit_plan_distribution(planning, plans, worth, std)
        self.plan = mean
        return mean[:, 0]

    def _begin(self, count: int) -> Tensor:
        """The rest of the last plan, with zeros at its end; zeros without a plan for as many environments."""
        shape = (count, self.planning.horizon, self.rollouts.bounds.size)
        if self.plan is None or self.plan.shape != shape:
            return torch.zeros(shape)
        return torch.cat((self.plan[:, 1:], torch.zeros_like(self.plan[:, :1])), dim=1)

    def _drawn(self, noise: Floats) -> tuple[Tensor, Tensor]:
        """Standard normal samples for plans `[B, iterations, C, H, A]`, correlated along H, and for particles `[B, H,
        K, p, O]`.
        """
        planning, world = self.planning, self.rollouts.dynamics
        members, size = world.observation_weight.shape[:2]
        plans = (planning.iterations, planning.candidates, planning.horizon, self.rollouts.bounds.size)
        worlds = (planning.horizon, members, planning.particles, size)
        pairs = [
            (draws.standard_normal(plans, np.float32), draws.standard_normal(worlds, np.float32))
            for draws in map(_draws, noise)
        ]
        steps = np.stack([plan for plan, _ in pairs])
        kept, new = planning.correlation, float(np.sqrt(1.0 - planning.correlation**2))
        for step in range(1, planning.horizon):
            steps[..., step, :] = kept * steps[..., step - 1, :] + new * steps[..., step, :]
        return torch.from_numpy(steps), torch.from_numpy(np.stack([luck for _, luck in pairs]))


def refit_plan_distribution(
    planning: CemPlanning | MppiPlanning, plans: Tensor, worth: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `[B, H, A]` of the next samples, given plans `[B, C, H, A]` with returns `[B, C]`."""
    if isinstance(planning, MppiPlanning):
        scale = planning.temperature * worth.std(dim=1, keepdim=True).clamp_min(1e-6)
        weight = torch.softmax((worth - worth.amax(dim=1, keepdim=True)) / scale, dim=1)
        return torch.einsum("bc,bcha->bha", weight, plans), std
    best = worth.topk(min(planning.elites, worth.shape[1]), dim=1).indices
    elite = plans.gather(1, best[:, :, None, None].expand(-1, -1, *plans.shape[2:]))
    return elite.mean(dim=1), elite.std(dim=1, correction=0).clamp_min(0.02)


def _draws(key: Floats) -> np.random.Generator:
    first, second = (int(part) for part in cast("list[float]", key.tolist()))
    return generator(first, "plan", second)
