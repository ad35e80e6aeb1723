"""What every objective returns, and how terms are added and multiplied."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hone.objectives.shapes import Metrics, Multiplier, PerDecision


def _nothing() -> Metrics:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """One number to lower per decision, before weighting, and what can be told of it."""

    loss: PerDecision
    """With gradient; the learner sums `weight * loss`."""
    compute_metrics: Callable[[], Metrics] = _nothing
    """Computes the metrics; called only where somebody listens: a small network's step is short."""

    @property
    def metrics(self) -> Metrics:
        """Reported as the mean over decisions, as the largest where the name ends in `_max`, and as the effective share
        of importance weights where it ends in `_ess`."""
        with torch.no_grad():
            return self.compute_metrics()


def add_terms(first: LossTerms, second: LossTerms, *, weight: float = 1.0) -> LossTerms:
    """first + weight * second, per decision; the metrics of both (the second's where a name stands in both)."""
    return LossTerms(
        loss=torch.add(first.loss, second.loss, alpha=weight),
        compute_metrics=lambda: {**first.metrics, **second.metrics},
    )


def scale_terms(terms: LossTerms, multiplier: Multiplier) -> LossTerms:
    """multiplier * loss: `multiplier` is data (a mask, an importance weight) and gets no gradient.

    The weights of the sum stay what they are, so what a mask drops still counts in the denominator: dropping more
    decisions never makes the others count for more.
    """
    return LossTerms(loss=terms.loss * multiplier.detach().to(terms.loss.dtype), compute_metrics=terms.compute_metrics)
