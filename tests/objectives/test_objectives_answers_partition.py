"""Losses that need the whole batch: the statistic once, then any split of the rows, also over two processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from objectives_cases import CASES, ROWS
from torch import Tensor
from warm_commands import run_ranks

from hone.objectives.batchwide import RunningShift, aot_partners, kto_baseline, q_value_scale, same_rank
from hone.objectives.offline import td3_bc_actor_loss
from hone.objectives.preference import aot, aot_unpaired, bco, bco_pair, kto
from hone.objectives.terms import LossTerms

Columns = dict[str, Tensor]
WEIGHT = 1 / ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`fix` maps whole detached columns to data columns; `loss` takes both, for any rows."""

    name: str
    fix: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    loss: Callable[[Columns], LossTerms]


def seen_before() -> RunningShift:
    return RunningShift(mean=0.5, count=10)


STEPS = (
    Step(
        name="kto",
        fix=lambda c: {"z0": kto_baseline(c["c"] + 3.0)},
        loss=lambda c: kto(c["a"], c["flag"], c["z0"]),
    ),
    Step(
        name="bco",
        fix=lambda c: {"shift": seen_before().update(c["a"])},
        loss=lambda c: bco(c["a"], c["flag"], c["shift"]),
    ),
    Step(
        name="bco_pair",
        fix=lambda c: {"shift": seen_before().update(np.concatenate((c["a"], c["b"])))[: len(c["a"])]},
        loss=lambda c: bco_pair(c["a"], c["b"], c["shift"]),
    ),
    Step(
        name="aot",
        fix=lambda c: {"partner": aot_partners(c["a"] - c["b"], c["c"])},
        loss=lambda c: aot(c["a"] - c["b"], c["partner"]),
    ),
    Step(
        name="aot_unpaired",
        fix=lambda c: {"up": same_rank(c["a"], c["b"]), "down": same_rank(c["b"], c["a"])},
        loss=lambda c: aot_unpaired(c["a"], c["b"], c["up"], c["down"]),
    ),
    Step(
        name="td3_bc",
        fix=lambda c: {"scale": q_value_scale(c["a"])},
        loss=lambda c: td3_bc_actor_loss(c["a"], c["b"][:, None], c["c"][:, None], c["scale"]),
    ),
)


def make_columns() -> Columns:
    torch.manual_seed(3)
    drawn = {name: 4 * torch.randn(ROWS, dtype=torch.float64) for name in "abc"}
    return {**drawn, "flag": torch.rand(ROWS) < 0.5}


def fixed(step: Step, columns: Columns) -> Columns:
    data = step.fix({name: column.detach().numpy() for name, column in columns.items()})
    return {name: torch.from_numpy(column) for name, column in data.items()}


def slope(step: Step, columns: Columns, data: Columns, pieces: list[Tensor], place: list[Tensor]) -> Tensor:
    """Gradient with respect to columns a and b, `[2, ROWS]`; a piece's rows are at `place` in `data`."""
    leaves = {name: columns[name].clone().requires_grad_() for name in "ab"}
    for rows, at in zip(pieces, place, strict=True):
        batch = {name: column[rows] for name, column in {**columns, **leaves}.items()}
        loss = step.loss({**batch, **{name: column[at] for name, column in data.items()}}).loss
        (WEIGHT * loss).sum().backward()
    found = [leaves[name].grad for name in "ab"]
    return torch.stack([torch.zeros(ROWS, dtype=torch.float64) if grad is None else grad for grad in found])


def at_once(step: Step) -> Tensor:
    columns, everything = make_columns(), [torch.arange(ROWS)]
    return slope(step, columns, fixed(step, columns), everything, everything)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_no_split_changes_a_gradient(step: Step, size: int) -> None:
    columns = make_columns()
    torch.manual_seed(size)
    pieces = list(torch.randperm(ROWS).split(size))
    found = slope(step, columns, fixed(step, columns), pieces, pieces)
    torch.testing.assert_close(found, at_once(step), rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_statistic_of_each_piece_would(step: Step) -> None:
    """What this guards against: the same loss with the statistic taken piece by piece is another loss."""
    columns, parts = make_columns(), torch.zeros(2, ROWS, dtype=torch.float64)
    for rows in torch.arange(ROWS).split(ROWS // 2):
        local = {name: column[rows] for name, column in columns.items()}
        data = fixed(step, local)
        parts += slope(step, columns, data, [rows], [torch.arange(len(rows))])
    assert not torch.allclose(parts, at_once(step))


def one_rank(rank: int, folder: str) -> None:
    """Holds every other row, takes statistics over both ranks' rows, sums gradients, and leaves them in a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    columns, found = make_columns(), {}
    rows = torch.arange(rank, ROWS, 2)
    place = torch.arange(len(rows)) + rank * len(rows)
    for step in STEPS:
        gathered = {}
        for name, column in columns.items():
            both = [torch.empty_like(column[rows]) for _ in range(2)]
            torch.distributed.all_gather(both, column[rows])
            gathered[name] = torch.cat(both)
        total = slope(step, columns, fixed(step, gathered), [rows], [place])
        torch.distributed.all_reduce(total)
        found[step.name] = total.numpy()
    for case in CASES:
        drawn = case.columns()
        leaves = {name: drawn[name].clone().requires_grad_() for name in (*case.leaves, *case.shared)}
        case.loss(**case.take({**drawn, **leaves}, rows)).loss.sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            torch.distributed.all_reduce(leaf.grad)
            found[f"{case.name}/{name}"] = leaf.grad.numpy()
    np.savez(Path(folder) / f"rank{rank}.npz", **found)
    torch.distributed.destroy_process_group()


def test_two_ranks(tmp_path: Path) -> None:
    """Gloo, two processes: the summed gradients of every loss are those of one process."""
    run_ranks(one_rank, str(tmp_path), ranks=2)
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in range(2))
    for step in STEPS:
        np.testing.assert_allclose(first[step.name], at_once(step).numpy(), rtol=0, atol=1e-12, err_msg=step.name)
    for case in CASES:
        drawn = case.columns()
        leaves = {name: drawn[name].clone().requires_grad_() for name in (*case.leaves, *case.shared)}
        case.loss(**{**drawn, **leaves}).loss.sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            key = f"{case.name}/{name}"
            np.testing.assert_allclose(first[key], leaf.grad.numpy(), rtol=0, atol=1e-12, err_msg=key)
    assert all((first[key] == second[key]).all() for key in first.files)
