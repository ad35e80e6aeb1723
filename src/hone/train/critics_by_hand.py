"""The gradients of critics of actions, and of actors that climb them, written out by hand: live and on a log.

Belongs here: what the recipes share: squared errors of one or two critics, the derivative of a value by the action, and
that of a squashed Gaussian's draw. Each adds to the gradients in place and agrees with autograd to rounding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hone.models.by_hand import Tape, back, run
from hone.models.control import SoftActorCritic, mlps
from hone.models.mlp import Mlp
from hone.objectives.soft import soft_policy, soft_values, temperature
from hone.objectives.td import deterministic_policy
from hone.objectives.terms import Terms
from hone.objectives.value import squared


def critics_gradient(critics: Sequence[Mlp], x: Tensor, target: Tensor, weight: Tensor) -> Terms:
    """Half the squared errors of one or two `critics` of `x` `[n, in]`, added; adds their gradients."""
    values: list[Tensor] = []
    for critic in critics:
        tape = run(critic, x)
        value = tape.out.squeeze(1)
        back(critic, tape, ((value - target) * weight)[:, None])
        del tape  # the next one takes its place in the cache
        values.append(value)
    if len(values) == 1:
        return squared(values[0], target)
    first, second = values
    return soft_values(first, second, target)


def table_critics_gradient(
    critics: Sequence[Mlp], seen: Tensor, chosen: Tensor, target: Tensor, weight: Tensor
) -> Terms:
    """The same of two tables of action values of `seen` `[n, size]`, at the numbers `chosen` `[n]`."""
    place, values = chosen[:, None], list[Tensor]()
    for critic in critics:
        tape = run(critic, seen)
        value = tape.out.gather(1, place).squeeze(1)
        slope = torch.zeros_like(tape.out).scatter_(1, place, ((value - target) * weight)[:, None])
        back(critic, tape, slope)
        values.append(value)
    return soft_values(values[0], values[1], target)


def action_slope(critic: Mlp, tape: Tape, slope: Tensor, actions: int) -> Tensor:
    """`[n, actions]` the derivative by the action, which stands last in what the critic reads."""
    found = back(critic, tape, slope[:, None], weights=False, inputs=True)
    assert found is not None
    return found[:, -actions:]


def climb(actor: Mlp, critic: Mlp, seen: Tensor, weight: Tensor) -> Terms:
    """-Q(s, tanh(actor)) of `seen` `[n, size]`; adds the actor's gradient."""
    tape = run(actor, seen)
    unit = torch.tanh(tape.out)
    valued = run(critic, torch.cat((seen, unit), dim=1))
    slope = action_slope(critic, valued, -weight, unit.shape[1])
    back(actor, tape, slope * (1.0 - unit * unit))
    return deterministic_policy(valued.out.squeeze(1))


def climb_softly(
    policy: SoftActorCritic, seen: Tensor, noise: Tensor, weight: Tensor, *, target_entropy: float
) -> Terms:
    """alpha log pi(a|s) - min(Q1, Q2)(s, a) and the temperature's loss, of `seen` `[n, size]` and `noise`
    `[n, actions]`; adds the gradients of actor and temperature.

    a = tanh(u), u = mean + std * noise: d log pi / du = 2 a, and d log pi / d log std = -1 besides what u carries.
    """
    tape = run(policy.actor, seen)
    mean, spread, inside = policy.moments_of(tape.out)
    std = spread.exp()
    unit, logp = policy.squashed(mean, spread, noise)
    x, critics = torch.cat((seen, unit), dim=1), mlps(policy.critics)
    tapes = [run(critic, x) for critic in critics]
    first, second = (one.out.squeeze(1) for one in tapes)
    alpha = policy.log_temperature.exp()
    lesser = torch.where(first == second, 0.5, (first < second).to(first.dtype))  # ties share, as in torch.minimum
    by_unit = action_slope(critics[0], tapes[0], -weight * lesser, policy.actions)
    by_unit = by_unit + action_slope(critics[1], tapes[1], -weight * (1.0 - lesser), policy.actions)
    price = (weight * alpha)[:, None]
    by_raw = 2.0 * price * unit + by_unit * (1.0 - unit * unit)
    back(policy.actor, tape, torch.cat((by_raw, (by_raw * std * noise - price) * inside), dim=1))
    assert policy.log_temperature.grad is not None
    policy.log_temperature.grad.sub_((weight * (logp + target_entropy)).sum())
    actor = soft_policy(logp, first, second, alpha)
    heat = temperature(policy.log_temperature, logp, target_entropy=target_entropy)
    return Terms(loss=actor.loss + heat.loss, told=lambda: {**actor.metrics, **heat.metrics})
