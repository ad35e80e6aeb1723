"""The return type of every loss, sums and products of loss terms, and the shapes of arguments in jaxtyping's notation.

Shapes are not checked during a run, so they cost nothing; the tests check them in every loss
(`jaxtyping.install_import_hook`): a column `[n, 1]` in place of `[n]` would broadcast to `[n, n]`, and is refused
there. Axes with the same letter are equally long within one call: n rows of a micro-batch, p pairs of answers, k
entries of each, K listed tokens, a numbers of an action. Shapes of whole batches are in `selection.py` and
`weights.py`, which need no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

# --------------------------------------------------------------------------------------------------------------- shapes


PerDecision: TypeAlias = Float[Tensor, " n"]
PerAnswer: TypeAlias = Float[Tensor, " n"]
PerPair: TypeAlias = Float[Tensor, " p"]

Flags: TypeAlias = Bool[Tensor, " n"]
Indices: TypeAlias = Int[Tensor, " n"]
"""Numbers of sequences, actions or classes."""
Multiplier: TypeAlias = Shaped[Tensor, " n"]
"""A mask or a weight, of any type; rows with 0 are left out."""
Shared: TypeAlias = Float[Tensor, "#n"]
"""One number for all rows, or one for each."""
Scalar: TypeAlias = Float[Tensor, ""]
One: TypeAlias = Float[Tensor, "1"]
"""A parameter that all rows share."""

Table: TypeAlias = Float[Tensor, "n k"]
"""An entry for each of k actions, classes, tokens or quantiles."""
TopKLogps: TypeAlias = Float[Tensor, "n K"]
Actions: TypeAlias = Float[Tensor, "n a"]

Members: TypeAlias = Float[Tensor, "K n d"]
"""d numbers of n rows, by each of the K members of an ensemble."""

Elementwise: TypeAlias = Float[Tensor, " *shape"]
"""Any shape, the same in and out."""
Metrics: TypeAlias = Mapping[str, Float[Tensor, " _"]]
"""Metrics by name; mostly `[n]`, fewer if a metric concerns a part of the rows."""


# ---------------------------------------------------------------------------------------------------------------- terms


def _nothing() -> Metrics:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """A loss before it is summed, with its metrics: one value per decision; with weights of its own, also one per
    sequence or per group.
    """

    loss: PerDecision
    """Carries the gradient; the learner sums `weight * loss`."""
    compute_metrics: Callable[[], Metrics] = _nothing
    """Computes the metrics; called only when they are logged, because a step of a small network is short."""
    weight: PerDecision | None = None
    """Weight of each value of `loss`, fixed over the whole optimizer step; None: the batch's weight of a decision."""
    extra: "tuple[LossTerms, ...]" = ()
    """Further terms of the sum, each with its own weights; `compute_metrics` covers theirs."""

    def weighted_sum(self, weight: PerDecision) -> Scalar:
        """sum(weight * loss) over all terms -> `[]`. `weight` is the batch's, for terms without their own."""
        own = weight
        if self.weight is not None:
            own = self.weight
            assert own.shape == self.loss.shape, f"weights {tuple(own.shape)} of a loss {tuple(self.loss.shape)}"
        total = (self.loss * own).sum()
        for term in self.extra:
            total = total + term.weighted_sum(weight)
        return total

    @property
    def metrics(self) -> Metrics:
        """Metrics by name, logged as the mean over decisions, as the maximum where the name ends in '_max', and as the
        relative effective sample size of importance weights where it ends in '_ess'.
        """
        with torch.no_grad():
            return self.compute_metrics()


def add_terms(first: LossTerms, second: LossTerms, *, weight: float = 1.0) -> LossTerms:
    """first + weight * second; the metrics of both (the second's where both have a name).

    Terms with the same weights are added value by value; otherwise the second becomes a further term of the sum.
    """
    extra, loss = first.extra, first.loss
    if second.weight is first.weight and not second.extra:
        loss = torch.add(first.loss, second.loss, alpha=weight)
    else:
        extra += tuple(LossTerms(loss=weight * one.loss, weight=one.weight) for one in (second, *second.extra))
    return LossTerms(
        loss=loss, compute_metrics=lambda: {**first.metrics, **second.metrics}, weight=first.weight, extra=extra
    )


def scale_terms(terms: LossTerms, multiplier: Multiplier) -> LossTerms:
    """multiplier * loss: `multiplier` is data (a mask, an importance weight) and gets no gradient. Terms in `extra`
    stay as they are.

    The weights of the sum do not change: a masked decision still counts in the denominator, so masking more decisions
    never increases the weight of the others.
    """
    return replace(terms, loss=terms.loss * multiplier.detach().to(terms.loss.dtype))
