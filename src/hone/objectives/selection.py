"""Masks chosen among all decisions of an optimizer step, once, before it is split into micro-batches.

Functions of whole detached columns (numpy) that return a mask; losses take the mask as data. A choice within each
micro-batch would make the gradient depend on the split. With several ranks the columns are those of all ranks. Random
choices take one uniform draw per decision as data, and ties go to the earlier decision. Masked decisions still count in
the denominator.

The columns must hold every decision of the step: leaving out sequences with advantage 0 would shift the statistics.
"""

from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

# Spelt out: from numpy 2.5 on `NDArray` is an alias that jaxtyping cannot read.
Shape: TypeAlias = tuple[Any, ...]
Column: TypeAlias = Float[np.ndarray[Shape, np.dtype[np.floating]], " N"]
Floats: TypeAlias = Float64[np.ndarray[Shape, np.dtype[np.float64]], " N"]
Mask: TypeAlias = Bool[np.ndarray[Shape, np.dtype[np.bool_]], " N"]
Chosen: TypeAlias = Int64[np.ndarray[Shape, np.dtype[np.int64]], " chosen"]


def clipped_mask(
    now: Column,
    then: Column,
    advantage: Column,
    *,
    low: float = 0.2,
    high: float = 0.2,
    negative_cap: float | None = None,
) -> Mask:
    """Decisions for which the clipped surrogate with these widths has no gradient. `now`, `then` in nats."""
    r = np.exp(np.minimum(np.asarray(now, np.float64) - then, 20.0))
    far = r < 1.0 - low if negative_cap is None else (r < 1.0 - low) | (r > negative_cap)
    return ((advantage > 0) & (r > 1.0 + high)) | ((advantage < 0) & far)


def covariances(now: Column, advantage: Column) -> Floats:
    """(A - mean A) * (log p - mean log p): the contribution of each decision to the covariance over the batch."""
    logp, credit = np.asarray(now, np.float64), np.asarray(advantage, np.float64)
    return (credit - _mean(credit)) * (logp - _mean(logp))


def clip_cov_mask(
    now: Column,
    advantage: Column,
    stopped: Mask,
    uniform: Column,
    *,
    fraction: float = 2e-4,
    min_covariance: float = 1.0,
    max_covariance: float = 5.0,
) -> Mask:
    """Decisions that Clip-Cov leaves out (Cui et al., 2025, 2505.22617).

    Drawn among those with `min_covariance` < covariance < `max_covariance` that the clip has not `stopped`
    (`clipped_mask`): max(1, fraction * N) at most, those with the smallest `uniform` in [0, 1).
    """
    covariance = covariances(now, advantage)
    candidates = np.flatnonzero((covariance > min_covariance) & (covariance < max_covariance) & ~stopped)
    ranked = candidates[np.argsort(uniform[candidates], kind="stable")]
    return _mask(len(covariance), ranked[: _count(fraction, len(covariance))])


def kl_cov_mask(now: Column, advantage: Column, *, fraction: float = 2e-4) -> Mask:
    """The max(1, fraction * N) decisions of the largest covariance, for KL-Cov (Cui et al., 2025, 2505.22617)."""
    covariance = covariances(now, advantage)
    return _mask(len(covariance), np.argsort(-covariance, kind="stable")[: _count(fraction, len(covariance))])


def second_moment_mask(now: Column, then: Column, *, max_second_moment: float = 0.04) -> Mask:
    """Decisions left when the largest squared log-ratios are dropped until the mean is below `max_second_moment`.

    As few as possible are dropped. `now`, `then` in nats, the bound in nats^2: M2PO (Zheng et al., 2025, 2510.01161;
    its 0.04 was not checked against the paper's text).
    """
    square = (np.asarray(now, np.float64) - then) ** 2
    ranked = np.argsort(square, kind="stable")
    means = np.cumsum(square[ranked]) / np.arange(1, len(square) + 1)
    return _mask(len(square), ranked[means < max_second_moment])  # the means rise along the ranks, so this is a prefix


def high_entropy_mask(entropy: Column, *, fraction: float = 0.2) -> Mask:
    """Decisions whose entropy is at least the (1 - fraction) quantile of the batch, at least one.

    Only these high-entropy tokens carry the gradient (Wang et al., "Beyond the 80/20 Rule", 2025, 2506.01939; 0.2).
    """
    if len(entropy) == 0:
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(entropy >= np.quantile(entropy, 1.0 - fraction))


def _mean(values: Floats) -> float:
    """Mean, summed in the order of size: the same bits for every order of ranks and micro-batches."""
    return float(np.sort(values).mean()) if len(values) else 0.0


def _count(share: float, total: int) -> int:
    return min(total, max(1, int(share * total)))


def _mask(total: int, chosen: Chosen) -> Mask:
    mask = np.zeros(total, dtype=np.bool_)
    mask[chosen] = True
    return mask
