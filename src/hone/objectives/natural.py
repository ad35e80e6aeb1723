"""The natural gradient: the step that lowers a loss the most among those that change the policy by a given KL.

TRPO (Schulman et al., 2015) as functions over closures. A step solves F x = -g by conjugate gradients, with products F
v only, scales x until the quadratic model of the KL meets its bound, and halves x until the true loss and the true KL
are acceptable. Parameters are one flat vector; the closures sum over micro-batches.

F v is computed in two ways. `fisher_product` differentiates a KL twice. Its closure may be the exact KL(then || now) of
distributions (control), or `k2` on sampled decisions (language models), whose second derivative at now = then is the
Fisher matrix estimated on the sample. `finite_difference_product` needs first derivatives only, for kernels without
second ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Vector: TypeAlias = Float[Tensor, " P"]
"""All parameters, one after another, or a direction among them."""

FisherVectorProduct: TypeAlias = Callable[[Vector], Vector]
"""v -> F v."""

DotProduct: TypeAlias = Callable[[Vector, Vector], Float[Tensor, ""]]
"""Sum of the products of two vectors, over all processes where each holds a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRegion:
    """Settings of a TRPO step: the paper's bound (0.01), and the values of its common implementations."""

    max_kl_nats: float = 0.01
    """Bound on the mean KL(then || now) per decision."""
    damping: float = 0.1
    """Added to the Fisher matrix's diagonal, which is singular for many parameters."""
    iterations: int = 10
    """Iterations of conjugate gradients, each with one product."""
    residual: float = 1e-10
    """Squared norm of the residual below which they end early."""
    max_backtracks: int = 10
    """Number of step lengths tried by the line search."""
    shrink: float = 0.8
    """Factor between successive step lengths."""
    min_gain_share: float = 0.1
    """Least share of the loss decrease predicted by the gradient for a step to be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRegionOutcome:
    """Result of a trust-region step."""

    accepted: bool
    """False: the parameters are exactly those before the step."""
    loss_decrease: float
    """Loss before, minus loss after; 0 where no step was taken."""
    kl_nats: float
    """KL of the policy after the step; 0 where no step was taken."""
    step_share: float
    """Share of the full step that was taken."""
    tries: int
    """Number of step lengths evaluated."""


def flatten(tensors: Sequence[Float[Tensor, "..."]]) -> Vector:
    """All elements, one tensor after another."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def conjugate_gradient(
    product: FisherVectorProduct,
    target: Vector,
    *,
    iterations: int = 10,
    residual: float = 1e-10,
    dot: DotProduct = torch.dot,
) -> Vector:
    """x with F x = `target`, after at most `iterations` products; F must be positive definite.

    Exact after P iterations (Hestenes & Stiefel, 1952). Ends early at a small residual, or where F has no positive
    curvature along the search direction (rounding, or F not positive definite): x is then the best so far.
    """
    x = torch.zeros_like(target)
    left = target.clone()
    direction = left.clone()
    size = dot(left, left)
    for _ in range(iterations):
        if float(size) <= residual:
            break
        bent = product(direction)
        curvature = dot(direction, bent)
        if not float(curvature) > 0:
            break
        step = size / curvature
        x = x + step * direction
        left = left - step * bent
        before, size = size, dot(left, left)
        direction = left + (size / before) * direction
    return x


def fisher_product(
    kl: Callable[[], Float[Tensor, ""]], parameters: Sequence[Float[Tensor, "..."]]
) -> FisherVectorProduct:
    """v -> H v, H the second derivative of `kl()` at the current parameters; one graph, kept."""
    slopes = torch.autograd.grad(kl(), parameters, create_graph=True)
    slope = flatten(slopes)

    def product(v: Vector) -> Vector:
        along = torch.dot(slope, v)
        result = torch.autograd.grad(along, parameters, retain_graph=True, materialize_grads=True)
        return flatten(result).detach()

    return product


def finite_difference_product(
    parameters: Vector, kl_gradient: Callable[[], Vector], *, radius: float = 1e-3, dot: DotProduct = torch.dot
) -> FisherVectorProduct:
    """v -> (G(x + e v) - G(x - e v)) / 2e, G = `kl_gradient()`, e = radius / |v|: error of order radius^2.

    `parameters` are changed in place and restored, also when an error is raised.
    """

    def product(v: Vector) -> Vector:
        length = math.sqrt(float(dot(v, v)))
        if length == 0:
            return torch.zeros_like(v)
        start, small = parameters.detach().clone(), radius / length
        try:
            with torch.no_grad():
                parameters.copy_(start + small * v)
            ahead = kl_gradient().detach().clone()
            with torch.no_grad():
                parameters.copy_(start - small * v)
            behind = kl_gradient().detach().clone()
        finally:
            with torch.no_grad():
                parameters.copy_(start)
        return (ahead - behind) / (2.0 * small)

    return product


def trust_region_direction(
    gradient: Vector, product: FisherVectorProduct, region: TrustRegion, *, dot: DotProduct = torch.dot
) -> Vector:
    """The full step: -F^-1 g, scaled until x F x / 2 = max_kl_nats; 0 where the gradient is 0."""

    def damped(v: Vector) -> Vector:
        return product(v) + region.damping * v

    x = conjugate_gradient(damped, -gradient, iterations=region.iterations, residual=region.residual, dot=dot)
    curvature = float(dot(x, damped(x)))
    if not (math.isfinite(curvature) and curvature > 0):
        return torch.zeros_like(gradient)
    return x * math.sqrt(2.0 * region.max_kl_nats / curvature)


def trust_region_step(
    parameters: Vector,
    gradient: Vector,
    product: FisherVectorProduct,
    judge: Callable[[], tuple[float, float]],
    region: TrustRegion,
    *,
    dot: DotProduct = torch.dot,
) -> TrustRegionOutcome:
    """Moves `parameters` (in place) by the longest acceptable step, or leaves them unchanged.

    `gradient` of the loss to lower, for instance the mean of `policy.importance_weighted`; `product` from one of the
    two functions above; `judge()` returns (loss, mean KL in nats) of the current parameters. A step is taken when both
    are finite, the KL is within its bound, and the loss has fallen by the least share of the predicted decrease. If no
    length is acceptable, or an error is raised, the parameters are restored bit for bit.
    """
    nothing = TrustRegionOutcome(accepted=False, loss_decrease=0.0, kl_nats=0.0, step_share=0.0, tries=0)
    step = trust_region_direction(gradient, product, region, dot=dot)
    promised = -float(dot(gradient, step))
    if not (math.isfinite(promised) and promised > 0):
        return nothing
    start = parameters.detach().clone()
    accepted = False
    try:
        before, _ = judge()
        share = 1.0
        for tries in range(1, region.max_backtracks + 1):
            with torch.no_grad():
                parameters.copy_(start + share * step)
            after, kl = judge()
            gain = before - after
            accepted = (
                math.isfinite(gain) and kl <= region.max_kl_nats and gain >= region.min_gain_share * share * promised
            )
            if accepted:
                return TrustRegionOutcome(accepted=True, loss_decrease=gain, kl_nats=kl, step_share=share, tries=tries)
            share *= region.shrink
    finally:
        if not accepted:
            with torch.no_grad():
                parameters.copy_(start)
    return TrustRegionOutcome(
        accepted=False, loss_decrease=0.0, kl_nats=0.0, step_share=0.0, tries=region.max_backtracks
    )
