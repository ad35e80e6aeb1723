"""Known reward functions, which a planner need not learn.

Rewards of environments of Gymnasium and hone, on torch tensors, for many simulated steps at once.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

RewardFunctionOfStep: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Observations `[..., O]`, actions `[..., A]` in environment units, next observations `[..., O]` -> rewards `[...]`."""


def pendulum_reward(seen: Tensor, action: Tensor, after: Tensor) -> Tensor:
    """Gymnasium's Pendulum: -(angle^2 + 0.1 speed^2 + 0.001 torque^2), of the state before the step."""
    del after
    angle = torch.atan2(seen[..., 1], seen[..., 0])
    torque = action[..., 0].clamp(-2.0, 2.0)
    return -(angle.square() + 0.1 * seen[..., 2].square() + 0.001 * torque.square())


def cartpole_swing_up_reward(seen: Tensor, action: Tensor, after: Tensor) -> Tensor:
    """hone's CartPoleSwingUpEnv: exp(-(distance of the tip to its goal / length)^2), of the state after the step."""
    del seen, action
    length = 0.6
    sideways, below = after[..., 0] - length * after[..., 3], length * (1.0 - after[..., 2])
    return torch.exp(-(sideways.square() + below.square()) / length**2)


REWARD_FUNCTIONS: dict[str, RewardFunctionOfStep] = {
    "pendulum": pendulum_reward,
    "cartpole_swing_up": cartpole_swing_up_reward,
}
