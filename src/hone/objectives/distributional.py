"""Values as distributions: bins on a support (two-hot, C51) and quantiles (QR); one term per decision.

A critic with b bins gives logits `[n, b]`; its value is their mean over the support. Two-hot encoding of
numbers in bins, and losses on bins and quantiles.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.ratios import at_least_float32
from hone.objectives.terms import LossTerms, PerDecision, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSupport:
    """`size` >= 2 values at equal distances from `low` to `high`, both included: the atoms, or centres of the bins.

    Values outside count at the nearest end.
    """

    low: float
    high: float
    size: int = 51

    @property
    def width(self) -> float:
        """Distance of neighbours."""
        return (self.high - self.low) / (self.size - 1)

    def atoms(self, like: Float[Tensor, "..."]) -> Float[Tensor, " b"]:
        """The atoms, with the dtype and on the device of `like`."""
        return torch.linspace(self.low, self.high, self.size, dtype=like.dtype, device=like.device)


Bins: TypeAlias = Float[Tensor, "n b"]
"""Logits of b bins, or their probabilities."""


def two_hot(target: Float[Tensor, " *batch"], support: ValueSupport) -> Float[Tensor, "*batch b"]:
    """Each number split between its two neighbouring atoms so that the mean is kept (MuZero, Schrittwieser et al.,
    2020; exact, so decoding it gives the number back).
    """
    inside = at_least_float32(target).clamp(support.low, support.high)
    distance = (inside[..., None] - support.atoms(inside)).abs() / support.width
    return (1.0 - distance).clamp(min=0.0)


def hl_gauss(target: Float[Tensor, " *batch"], support: ValueSupport, *, spread: float) -> Float[Tensor, "*batch b"]:
    """The mass of a normal distribution around each number in each bin: HL-Gauss (Farebrother et al., 2024, 2403.03950,
    with spread 0.75).

    Its standard deviation is `spread` bin widths, and the mass outside of the bins is shared among them. Neighbouring
    bins learn together, which `two_hot` does not have; near an end of the support the mean is pulled inwards.
    """
    inside = at_least_float32(target).clamp(support.low, support.high)
    atoms = support.atoms(inside)
    edges = torch.cat((atoms - support.width / 2, atoms[-1:] + support.width / 2))
    mass = torch.erfc((inside[..., None] - edges) / (math.sqrt(2.0) * spread * support.width))  # twice: it cancels
    return (mass[..., 1:] - mass[..., :-1]) / (mass[..., -1:] - mass[..., :1])


def distribution_mean(probability: Float[Tensor, "*batch b"], support: ValueSupport) -> Float[Tensor, " *batch"]:
    """The mean of each distribution over the support."""
    return at_least_float32(probability) @ support.atoms(at_least_float32(probability))


def logits_mean(logits: Float[Tensor, "*batch b"], support: ValueSupport) -> Float[Tensor, " *batch"]:
    """Mean over the support of the distribution with these `logits`."""
    return distribution_mean(torch.softmax(at_least_float32(logits), dim=-1), support)


# ------------------------------------------------------------------------------------------------------- C51


@torch.no_grad()
def categorical_target(reward: PerDecision, discount: PerDecision, probability: Bins, *, support: ValueSupport) -> Bins:
    """The distribution of r + discount * Z on the same atoms: C51's projection (Bellemare et al., 2017).

    `probability` of the next state at its chosen action; `discount` is 0 at terminal states. Each moved atom is split
    between its neighbours by a triangle, so no mass is lost where it falls on an atom exactly, and the mean is kept
    unless it left the support.
    """
    probability = at_least_float32(probability)
    moved = reward[:, None] + discount[:, None] * support.atoms(probability)
    return (probability[:, :, None] * two_hot(moved, support)).sum(dim=1)


def c51_loss(logits: Bins, target: Bins, *, support: ValueSupport) -> LossTerms:
    """-sum_b target_b * log softmax(logits)_b (C51). `logits` are the chosen action's.

    The minimum is the target's entropy and not 0; the difference, the KL divergence, is the metric.
    """
    loss = -(target * torch.log_softmax(at_least_float32(logits), dim=-1)).sum(dim=-1)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "value/mean": logits_mean(logits, support),
            "value/kl_nats": loss + torch.xlogy(target, target).sum(1),
        },
    )


# ------------------------------------------------------------------------------------------------- quantiles


def quantile_huber_loss(quantiles: Table, target: Float[Tensor, "n m"], *, kappa: float = 1.0) -> LossTerms:
    """sum over i of the mean over j of |tau_i - 1{u_ij < 0}| * L(u_ij) / kappa, u_ij = target_j - quantile_i, tau_i =
    (i - 1/2) / k, L = Huber of width kappa: quantile regression (QR-DQN, Dabney et al., 2018).

    `quantiles` of the chosen action; `target`, of any length m, is data. kappa = 0 is the pure quantile loss, whose
    minimisers are the quantiles; kappa > 0 smooths it at 0 and moves them towards expectiles.
    """
    count = quantiles.shape[1]
    quantiles = at_least_float32(quantiles)
    u = at_least_float32(target).detach()[:, None, :] - quantiles[:, :, None]
    taus = (torch.arange(count, dtype=u.dtype, device=u.device) + 0.5) / count
    size = u.abs()
    bent = size.clamp(max=kappa)
    height = bent * (size - 0.5 * bent) / kappa if kappa > 0 else size
    side = (taus[None, :, None] - (u.detach() < 0).to(u.dtype)).abs()

    def compute_metrics() -> Mapping[str, PerDecision]:
        mean = quantiles.mean(dim=1)
        return {"value/mean": mean, "value/std": (quantiles - mean[:, None]).square().mean(dim=1).sqrt()}

    return LossTerms(loss=(side * height).mean(dim=2).sum(dim=1), compute_metrics=compute_metrics)
