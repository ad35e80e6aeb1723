"""Gradient certificate of a loss: a batch's gradient must not depend on its split, up to rounding.

Belongs here: splits and comparisons, for any learner of a recipe. The loss, its aggregation, selections and corrections
are the run's own; the policy is a small copy in float64 and the batch is synthetic (`token_probes.py`,
`control_probes.py`: a run opens its own wing's only), so that neither an environment nor a reward is needed, and the
run is unchanged.
"""

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone import __version__
from hone.core.clock import counted
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator, permutation
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.learner.gradient import GradientLearner, OptimizerPhase, TrainingRows, micro_batches
from hone.objectives.terms import LossTerms
from hone.run.store.records import GradientCertificate, GradientCheck

RANDOM_BUDGETS = 3
"""Number of random micro-batch budgets."""
LEAST_GRADIENT = 1e-14
"""Largest component of a gradient that may be the rounding of zeros."""
LARGE_MICRO_BATCH = 512
"""Sequences, or decisions of control, of the largest micro-batch."""

Objective = Callable[[Any, Any], LossTerms]
RowFinisher = Callable[[TrainingRows[Any], Reduction], TrainingRows[Any]]
"""Weights rows and makes the learner's selections over the batch of all ranks."""
BatchSplit = tuple[str, str, Sequence[TrainingRows[Any]]]
"""Name, description, and pieces of a split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchVariant:
    """Rows whose gradient must be `copies` times that of `reference`."""

    name: str
    detail: str
    rows: TrainingRows[Any]
    reference: TrainingRows[Any]
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveVariant:
    """A change of the objective that must not change the gradient on the same rows."""

    name: str
    detail: str
    change: Callable[[Objective], Objective]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProbe:
    """One phase of a learner with the batch of one optimizer step after weighting and selection, ready to be split."""

    name: str
    policy: nn.Module
    objective: Objective
    parameters: Sequence[nn.Parameter]
    rows: TrainingRows[Any]
    laid: TrainingRows[Any]
    """The batch before weighting and selection."""
    finish: RowFinisher
    objective_with_backward: Objective | None = None
    """The objective with its gradient written out, if the learner steps by that."""
    batch: str
    """Size of the batch, in words."""
    unit: str = "sequence"
    """What one row without shared parts is."""
    separate: TrainingRows[Any] | None = None
    """The rows with nothing shared among them; None: nothing is shared."""
    large: str = "rows"
    """What a large micro-batch counts."""
    large_count: int
    """How many of them the batch has."""
    variants: Sequence[BatchVariant] = ()
    """Other forms of the batch that the policy's kind knows."""
    objective_variants: Sequence[ObjectiveVariant] = ()
    """Changes of the objective that the policy's kind knows."""


def summed_gradient(trial: GradientProbe, pieces: Sequence[TrainingRows[Any]]) -> Tensor:
    """Gradient `[P]` in float64: the sum over `pieces` of the gradient of sum(weight * loss), as in the learner."""
    total = torch.zeros(sum(parameter.numel() for parameter in trial.parameters), dtype=torch.float64)
    for piece in (one for one in pieces if len(one)):  # of a rank's share, nothing may be left
        batch = piece.tensors()
        loss = trial.objective(trial.policy, batch).weighted_sum(batch.weight)
        gradients = torch.autograd.grad(loss, trial.parameters, allow_unused=True, materialize_grads=True)
        total += torch.cat([one.flatten() for one in gradients]).double().cpu()
    return total


def gradient_probes(
    learner: GradientLearner[Any, Any], double: nn.Module, laid: TrainingRows[Any]
) -> list[GradientProbe]:
    """Probes of the learner's phases on rows that are laid out, with `double` as the policy."""

    def probe(phase: OptimizerPhase[Any, Any]) -> GradientProbe:
        finish = partial(_finished_rows, phase, double)
        rows = finish(laid, ONE_PROCESS)
        # the double's parameters that have the names that `parameters` have in `policy`
        wanted = {id(parameter) for parameter in phase.parameters.parameters}
        names = {name for name, parameter in learner.policy.named_parameters() if id(parameter) in wanted}
        return GradientProbe(
            name=phase.name,
            policy=double,
            objective=phase.objective,
            # The double of a model that transformers computes is another, and has other names: all of it is checked.
            parameters=[parameter for name, parameter in double.named_parameters() if name in names]
            or [*double.parameters()],
            rows=rows,
            laid=laid,
            finish=finish,
            objective_with_backward=phase.objective_with_backward,
            batch=f"{len(rows)} decisions",
            large_count=len(rows),
        )

    return [probe(phase) for phase in learner.phases]


