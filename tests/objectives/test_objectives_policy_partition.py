"""No loss depends on how a batch was cut: micro-batches, order, packing, padding, ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import LOSSES, Batch, Case, View, factors, gradient, make_batch, view, weight, weights_of
from torch import Tensor
from warm_commands import run_ranks

from hone.objectives import policy
from hone.objectives.ratios import decision_rows, gather_decisions
from hone.objectives.terms import LossTerms

TOLERANCE = 1e-12
STOPPING = {"policy/clip_fraction", "policy/capped_fraction", "mismatch/dropped_fraction"}
cases = pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.name)


def pieces(case: Case, batch: Batch, cuts: list[list[int]], order: Tensor) -> Tensor:
    """Sum of the gradients of the micro-batches `cuts` (numbers of sequences), each in the `order` of its
    decisions."""
    parameters = weight()
    scale, factor = weights_of(case, batch), factors(case, batch, parameters)
    total = torch.zeros_like(parameters)
    for cut in cuts:
        index = order[torch.isin(batch.sequence[order], torch.tensor(cut))]
        total += gradient(case, batch.take(index), scale[index], factor[index], parameters)
    return total


def at_once(case: Case, batch: Batch) -> Tensor:
    parameters = weight()
    return gradient(case, batch, weights_of(case, batch), factors(case, batch, parameters), parameters)


@cases
def test_the_batch_exercises_the_loss(case: Case) -> None:
    """Otherwise the tests below would say nothing: there is a gradient, and a choice chooses some and not all."""
    batch = make_batch()
    assert at_once(case, batch).abs().max() > 1e-3
    metrics = case.loss(view(batch, weight(), factors(case, batch, weight()))).metrics
    for name in STOPPING & metrics.keys():
        assert 0 <= float(metrics[name].mean()) < 1, name
    if "policy/clip_fraction" in metrics:
        assert float(metrics["policy/clip_fraction"].mean()) > 0
    if case.select is not None:
        assert 0 < float((factors(case, batch, weight()) != 0).double().mean()) < 1


@cases
def test_one_sequence_at_a_time(case: Case) -> None:
    batch = make_batch()
    each = [[number] for number in range(8)]
    found = pieces(case, batch, each, torch.arange(len(batch.x)))
    torch.testing.assert_close(found, at_once(case, batch), rtol=0, atol=TOLERANCE)


def test_a_loss_that_looks_at_its_micro_batch_is_caught() -> None:
    def centred(v: View) -> LossTerms:
        return policy.reinforce_loss(v.now, v.batch.advantage - v.batch.advantage.mean())

    case, batch = Case(name="centred", loss=centred), make_batch()
    found = pieces(case, batch, [[number] for number in range(8)], torch.arange(len(batch.x)))
    assert (found - at_once(case, batch)).abs().max() > 1e-3


@examples(300)
@given(
    number=st.integers(0, len(LOSSES) - 1),
    seed=st.integers(0, 50),
    owner=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    shuffle=st.integers(0, 1000),
)
def test_any_partition_and_any_order(number: int, seed: int, owner: list[int], shuffle: int) -> None:
    """Sequences in any micro-batch; decisions of different sequences interleaved as a packer might lay them."""
    case, batch = LOSSES[number], make_batch(seed)
    cuts = [[sequence for sequence in range(8) if owner[sequence] == rank] for rank in range(4)]
    order = torch.randperm(len(batch.x), generator=torch.Generator().manual_seed(shuffle))
    found = pieces(case, batch, [cut for cut in cuts if cut], order)
    torch.testing.assert_close(found, at_once(case, batch), rtol=0, atol=TOLERANCE)


def padded(batch: Batch, garbage: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The batch as rows of one width, with `garbage` where nothing was decided, before, between and after."""
    rng = torch.Generator().manual_seed(7)
    lengths = torch.bincount(batch.sequence)
    width = int(lengths.max()) + 4
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        mask[row, torch.randperm(width, generator=rng)[:length].sort().values] = True
    rows: dict[str, Tensor] = {}
    for name, column in vars(batch).items():
        fill = garbage if column.is_floating_point() else 0
        rows[name] = torch.full((*mask.shape, *column.shape[1:]), fill, dtype=column.dtype)
        rows[name][mask] = column
    return mask, rows


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1e300])
@cases
def test_garbage_where_nothing_was_decided_is_never_read(case: Case, garbage: float) -> None:
    """Also not by the backward pass: the padded tensor that carries the gradient gets exact zeros there."""
    batch, parameters = make_batch(), weight()
    mask, rows = padded(batch, garbage)
    torch.testing.assert_close(decision_rows(mask), batch.sequence)
    rows["x"].requires_grad_()
    gathered = Batch(**dict(zip(rows, gather_decisions(mask, *rows.values()), strict=True)))
    leaf = parameters.clone().requires_grad_()
    scale = weights_of(case, batch)
    loss = (scale * case.loss(view(gathered, leaf, factors(case, batch, parameters))).loss).sum()
    found, at_rows = torch.autograd.grad(loss, [leaf, rows["x"]])
    torch.testing.assert_close(found, at_once(case, batch), rtol=0, atol=TOLERANCE)
    assert (at_rows[~mask] == 0).all()


def one_rank(rank: int, folder: str) -> None:
    """Holds every other sequence, sums gradients over two ranks, and leaves them in a file."""
    torch.set_num_threads(1)
    store = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    batch, parameters = make_batch(), weight()
    mine = (batch.sequence % 2 == rank).nonzero()[:, 0]
    theirs = (batch.sequence % 2 != rank).nonzero()[:, 0]
    gathered = batch.take(torch.cat([mine, theirs] if rank == 0 else [theirs, mine]))
    place = torch.arange(len(mine)) + (0 if rank == 0 else len(theirs))
    found: dict[str, np.ndarray] = {}
    for case in LOSSES:
        lengths = torch.bincount(batch.sequence[mine], minlength=8)
        torch.distributed.all_reduce(lengths)  # the denominators are those of both ranks
        scale = torch.from_numpy(case.scheme(lengths.numpy()))[batch.sequence[mine]]
        factor = factors(case, gathered, parameters)[place]
        slope = gradient(case, batch.take(mine), scale, factor, parameters)
        torch.distributed.all_reduce(slope)
        found[case.name] = slope.numpy()
    np.savez(Path(folder) / f"rank{rank}.npz", **found)
    torch.distributed.destroy_process_group()


def test_two_ranks(tmp_path: Path) -> None:
    """Gloo, two processes: the summed gradients are those of one process, and the same on both ranks."""
    run_ranks(one_rank, str(tmp_path), ranks=2)
    batch = make_batch()
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in range(2))
    for case in LOSSES:
        np.testing.assert_allclose(
            first[case.name], at_once(case, batch).numpy(), rtol=0, atol=TOLERANCE, err_msg=case.name
        )
        np.testing.assert_array_equal(first[case.name], second[case.name])
