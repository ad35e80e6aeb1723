"""Aggregation: the weight of each decision in the loss, fixed once over the whole batch of an optimizer step.

Every scheme maps the lengths `[E]` of the sequences in the batch to one weight per decision of each `[E]` (a decision's
weight is its sequence's), such that the loss is `sum(weight * term)`. Sequences without decisions count for nothing.
Because the weights travel with the data, micro-batches, packing and ranks cannot change a gradient.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Scheme: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def token_mean(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Every decision of the batch counts the same: 1 / sum(lengths) (DAPO, 2025)."""
    return np.full(len(lengths), 1.0 / max(int(lengths.sum()), 1))


def sequence_mean(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Every sequence counts the same, whatever its length: 1 / (E * length) (GRPO, 2024)."""
    return 1.0 / (max(int((lengths > 0).sum()), 1) * np.maximum(lengths, 1))


def constant_length(lengths: NDArray[np.int64], *, length: int) -> NDArray[np.float64]:
    """1 / (E * `length`): unbiased in length, as the policy gradient itself is (Dr.GRPO, 2025)."""
    return np.full(len(lengths), 1.0 / (max(int((lengths > 0).sum()), 1) * length))
