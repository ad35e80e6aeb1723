"""The gradient learner: epochs of minibatches, micro-batches under a token budget, one optimizer step each.

No branch here knows which algorithm runs. An algorithm is the `layout` that lays episodes out in rows, and the `phases`
that are stepped one after another on each minibatch (one for a policy gradient; critics, actor and temperature for
SAC).
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError, DivergedError
from hone.core.random import permutation
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.core.state import State, Stateful, integer, substate
from hone.learner.adam import Adam
from hone.learner.share import UNBOUNDED, ParameterStore, current_share, split_by_token_budget
from hone.objectives.terms import LossTerms

# -------------------------------------------------------------------------------------------------------------- metrics


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
        means: Metrics = {}
        for name in dict.fromkeys(name for figures in ranks for name in figures):
            rows = [figures[name] for figures in ranks if name in figures]
            if name.endswith("_max"):
                means[name] = max(row[0] for row in rows)
                continue
            first, *others = rows
            sums = [sum(column, start=start) for start, *column in zip(first, *others, strict=True)]
            if name.endswith("_ess"):
                means[name] = _effective_sample_share(sums[0], sums[1], sums[2])
            else:
                means[name] = sums[0] if len(sums) == 1 else sums[0] / max(sums[1], 1)
        return noted | means

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


def _effective_sample_share(count: float, total: float, squares: float) -> float:
    """Effective sample size of importance weights as a share of their number, (sum w)^2 / (n sum w^2) (Kong, 1992)."""
    return total * total / (count * squares) if squares > 0 else 0.0


# ------------------------------------------------------------------------------------------------------------- gradient


P = TypeVar("P", bound=nn.Module)


class TensorBatch(Protocol):
    """Rows as a network reads them: tensors on its device."""

    @property
    def weight(self) -> Tensor:
        """`[n]` weight of each decision in the loss."""
        ...


B = TypeVar("B", bound=TensorBatch)


B_co = TypeVar("B_co", bound=TensorBatch, covariant=True)


class TrainingRows(Protocol[B_co]):
    """A batch laid out for a network. A row is the smallest unit of a minibatch: a sequence, a group, a step. What
    divides a batch (minibatches, micro-batches, ranks) takes whole rows."""

    def __len__(self) -> int: ...

    def sizes(self) -> NDArray[np.int64]:
        """`[rows]` cost of each row in tokens (1 for a step of control)."""
        ...

    def take(self, rows: NDArray[np.int64]) -> Self: ...

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        """The same rows as one optimizer step's batch: the weights of all loss terms are fixed here, once, with the
        totals of all ranks. Rows that cannot contribute to the gradient may be left out, because they were counted in
        the denominator before."""
        ...

    def tensors(self) -> B_co: ...


def split_by_rows(
    rows: TrainingRows[B], order: NDArray[np.int64], count: int, reduction: Reduction = ONE_PROCESS
) -> Iterator[TrainingRows[B]]:
    """`count` minibatches of `rows` in `order`, as even as they come, each of them weighted."""
    for part in np.array_split(order, count):
        yield rows.take(part).weighted(reduction)


@dataclass
class OptimizerPhase(Generic[P, B]):
    """One optimizer step per minibatch: a loss over `parameters`, with its own Adam."""

    name: str
    objective: Callable[[P, B], LossTerms]
    parameters: ParameterStore
    optimizer: Adam
    max_grad_norm: float | None = None
    prepare: Callable[[P, Any, int, Reduction], TrainingRows[B]] | None = None
    """Policy, rows of one optimizer step, its number and the reduction over ranks -> the same rows, with selections
    over the whole batch, before they are cut into micro-batches."""
    on_micro_batch: Callable[[B, LossTerms], None] | None = None
    """Called with every micro-batch of a step and its loss terms; of several ranks, each hears of its own, and
    `step_metrics` joins what they heard."""
    update_every: int = 1
    """Stepped on every n-th minibatch only: TD3's delayed policy."""
    after_step: Callable[[P], None] | None = None
    """Runs after each of its steps: target networks that follow no more often than it."""
    step_metrics: Callable[[P], Metrics] | None = None
    """Runs after each of its steps: figures of the whole step, which are no means over its decisions."""
    objective_with_backward: Callable[[P, B], LossTerms] | None = None
    """`objective` with its gradient written out: adds that of sum(weight * loss) to the parameters' gradients, and
    returns the terms as data. Must agree with `objective` to rounding."""


