"""The return type of every loss, and the sum and the product of loss terms."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hone.objectives.shapes import Metrics, Multiplier, PerDecision


def _nothing() -> Metrics:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """One loss term per decision, before weighting, with its metrics."""

    loss: PerDecision
    """Carries the gradient; the learner sums `weight * loss`."""
    compute_metrics: Callable[[], Metrics] = _nothing
    """Computes the metrics; called only when they are logged, because a step of a small network is short."""

    @property
    def metrics(self) -> Metrics:
        """Metrics by name, logged as the mean over decisions, as the maximum where the name ends in `_max`, and as the
        relative effective sample size of importance weights where it ends in `_ess`.
        """
        with torch.no_grad():
            return self.compute_metrics()


def add_terms(first: LossTerms, second: LossTerms, *, weight: float = 1.0) -> LossTerms:
    """first + weight * second, per decision; the metrics of both (the second's where both have a name)."""
    return LossTerms(
        loss=torch.add(first.loss, second.loss, alpha=weight),
        compute_metrics=lambda: {**first.metrics, **second.metrics},
    )


def scale_terms(terms: LossTerms, multiplier: Multiplier) -> LossTerms:
    """multiplier * loss: `multiplier` is data (a mask, an importance weight) and gets no gradient.

    The weights of the sum do not change: a masked decision still counts in the denominator, so masking more decisions
    never increases the weight of the others.
    """
    return LossTerms(loss=terms.loss * multiplier.detach().to(terms.loss.dtype), compute_metrics=terms.compute_metrics)
