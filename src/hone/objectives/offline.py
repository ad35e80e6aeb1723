"""Losses on logged decisions: temporal difference, conservatism, imitation; per decision.

Conservative Q-learning (Kumar et al., 2020) pushes down the soft maximum of the values over all actions and lifts the
value of the logged one, so that a policy is not drawn to actions that nobody has tried.
"""

import math

import torch
from torch import Tensor

from hone.objectives.terms import Terms


@torch.no_grad()
def double_target(reward: Tensor, discount: Tensor, table_now: Tensor, table_slow: Tensor) -> Tensor:
    """r + discount * Q_slow(s', argmax Q_now(s', .)) `[n]` (double Q-learning, van Hasselt et al., 2016).

    `table_now`, `table_slow` `[n, k]` are values of what was seen next; `discount` is 0 where the world ended.
    """
    best = table_now.argmax(dim=1, keepdim=True)
    return reward + discount * table_slow.gather(1, best).squeeze(1)


def huber(value: Tensor, target: Tensor) -> Terms:
    """Error^2 / 2 up to 1, |error| - 1/2 beyond. `value`, `target` `[n]`."""
    error = (value - target).abs()
    bent = error.clamp(max=1.0)
    return Terms(loss=bent * (error - 0.5 * bent), told=lambda: {"value/mean": value.detach()})


def conservative(table: Tensor, chosen: Tensor) -> Terms:
    """logsumexp over a of Q(s, a), minus Q(s, a logged): never negative. `table` `[n, k]`, `chosen` `[n]` indices."""
    gap = torch.logsumexp(table, dim=1) - table.gather(1, chosen[:, None]).squeeze(1)
    return Terms(loss=gap, told=lambda: {"value/conservatism": gap.detach()})


def conservative_sampled(worth: Tensor, log_density: Tensor, logged: Tensor) -> Terms:
    """The same over a box of actions: log of the mean of exp(Q(s, a_i)) / density(a_i), minus Q(s, a logged) (CQL(H)).

    `worth`, `log_density` `[n, m]` of m sampled actions, from whatever mixture, with the densities they were drawn
    from; `logged` `[n]`. Importance weights make the log-mean an estimate of log of the integral of exp(Q).
    """
    soft = torch.logsumexp(worth - log_density, dim=1) - math.log(worth.shape[1])
    gap = soft - logged
    return Terms(loss=gap, told=lambda: {"value/conservatism": gap.detach()})


def imitation(logp: Tensor) -> Terms:
    """-log pi(logged action | s) `[n]` nats: behaviour cloning."""
    return Terms(loss=-logp, told=lambda: {"policy/nll_nats": -logp.detach()})