@dataclass
class GradientLearner(Generic[P, B]):
    """`policy` is improved by `phases`, on rows made by `layout`."""

    policy: P
    layout: Callable[[Episodes, Credits], TrainingRows[B]]
    phases: Sequence[OptimizerPhase[P, B]]
    seed: int
    learning_rate: Callable[[int], float]
    """Update number (0-based) -> learning rate of every phase."""
    predict_values: Callable[[P, Episodes], Values] | None = None
    """The critic, where there is one."""
    epochs: int = 1
    minibatches: int = 1
    """Minibatches per epoch; each is one optimizer step."""
    shuffle: bool = True
    micro_batch_tokens: int = UNBOUNDED
    """Rows are stepped through the network this many tokens at a time; memory, not mathematics."""
    after_step: Callable[[P], None] | None = None
    """Runs after the phases of each minibatch: target networks."""
    on_metrics: Callable[[Metrics], None] | None = None
    """Called with the metrics of every update; may raise to stop the run."""
    compute_cost: Callable[[P, B], ComputeCost] | None = None
    """Cost of a micro-batch, where it is counted: `learner/tokens` and `learner/flops` of an update."""
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fingerprints of the policies that the loss compares with; a resume must find them unchanged."""
    split: Callable[[Any, NDArray[np.int64], int, Reduction], Iterator[Any]] = split_by_rows
    """Rows, their order `[rows]`, a number and the reduction -> that many minibatches, each of them weighted."""
    reduction: Reduction = ONE_PROCESS
    """Totals over the ranks that share a batch."""
    extra_state: Mapping[str, Stateful] = field(default_factory=dict[str, Stateful])
    """Further state of the loss, kept from update to update: saved and restored with the learner."""
    penalise: Callable[[ParameterStore], Metrics] | None = None
    """Adds the gradient of a penalty on the parameters to that of a phase, once for all ranks, and returns figures."""
    updates: int = 0

    def values(self, episodes: Episodes) -> Values:
        return NO_VALUES if self.predict_values is None else self.predict_values(self.policy, episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        everything = self.layout(episodes, credits)
        tally = MetricsAccumulator()
        for telling, rows in self._split_into_minibatches(everything):
            rate = self.learning_rate(self.updates)
            for phase in (one for one in self.phases if (self.updates + 1) % one.update_every == 0):
                self._optimizer_step(phase, rows, rate, tally, with_metrics=telling)
                if phase.after_step is not None:
                    phase.after_step(self.policy)
            if self.after_step is not None:
                self.after_step(self.policy)
            self.updates += 1
        metrics = {
            **credits.metrics,
            **tally.means(self._everybody()),
            "learner/lr": self.learning_rate(self.updates - 1),
        }
        if self.on_metrics is not None:
            self.on_metrics(metrics)
        return metrics

    def _everybody(self) -> Reduction:
        """Reduction of what is counted on this rank's micro-batches."""
        share = current_share()
        return self.reduction if share is None else share.reduction

    def _split_into_minibatches(self, everything: TrainingRows[B]) -> Iterator[tuple[bool, TrainingRows[B]]]:
        """The minibatches, and whether metrics are taken of each: they are of the last epoch, where the step ends."""
        count = len(everything)
        whole = everything.weighted(self.reduction) if self.minibatches == 1 and not self.shuffle else None
        for epoch in range(self.epochs):
            telling = epoch == self.epochs - 1
            if whole is not None:
                yield telling, whole
                continue
            order = (
                permutation(self.seed, "minibatch", self.updates, count=count)
                if self.shuffle
                else np.arange(count, dtype=np.int64)
            )
            # Without rows (no pair in a step) there is one empty minibatch.
            for rows in self.split(everything, order, max(1, min(self.minibatches, count)), self.reduction):
                yield telling, rows

    def _optimizer_step(
        self,
        phase: OptimizerPhase[P, B],
        rows: TrainingRows[B],
        rate: float,
        tally: "MetricsAccumulator",
        *,
        with_metrics: bool,
    ) -> None:
        if phase.prepare is not None:
            rows = phase.prepare(self.policy, rows, self.updates, self.reduction)
        losses = self._accumulate_gradients(phase, rows, tally, with_metrics=with_metrics)
        for name, value in (self.penalise(phase.parameters) if self.penalise is not None else {}).items():
            tally.add_step_value(name, value)
        *totals, norm = torch.stack([*losses, phase.parameters.gradient_norm()]).tolist()
        loss = total(sum(totals), self._everybody())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"{phase.name}: loss {loss}, gradient norm {norm} at update {self.updates}: not a finite number. "
                "The step was not taken: the weights are those before it. Lower learner.lr or learner.max_grad_norm, "
                "and look at the saved batch."
            )
        if phase.max_grad_norm is not None and norm > phase.max_grad_norm:
            for gradient in phase.parameters.gradients:
                gradient.mul_(phase.max_grad_norm / (norm + 1e-6))
        phase.optimizer.step(rate)
        for name, value in (phase.step_metrics(self.policy) if phase.step_metrics is not None else {}).items():
            tally.add_step_value(name, value)
        tally.add_step_value(f"{phase.name}/loss", loss)
        tally.add_step_value(f"{phase.name}/grad_norm", norm)

    def _accumulate_gradients(
        self, phase: OptimizerPhase[P, B], rows: TrainingRows[B], tally: MetricsAccumulator, *, with_metrics: bool
    ) -> list[Tensor]:
        """Backward passes of one optimizer step, on this process's micro-batches -> their losses `[]`."""
        losses: list[Tensor] = []
        with phase.parameters.collect_gradients():
            for piece, counts in own_micro_batches(rows, self.micro_batch_tokens):
                batch = piece.tensors()
                terms, loss = _backward(phase, self.policy, batch, counts=counts)
                if not counts:
                    continue
                losses.append(loss)
                if phase.on_micro_batch is not None:
                    phase.on_micro_batch(batch, terms)
                if self.compute_cost is not None:
                    tally.add_cost(self.compute_cost(self.policy, batch))
                if with_metrics:
                    tally.add(terms)
        if (share := current_share()) is not None:
            phase.parameters.reduce(share)
        return losses

    def state(self) -> State:
        return {
            "updates": self.updates,
            "phases": {phase.name: phase.optimizer.state() for phase in self.phases},
            "constants": dict(self.fingerprints),
            "kept": {name: part.state() for name, part in self.extra_state.items()},
        }

    def restore(self, state: State) -> None:
        """Raises DataError when something that the loss is computed against is not what it was."""
        before = substate(state, "constants") if self.fingerprints else {}
        for name, now in self.fingerprints.items():
            if before.get(name) != now:
                raise DataError(
                    f"{name} is not what this run was started with (was {before.get(name)}, is {now}): a resumed run "
                    "would be another run; put the old one back, or start a new run"
                )
        self.updates = integer(state, "updates")
        for phase in self.phases:
            phase.optimizer.restore(substate(substate(state, "phases"), phase.name))
        for name, part in self.extra_state.items():
            part.restore(substate(substate(state, "kept"), name))


