"""The gradients of critics of actions, and of actors that climb them, written out by hand (SAC, TD3, DDPG).

Belongs here: what the recipes share: squared errors of one or two critics, the derivative of a value by the action, and
that of a squashed Gaussian's draw. Each adds to the gradients in place and agrees with autograd to rounding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hone.models.by_hand import Tape, back, run
from hone.models.control import SoftActorCritic, mlps
from hone.models.deterministic import DeterministicActorCritic
from hone.models.mlp import Mlp
from hone.objectives.soft import soft_policy, soft_values, temperature
from hone.objectives.td import deterministic_policy
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.train.control import TransitionRows


def critics_gradient(critics: Sequence[Mlp], x: Tensor, target: Tensor, weight: Tensor) -> Terms:
    """Half the squared errors of one or two `critics` of `x` `[n, in]`, added; adds their gradients."""
    values: list[Tensor] = []
    for critic in critics:
        tape = run(critic, x)
        value = tape[-1].squeeze(1)
        back(critic, tape, ((value - target) * weight)[:, None])
        values.append(value)
    if len(values) == 1:
        return squared(values[0], target)
    first, second = values
    return soft_values(first, second, target)


def action_slope(critic: Mlp, tape: Tape, slope: Tensor, actions: int) -> Tensor:
    """`[n, actions]` the derivative by the action, which stands last in what the critic reads."""
    return back(critic, tape, slope[:, None], weights=False, inputs=True)[:, -actions:]


def climb(policy: DeterministicActorCritic, rows: TransitionRows) -> Terms:
    """-Q1(s, tanh(network(s))); adds the actor's gradient."""
    seen = policy.spaces.inputs.tensor(rows.seen)
    tape = run(policy.actor, seen)
    unit = torch.tanh(tape[-1])
    critic = mlps(policy.critics)[0]
    valued = run(critic, torch.cat((seen, unit), dim=1))
    slope = action_slope(critic, valued, -rows.weight, policy.actions)
    back(policy.actor, tape, slope * (1.0 - unit * unit))
    return deterministic_policy(valued[-1].squeeze(1))


def climb_softly(policy: SoftActorCritic, rows: TransitionRows, *, target_entropy: float) -> Terms:
    """alpha log pi(a|s) - min(Q1, Q2)(s, a) and the temperature's loss; adds the gradients of actor and temperature.

    a = tanh(u), u = mean + std * noise: d log pi / du = 2 a, and d log pi / d log std = -1 besides what u carries.
    """
    seen, noise = policy.spaces.inputs.tensor(rows.seen), rows.noise[:, 1]
    tape = run(policy.actor, seen)
    mean, spread, inside = policy.moments_of(tape[-1])
    std = spread.exp()
    unit, logp = policy.squashed(mean, spread, noise)
    x, critics = torch.cat((seen, unit), dim=1), mlps(policy.critics)
    tapes = [run(critic, x) for critic in critics]
    first, second = (one[-1].squeeze(1) for one in tapes)
    alpha = policy.log_temperature.exp()
    lesser = torch.where(first == second, 0.5, (first < second).to(first.dtype))  # ties share, as in torch.minimum
    by_unit = action_slope(critics[0], tapes[0], -rows.weight * lesser, policy.actions)
    by_unit = by_unit + action_slope(critics[1], tapes[1], -rows.weight * (1.0 - lesser), policy.actions)
    price = (rows.weight * alpha)[:, None]
    by_raw = 2.0 * price * unit + by_unit * (1.0 - unit * unit)
    back(policy.actor, tape, torch.cat((by_raw, (by_raw * std * noise - price) * inside), dim=1))
    assert policy.log_temperature.grad is not None
    policy.log_temperature.grad.sub_((rows.weight * (logp + target_entropy)).sum())
    actor = soft_policy(logp, first, second, alpha)
    heat = temperature(policy.log_temperature, logp, target_entropy=target_entropy)
    return Terms(loss=actor.loss + heat.loss, told=lambda: {**actor.metrics, **heat.metrics})
