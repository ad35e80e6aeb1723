"""Support constraints of offline control: BCQ's generator and targets, BEAR's distance and multiplier.

They require the policy's actions to be likely enough in the data; one term per decision. Penalties on values and
weighted imitation are in `offline.py`.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hone.objectives.terms import Actions, LossTerms, One, PerDecision, Table

# ------------------------------------------------------------------------------------------------------- BCQ


@torch.no_grad()
def bcq_target(
    reward: PerDecision,
    discount: PerDecision,
    first: Float[Tensor, "n m"],
    second: Float[Tensor, "n m"],
    *,
    pessimism: float = 0.75,
) -> PerDecision:
    """r + discount * max over i of [w min(Q1', Q2') + (1 - w) max(Q1', Q2')](s', a_i): BCQ (Fujimoto et al., 2019), w =
    `pessimism`.

    `first`, `second` are target critics at m perturbed actions of the generator, 10 in the paper. With w = 1 and one
    action it is TD3's target.
    """
    mixed = pessimism * torch.minimum(first, second) + (1.0 - pessimism) * torch.maximum(first, second)
    return reward + discount * mixed.amax(dim=1)


def bcq_vae_loss(
    rebuilt: Actions,
    action: Actions,
    mean: Float[Tensor, "n z"],
    log_std: Float[Tensor, "n z"],
    *,
    divergence: float = 0.5,
) -> LossTerms:
    """mean (rebuilt - a)^2 + divergence * mean KL(N(mean, std^2) || N(0, 1)): the autoencoder of logged actions (BCQ,
    Fujimoto et al., 2019; BEAR). `mean`, `log_std` of the latent code.

    Means over an action's numbers and over the latent dimensions, as in the authors' code. The network keeps the
    logarithm of the standard deviation within bounds.
    """
    distance = (rebuilt - action).square().mean(dim=1)
    kl = 0.5 * (mean.square() + torch.exp(2.0 * log_std) - 1.0 - 2.0 * log_std).mean(dim=1)
    return LossTerms(
        loss=distance + divergence * kl,
        compute_metrics=lambda: {"generator/distance": distance.detach(), "generator/kl_nats": kl.detach()},
    )


@torch.no_grad()
def bcq_admissible_actions(logp: Table, *, threshold: float = 0.3) -> Bool[Tensor, "n k"]:
    """Actions at least `threshold` times as likely in the data as the most likely one (discrete BCQ, Fujimoto et al.,
    2019). `logp` of a behaviour model, -inf of illegal actions, which no threshold allows. 0 allows all others
    (Q-learning), 1 the most likely only (imitation).

    For the target: `td.double_target(..., table.masked_fill(~allowed, -inf), slow)`; the policy takes the same mask.
    """
    return ((logp - logp.amax(dim=1, keepdim=True)).exp() >= threshold) & (logp > -torch.inf)


# ------------------------------------------------------------------------------------------------------ BEAR

Kernel: TypeAlias = Callable[[Float[Tensor, "*batch a"], float], Float[Tensor, " *batch"]]
"""Differences of actions and a width -> similarity."""

LOWEST_PRICE, HIGHEST_PRICE = -5.0, 10.0
"""Bounds of the logarithm of BEAR's multiplier."""


def laplacian(difference: Float[Tensor, "*batch a"], width: float) -> Float[Tensor, " *batch"]:
    """exp(-|x - y|_1 / (2 width))"""
    return torch.exp(-difference.abs().sum(dim=-1) / (2.0 * width))


def gaussian(difference: Float[Tensor, "*batch a"], width: float) -> Float[Tensor, " *batch"]:
    """exp(-|x - y|^2 / (2 width)): the width is a variance, as in BEAR's code."""
    return torch.exp(-difference.square().sum(dim=-1) / (2.0 * width))


def mmd(
    first: Float[Tensor, "n m a"], second: Float[Tensor, "n l a"], *, width: float = 20.0, kernel: Kernel = laplacian
) -> PerDecision:
    """Maximum mean discrepancy of two samples of actions per state (Gretton et al., 2012).

    sqrt(E k(x, x') + E k(y, y') - 2 E k(x, y) + 1e-6) over `first` and `second`, all pairs counted: never negative, and
    0.001 for equal samples; the 1e-6 keeps the root's gradient finite there. BEAR (Kumar et al., 2019): sampled actions
    of the policy against those of a model of the log.
    """

    def likeness(x: Float[Tensor, "n x a"], y: Float[Tensor, "n y a"]) -> PerDecision:
        return kernel(x[:, :, None] - y[:, None, :], width).mean(dim=(1, 2))

    gap = likeness(first, first) + likeness(second, second) - 2.0 * likeness(first, second)
    return (gap.clamp(min=0.0) + 1e-6).sqrt()


def bear_actor_loss(worth: PerDecision, distance: PerDecision, log_multiplier: One) -> LossTerms:
    """-Q(s, pi(s)) + exp(log multiplier) * MMD: BEAR's actor loss (Kumar et al., 2019).

    The multiplier is data here; `bear_multiplier_loss` trains it. Its logarithm is clamped to [-5, 10].
    """
    price = log_multiplier.detach().clamp(LOWEST_PRICE, HIGHEST_PRICE).exp()
    return LossTerms(
        loss=price * distance - worth,
        compute_metrics=lambda: {"policy/q_value": worth.detach(), "policy/distance": distance.detach()},
    )


def bear_multiplier_loss(log_multiplier: One, distance: PerDecision, *, threshold: float = 0.05) -> LossTerms:
    """-log multiplier * (MMD - threshold): dual descent raises the multiplier while the policy is too far away.

    `log_multiplier` carries the gradient, `distance` is data. BEAR's code differentiates the multiplier instead of its
    logarithm, with a gradient that vanishes with it; the fixed point is the same, as for SAC's temperature.
    """
    loss = -log_multiplier * (distance.detach() - threshold)
    price = log_multiplier.detach().clamp(LOWEST_PRICE, HIGHEST_PRICE).exp()
    return LossTerms(loss=loss, compute_metrics=lambda: {"policy/multiplier": price.expand(len(distance))})