def own_micro_batches(rows: TrainingRows[B], budget_tokens: int) -> Iterator[tuple[TrainingRows[B], bool]]:
    """Micro-batches of this process, and whether they count: with several ranks, a row may only fill a pass up."""
    share = current_share()
    if share is None:
        for piece in micro_batches(rows, budget_tokens):
            yield piece, True
    elif len(rows):
        for places, counts in share.micro_batches(rows.sizes(), budget_tokens):
            yield rows.take(places), counts


def _backward(phase: OptimizerPhase[P, B], policy: P, batch: B, *, counts: bool = True) -> tuple[LossTerms, Tensor]:
    """Adds the gradient of a micro-batch's loss, or of 0 times that loss -> its terms, and the loss `[]`."""
    if phase.objective_with_backward is not None:
        with torch.no_grad():
            weighed = phase.objective_with_backward if counts else phase.objective
            terms = weighed(policy, batch)
            return terms, terms.weighted_sum(batch.weight)
    terms = phase.objective(policy, batch)
    loss = terms.weighted_sum(batch.weight)
    (loss if counts else loss * 0.0).backward()
    return terms, loss.detach()


def micro_batches(rows: TrainingRows[B], budget_tokens: int) -> Iterator[TrainingRows[B]]:
    """`rows`, in pieces of at most `budget_tokens` where they are more."""
    if budget_tokens >= UNBOUNDED and len(rows):
        yield rows
        return
    sizes = rows.sizes()
    if 0 < int(sizes.sum()) <= budget_tokens:
        yield rows
        return
    for piece in split_by_token_budget(sizes, budget_tokens):
        yield rows.take(piece)
