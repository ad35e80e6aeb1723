"""Sums of metrics over the minibatches of an optimizer step, and counts of the work done."""

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hone.core.credit import Metrics
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.objectives.terms import LossTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCost:
    """Compute cost of a micro-batch."""

    tokens: float
    """Tokens that went through a network, pass by pass."""
    flops: Tensor
    """`[]` floating-point operations; a multiplication and an addition are two."""


@dataclass
class MetricsAccumulator:
    """Sums the metrics of a step's minibatches; O(1) per term."""

    sums: dict[tuple[str, ...], Tensor] = field(default_factory=dict[tuple[str, ...], Tensor])
    counts: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    maxima: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    weight_moments: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Moments of weights w: their number, sum w, sum w^2."""
    step_values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    tokens: float = 0.0
    flops: Tensor | None = None

    def add(self, terms: LossTerms) -> None:
        """Add metrics with one stacked sum per size: the cost of a small network's step is its number of kernels."""
        sizes: dict[int, list[str]] = {}
        metrics = terms.metrics
        for name, value in metrics.items():
            if name.endswith("_max"):
                peak = value.max() if value.numel() else torch.zeros(())
                self.maxima[name] = torch.maximum(self.maxima[name], peak) if name in self.maxima else peak
            elif name.endswith("_ess"):
                moments = torch.stack((torch.ones_like(value).sum(), value.sum(), value.square().sum()))
                self.weight_moments[name] = (
                    self.weight_moments[name] + moments if name in self.weight_moments else moments
                )
            else:
                sizes.setdefault(value.numel(), []).append(name)
        for size, names in sizes.items():
            sums = torch.stack([metrics[name] for name in names]).sum(dim=1)
            key = tuple(names)
            self.sums[key] = self.sums[key] + sums if key in self.sums else sums
            self.counts[key] = self.counts.get(key, 0) + size

    def add_step_value(self, name: str, value: float) -> None:
        self.step_values.setdefault(name, []).append(value)

    def add_cost(self, work: ComputeCost) -> None:
        self.tokens += work.tokens
        self.flops = work.flops if self.flops is None else self.flops + work.flops

    def means(self, reduction: Reduction = ONE_PROCESS) -> Metrics:
        """One figure a name over all ranks: loss terms by decision, values by optimizer step, cost in all."""
        noted = {name: sum(values) / len(values) for name, values in self.step_values.items()}
        ranks = self._figures_of_ranks(reduction)
        found: Metrics = {}
        for name in dict.fromkeys(name for figures in ranks for name in figures):
            rows = [figures[name] for figures in ranks if name in figures]
            if name.endswith("_max"):
                found[name] = max(row[0] for row in rows)
                continue
            first, *others = rows
            sums = [sum(column, start=start) for start, *column in zip(first, *others, strict=True)]
            if name.endswith("_ess"):
                found[name] = effective_sample_share(sums[0], sums[1], sums[2])
            else:
                found[name] = sums[0] if len(sums) == 1 else sums[0] / max(sums[1], 1)
        return noted | found

    def _figures_of_ranks(self, reduction: Reduction) -> list[dict[str, list[float]]]:
        """Sums and counts, maxima, moments of weights, and cost by name, of each rank: names may differ between them,
        because a rank may be without rows."""
        own: dict[str, list[float]] = {}
        for names, sums in self.sums.items():
            for name, value in zip(names, sums.tolist(), strict=True):
                before, count = own.get(name, (0.0, 0))
                own[name] = [before + value, count + self.counts[names]]
        own |= {name: [float(value)] for name, value in self.maxima.items()}
        own |= {name: row.tolist() for name, row in self.weight_moments.items()}
        if self.flops is not None:
            own |= {"learner/tokens": [self.tokens], "learner/flops": [float(self.flops)]}
        if reduction is ONE_PROCESS:
            return [own]
        parts = reduction.gather(np.frombuffer(json.dumps(own).encode(), np.uint8))
        return [json.loads(part.tobytes()) for part in parts]


def effective_sample_share(count: float, total: float, squares: float) -> float:
    """Effective sample size of importance weights as a share of their number, (sum w)^2 / (n sum w^2) (Kong, 1992)."""
    return total * total / (count * squares) if squares > 0 else 0.0
