"""Losses of twin critics, and of actors that climb them, with their gradients written out: SAC and TD3 without
autograd's graph, which takes longer than the compiled products of 256 rows (benchmarks/RESULTS.md).

A phase's `objective_with_backward`: adds the gradient of sum(weight * loss) to the parameters' gradients, and returns
the terms as data. The losses themselves stand in the recipes and in `objectives/td.py`; tests hold both to one another.
Observations are numbers: an encoder that learns has its gradients by autograd.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from hone.control.networks.actor_critic import DeterministicActorCritic, SoftActorCritic, as_mlps, squashed_gaussian
from hone.control.networks.mlp import Mlp
from hone.control.networks.mlp_backward import backward, forward_with_tape, input_slope
from hone.control.networks.numpy_policies import LOG_STD_RANGE
from hone.control.rows import TransitionRows
from hone.objectives.td import ddpg_actor_loss, sac_actor_loss, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms

_LINEAR = -10.0
"""Below, softplus(-2 x) counts as -2 x (torch's threshold of 20)."""
P = TypeVar("P", SoftActorCritic, DeterministicActorCritic)


def twin_critics_with_backward(
    policy: P, rows: TransitionRows, *, value_target: Callable[[P, TransitionRows], Tensor]
) -> LossTerms:
    """`twin_critic_loss` of the chosen actions against `value_target` `[n]`: dL/dQ = Q - y."""
    x = torch.cat((policy.encode(rows.seen), policy.to_unit_box(rows.chosen)), dim=1)
    target, values = value_target(policy, rows), list[Tensor]()
    for critic in as_mlps(policy.critics):
        tape = forward_with_tape(critic, x)
        values.append(tape.out.squeeze(1))
        backward(critic, tape, ((values[-1] - target) * rows.weight)[:, None])
    return twin_critic_loss(values[0], values[1], target)


def sac_actor_with_backward(policy: SoftActorCritic, rows: TransitionRows, *, target_entropy: float) -> LossTerms:
    """`sac_actor_loss` and `temperature_loss` of actions u = tanh(x), x = mean + std * noise.

    With log pi = -noise^2 / 2 - log std - log(1 - u^2) + constants: d log pi / dx = 2 u, and dL/dx = alpha 2 u -
    (1 - u^2) dQ/du, where Q is the lesser critic, or half of each where both are equal. dL / d log std = dL/dx std
    noise - alpha, and 0 beyond its range; dL / d log alpha = -(log pi + target entropy).
    """
    inputs, noise, weight = policy.spaces.inputs.tensor(rows.seen), rows.noise[:, 1], rows.weight
    tape = forward_with_tape(policy.actor, inputs)
    mean, free = tape.out.chunk(2, dim=1)
    log_std = free.clamp(*LOG_STD_RANGE)
    step = log_std.exp() * noise
    raw = mean + step
    unit, logp = squashed_gaussian(mean, log_std, raw)
    (first, by_first), (second, by_second) = (
        _value_and_slope(critic, inputs, unit) for critic in as_mlps(policy.critics)
    )
    share = 0.5 * ((first < second).to(first.dtype) + (first <= second).to(first.dtype))[:, None]
    alpha, each = policy.log_temperature.detach().exp(), weight[:, None]
    by_unit = share * by_first + (1.0 - share) * by_second
    by_logp = torch.where(raw < _LINEAR, -1.0, unit)  # half of d log pi / dx
    by_raw = each * (2.0 * alpha * by_logp - (1.0 - unit.square()) * by_unit)
    inside = (free >= LOG_STD_RANGE[0]) & (free <= LOG_STD_RANGE[1])
    backward(policy.actor, tape, torch.cat((by_raw, (by_raw * step - alpha * each) * inside), dim=1))
    assert policy.log_temperature.grad is not None
    policy.log_temperature.grad -= (weight * (logp + target_entropy)).sum()
    actor = sac_actor_loss(logp, first, second, alpha)
    heat = temperature_loss(policy.log_temperature.detach(), logp, target_entropy=target_entropy)
    return LossTerms(loss=actor.loss + heat.loss, compute_metrics=lambda: {**actor.metrics, **heat.metrics})


def deterministic_actor_with_backward(policy: DeterministicActorCritic, rows: TransitionRows) -> LossTerms:
    """`ddpg_actor_loss` of actions u = tanh(x): dL/dx = -(1 - u^2) dQ1/du."""
    inputs = policy.spaces.inputs.tensor(rows.seen)
    tape = forward_with_tape(policy.actor, inputs)
    unit = torch.tanh(tape.out)
    value, by_unit = _value_and_slope(as_mlps(policy.critics)[0], inputs, unit)
    backward(policy.actor, tape, by_unit * (unit.square() - 1.0) * rows.weight[:, None])
    return ddpg_actor_loss(value)


def _value_and_slope(critic: Mlp, inputs: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Values `[n]` of actions `unit` `[n, a]`, and their derivatives by the actions."""
    tape = forward_with_tape(critic, torch.cat((inputs, unit), dim=1))
    return tape.out.squeeze(1), input_slope(critic, tape, torch.ones_like(tape.out))[:, inputs.shape[1] :]