def _finished_rows(
    phase: OptimizerPhase[Any, Any], policy: nn.Module, laid: TrainingRows[Any], reduction: Reduction
) -> TrainingRows[Any]:
    """Rows of one optimizer step, weighted and with the phase's selections over all of them."""
    rows = laid.weighted(reduction)
    return rows if phase.prepare is None else phase.prepare(policy, rows, 0, reduction)


def synthetic_credits(episodes: Episodes, *, seed: int) -> Credits:
    """Make synthetic credits with every field that a layout may read, in place of the config's own."""
    draws = generator(seed, "certificate", "credits")
    advantage, target = draws.standard_normal((2, episodes.decisions))
    silent = ~np.isfinite(episodes.score) | (np.arange(len(episodes)) % 7 == 3)
    advantage[silent[episodes.owner]] = 0.0
    return Credits(
        advantage=advantage.astype(np.float32),
        target=target.astype(np.float32),
        discount=np.where(draws.random(episodes.decisions) < 0.2, 0.0, 0.99).astype(np.float32),
    )


def batch_splits(probe: GradientProbe, *, seed: int = 0) -> Iterator[BatchSplit]:
    """Splits of a batch that must not change the gradient."""
    rows, apart = probe.rows, probe.separate or probe.rows
    if probe.separate is not None:
        yield "prefixes not shared", f"{len(apart)} sequences instead of {len(rows)} rows", [apart]
    each = [apart.take(np.array([number])) for number in range(len(apart))]
    yield f"one {probe.unit} at a time", f"{len(each)} micro-batches", each
    largest, total = int(rows.sizes().max(initial=1)), int(rows.sizes().sum())
    least = max(largest, total // 8)
    for budget in generator(seed, "certificate", "budgets").integers(least, max(least, total // 2) + 1, RANDOM_BUDGETS):
        pieces = list(micro_batches(rows, int(budget)))
        yield f"micro_batch_tokens = {budget}", f"{len(pieces)} micro-batches", pieces
    order = permutation(seed, "certificate", "order", count=len(rows))
    yield "another order", f"{len(rows)} rows shuffled", [rows.take(order)]
    yield "two shards, summed", "every other row, as two ranks would take them", rank_shares(rows, 2)


def rank_shares(rows: TrainingRows[Any], count: int) -> list[TrainingRows[Any]]:
    """Rows of each of `count` data-parallel ranks; groups that are rows stay whole."""
    return [rows.take(places) for places in _rank_places(rows, count)]


def rank_gradient(trial: GradientProbe, reduction: Reduction, *, ranks: int) -> Tensor:
    """Gradient `[P]` of one rank's share, which the rank weights and selects from together with the others."""
    share = rank_shares(trial.laid, ranks)[reduction.rank]
    return summed_gradient(trial, [trial.finish(share, reduction)])


def gradient_in_rank_order(trial: GradientProbe, *, ranks: int) -> Tensor:
    """Gradient `[P]` of the whole batch on one process, with its rows in the order of the ranks that share them, which
    random selections depend on."""
    rows = trial.laid.take(np.concatenate(_rank_places(trial.laid, ranks)))
    return summed_gradient(trial, [trial.finish(rows, ONE_PROCESS)])


def _rank_places(rows: TrainingRows[Any], count: int) -> list[NDArray[np.int64]]:
    return [np.arange(rank, len(rows), count) for rank in range(count)]


def run_gradient_checks(trial: GradientProbe, *, prefix: str = "", seed: int = 0) -> list[GradientCheck]:
    """Compare the whole batch's gradient with every split, and with those of `_other_gradients`."""
    whole = summed_gradient(trial, [trial.rows])
    checks = [
        compare_gradients(f"{prefix}{name}", detail, whole, summed_gradient(trial, pieces))
        for name, detail, pieces in counted(batch_splits(trial, seed=seed), "splits of the batch compared")
    ]
    # the batch several times over in one micro-batch: a loss must not change where a micro-batch is large
    rows, count = trial.rows, trial.large_count
    copies = max(2, -(-LARGE_MICRO_BATCH // max(1, count)))
    for variant in (
        BatchVariant(
            name="one large micro-batch",
            detail=f"the batch {copies} times over: {copies * count} {trial.large}",
            rows=rows.take(np.tile(np.arange(len(rows)), copies)),
            reference=rows,
            copies=copies,
        ),
        *trial.variants,
    ):
        expected = whole if variant.reference is trial.rows else summed_gradient(trial, [variant.reference])
        gradient = summed_gradient(trial, [variant.rows]) / variant.copies
        checks.append(compare_gradients(f"{prefix}{variant.name}", variant.detail, expected, gradient))
    for name, detail, gradient in _other_gradients(trial):
        checks.append(compare_gradients(f"{prefix}{name}", detail, whole, gradient))
    return checks


def _other_gradients(trial: GradientProbe) -> Iterator[tuple[str, str, Tensor]]:
    """Name, description and gradient of the same batch, computed in another way."""
    for other in trial.objective_variants:
        changed = replace(trial, objective=other.change(trial.objective))
        yield other.name, other.detail, summed_gradient(changed, [trial.rows])
    if trial.objective_with_backward is not None:
        what = "autograd of `objective` against `objective_with_backward`"
        yield "gradient written out", what, _written_out_gradient(trial, [trial.rows])
        each = [trial.rows.take(np.array([number])) for number in range(len(trial.rows))]
        yield "gradient written out, row by row", what, _written_out_gradient(trial, each)


def _written_out_gradient(trial: GradientProbe, pieces: Sequence[TrainingRows[Any]]) -> Tensor:
    """Gradient `[P]` that `objective_with_backward` adds to the parameters' own, over all `pieces`."""
    assert trial.objective_with_backward is not None
    for parameter in trial.policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        for piece in pieces:
            trial.objective_with_backward(trial.policy, piece.tensors())
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in trial.parameters]
    trial.policy.zero_grad(set_to_none=True)
    return torch.cat([one.flatten() for one in gradients]).double().cpu()


def compare_gradients(name: str, detail: str, whole: Tensor, cut: Tensor) -> GradientCheck:
    """Compare two gradients. A gradient of zeros, or of their rounding, is no evidence and does not pass."""
    difference = float((cut - whole).abs().max())
    size = float(whole.abs().max())
    relative = difference / size if size > LEAST_GRADIENT else float("nan")
    return GradientCheck(name=name, detail=detail, difference=difference, relative=relative)


def check_prefix(trial: GradientProbe, among: Sequence[GradientProbe]) -> str:
    """Prefix of a check's name, if the learner has several phases."""
    return f"{trial.name}: " if len(among) > 1 else ""


def build_certificate(
    probes: Sequence[GradientProbe],
    *,
    recipe: str,
    config_hash: str,
    extra_checks: Sequence[GradientCheck] = (),
    seed: int = 0,
) -> GradientCertificate:
    """Make the certificate from the checks of all phases, and from `more` checks."""
    with _single_thread():
        checks = [
            check
            for trial in probes
            for check in run_gradient_checks(trial, prefix=check_prefix(trial, probes), seed=seed)
        ]
    return GradientCertificate(
        recipe=recipe,
        config_hash=config_hash,
        batch="; ".join(f"{check_prefix(trial, probes)}{trial.batch}" for trial in probes),
        checks=(*checks, *extra_checks),
        versions={
            "hone": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    )


@contextlib.contextmanager
def _single_thread() -> Iterator[None]:
    """Use one thread, for matrices that are too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
