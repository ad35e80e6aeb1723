"""Arithmetic of losses on whole answers: sums by sequence, and exponentials and logarithms that stay finite."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.ratios import at_least_float32
from hone.objectives.shapes import Elementwise, Indices, PerDecision

EXPONENT_LIMIT = 20.0
"""Nats; above it `exp` is continued by its tangent: e^20 is 5e8, far below the overflow of float32."""


def sum_by_sequence(values: PerDecision, sequence: Indices, *, count: int) -> Float[Tensor, " {count}"]:
    """Sum of `values` over each of `count` sequences `[count]`, in float32 or wider: answers from tokens.

    `sequence` numbers each value's sequence; a sequence without values sums to 0. Padded rows go through
    `ratios.gather_decisions` and `ratios.decision_rows` first.
    """
    values = at_least_float32(values)
    return values.new_zeros(count).index_add(0, sequence, values)


def linear_tail_exp(x: Elementwise) -> Elementwise:
    """exp(x) up to 20, its tangent beyond: finite, with a gradient for every x."""
    kept = x.clamp(max=EXPONENT_LIMIT)
    return kept.exp() * (1.0 + (x - kept))


def log1mexp(x: Elementwise) -> Elementwise:
    """log(1 - exp(x)) for x < 0, exact at both ends (Mächler, 2012); x is clamped to at most -1e-6 (result -13.8)."""
    x = x.clamp(max=-1e-6)
    return torch.where(x > -math.log(2.0), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
