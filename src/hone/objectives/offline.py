"""Losses on logged decisions: conservative values, imitation, and expectile values; one term per decision.

Conservative Q-learning (Kumar et al., 2020) lowers the soft maximum of the values over all actions and raises the value
of the logged one, so that a policy is not drawn to actions outside of the data.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hone.objectives.terms import Actions, Indices, LossTerms, PerDecision, Table


def cql_penalty(table: Table, chosen: Indices) -> LossTerms:
    """logsumexp over a of Q(s, a), minus Q(s, a logged): never negative. Illegal actions have the value -inf, so that
    nothing is pressed down where nothing can be done."""
    gap = F.cross_entropy(table, chosen, reduction="none")  # the same number: values as logits
    return LossTerms(loss=gap, compute_metrics=lambda: {"value/conservatism": gap.detach()})


def cql_penalty_sampled(
    worth: Float[Tensor, "n m"], log_density: Float[Tensor, "n m"], logged: PerDecision
) -> LossTerms:
    """Continuous form of `cql_penalty`: log of the mean of exp(Q(s, a_i)) / density(a_i), minus Q(s, a logged)
    (CQL(H)).

    `worth`, `log_density` of m sampled actions, from any mixture, with their log-densities under it. Importance weights
    make the log-mean an estimate of log of the integral of exp(Q).
    """
    soft = torch.logsumexp(worth - log_density, dim=1) - math.log(worth.shape[1])
    gap = soft - logged
    return LossTerms(loss=gap, compute_metrics=lambda: {"value/conservatism": gap.detach()})


def behaviour_cloning(logp: PerDecision) -> LossTerms:
    """-log pi(logged action | s) in nats: behaviour cloning."""
    return LossTerms(loss=-logp, compute_metrics=lambda: {"policy/nll_nats": -logp.detach()})


# ---------------------------------------------------------------------------------- implicit Q-learning


def expectile_loss(value: PerDecision, target: PerDecision, *, level: float = 0.7) -> LossTerms:
    """|level - 1{u < 0}| * u^2, u = target - V: the value loss of implicit Q-learning (Kostrikov et al., 2022).

    `target` = min of target critics at the *logged* action, data. The minimiser is an expectile: the mean at 1/2,
    towards the best logged action at 1. The paper's levels: 0.7, 0.9 for AntMaze.
    """
    error = target.detach() - value
    side = (level - (error.detach() < 0).to(error.dtype)).abs()
    return LossTerms(
        loss=side * error.square(),
        compute_metrics=lambda: {"value/mean": value.detach(), "value/error_abs": error.abs()},
    )


def advantage_weighted_regression(
    logp: PerDecision, advantage: PerDecision, *, inverse_temperature: float = 3.0, cap: float = 100.0
) -> LossTerms:
    """-min(exp(inverse_temperature * A), cap) * log pi(logged action | s): advantage-weighted regression.

    `logp` nats with gradient, `advantage` = Q - V, data. The defaults are IQL's (Kostrikov et al., 2022; 10 for
    AntMaze); AWR (Peng et al., 2019) has temperature 1 and a cap of 20. Inverse temperature 0 is imitation.
    """
    exponent = inverse_temperature * advantage.detach()
    weight = exponent.clamp(max=math.log(cap)).exp()  # capped before exp, which would overflow
    return LossTerms(
        loss=-weight * logp,
        compute_metrics=lambda: {
            "policy/nll_nats": -logp.detach(),
            "policy/weight": weight,
            "policy/capped_fraction": (exponent > math.log(cap)).to(weight.dtype),
        },
    )


# ---------------------------------------------------------------------------------------------- TD3 + BC


def td3_bc_actor_loss(worth: PerDecision, action: Actions, logged: Actions, scale: PerDecision) -> LossTerms:
    """-scale * Q(s, pi(s)) + mean over dimensions of (pi(s) - a)^2: TD3+BC's actor loss (Fujimoto and Gu, 2021).

    `worth` = Q at `action` = pi(s); `scale` from `batchwide.q_value_scale`, once per optimizer step over the whole
    batch, so that no split of it can change the loss.
    """
    distance = (action - logged).square().mean(dim=1)
    return LossTerms(
        loss=distance - scale.detach() * worth,
        compute_metrics=lambda: {"policy/q_value": worth.detach(), "policy/distance": distance.detach()},
    )
