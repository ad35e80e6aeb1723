"""The return type of every loss, and the sum and the product of loss terms."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hone.objectives.shapes import Metrics, Multiplier, PerDecision, Scalar


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
        """Metrics by name, logged as the mean over decisions, as the maximum where the name ends in `_max`, and as the
        relative effective sample size of importance weights where it ends in `_ess`.
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
