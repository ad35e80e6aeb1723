"""Sums of metrics over the minibatches of an optimizer step, and counts of the work done."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hone.core.credit import Metrics
from hone.objectives.terms import LossTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCost:
    """What a micro-batch took."""

    tokens: float
    """That went through a network, pass by pass."""
    flops: Tensor
    """`[]` floating-point operations; a multiplication and an addition are two."""


@dataclass
class MetricsAccumulator:
    """Sums the metrics of a step's minibatches; O(1) per term."""

    sums: dict[tuple[str, ...], Tensor] = field(default_factory=dict[tuple[str, ...], Tensor])
    counts: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    maxima: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    weight_moments: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Of weights w: their number, sum w, sum w^2."""
    step_values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    tokens: float = 0.0
    flops: Tensor | None = None

    def add(self, terms: LossTerms) -> None:
        """One stacked sum for all metrics of a size: a small network's step is mostly the number of its kernels."""
        sizes: dict[int, list[str]] = {}
        told = terms.metrics
        for name, value in told.items():
            if name.endswith("_max"):
                largest = value.max() if value.numel() else torch.zeros(())
                self.maxima[name] = torch.maximum(self.maxima[name], largest) if name in self.maxima else largest
            elif name.endswith("_ess"):
                moments = torch.stack((torch.ones_like(value).sum(), value.sum(), value.square().sum()))
                self.weight_moments[name] = (
                    self.weight_moments[name] + moments if name in self.weight_moments else moments
                )
            else:
                sizes.setdefault(value.numel(), []).append(name)
        for size, names in sizes.items():
            total = torch.stack([told[name] for name in names]).sum(dim=1)
            key = tuple(names)
            self.sums[key] = self.sums[key] + total if key in self.sums else total
            self.counts[key] = self.counts.get(key, 0) + size

    def add_step_value(self, name: str, value: float) -> None:
        self.step_values.setdefault(name, []).append(value)

    def add_cost(self, work: ComputeCost) -> None:
        self.tokens += work.tokens
        self.flops = work.flops if self.flops is None else self.flops + work.flops

    def means(self) -> Metrics:
        """One figure a name: terms by decision, notes by optimizer step, work in all."""
        noted = {name: sum(values) / len(values) for name, values in self.step_values.items()}
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, sums in self.sums.items():
            for name, total in zip(names, sums.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + self.counts[names]
        means = {name: total / max(counts[name], 1) for name, total in totals.items()}
        largest = {name: float(value) for name, value in self.maxima.items()}
        shares = {name: effective_sample_share(*row.tolist()) for name, row in self.weight_moments.items()}
        work = {} if self.flops is None else {"learner/tokens": self.tokens, "learner/flops": float(self.flops)}
        return noted | means | largest | shares | work


def effective_sample_share(count: float, total: float, squares: float) -> float:
    """Effective sample size of importance weights as a share of their number, (sum w)^2 / (n sum w^2) (Kong, 1992)."""
    return total * total / (count * squares) if squares > 0 else 0.0
