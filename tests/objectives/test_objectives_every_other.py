"""What every loss beyond the policy family promises: its formula, any split of the rows, nothing read from padding."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from objectives_cases import CASES, ROWS, Case
from torch import Tensor

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def gradients(case: Case, columns: dict[str, Tensor], pieces: list[Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Of sum(weight * loss), added up over pieces of the rows, with respect to every leaf."""
    leaves = {name: columns[name].clone().requires_grad_() for name in (*case.leaves, *case.shared)}
    for rows in pieces:
        loss = case.loss(**case.take({**columns, **leaves}, rows)).loss
        (loss * weight[rows]).sum().backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    assert all(gradient is not None for gradient in found.values())
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def slope(case: Case, columns: dict[str, Tensor], name: str, place: tuple[int, int], step: float = 1e-5) -> float:
    """Central difference of the slow version at one entry of one leaf."""
    values = []
    for sign in (1, -1):
        moved = {**columns, name: columns[name].clone()}
        moved[name].reshape(ROWS, -1)[place] += sign * step
        values.append(case.slow(*case.row(moved, place[0])))
    return (values[0] - values[1]) / (2 * step)


@every
def test_it_is_its_formula(case: Case) -> None:
    columns = case.columns()
    loss = case.loss(**columns).loss
    assert loss.shape == (ROWS,)
    expected = [case.slow(*case.row(columns, index)) for index in range(ROWS)]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@every
def test_its_gradient_is_that_of_its_formula(case: Case) -> None:
    """Central differences of the slow version, entry by entry."""
    columns = case.columns(seed=1)
    found = gradients(case, columns, [torch.arange(ROWS)], torch.ones(ROWS, dtype=torch.float64))
    for name in case.leaves:
        gradient = found[name].reshape(ROWS, -1)
        for place in product(range(0, ROWS, 3), range(gradient.shape[1])):
            expected = pytest.approx(slope(case, columns, name, place), rel=1e-5, abs=1e-7)
            assert gradient[place].item() == expected, (name, place)


@every
@pytest.mark.parametrize("seed", range(3))
def test_no_split_changes_a_gradient(case: Case, seed: int) -> None:
    columns = case.columns(seed)
    torch.manual_seed(100 + seed)
    weight = torch.rand(ROWS, dtype=torch.float64)
    whole = gradients(case, columns, [torch.arange(ROWS)], weight)
    shuffled = torch.randperm(ROWS)
    cuts = torch.randperm(ROWS - 1)[: 1 + 2 * seed].sort().values + 1
    for pieces in (list(shuffled.tensor_split(cuts)), list(torch.arange(ROWS).split(1))):
        split = gradients(case, columns, pieces, weight)
        for name, gradient in whole.items():
            torch.testing.assert_close(split[name], gradient, rtol=0, atol=1e-12)


@every
def test_padding_is_not_read(case: Case) -> None:
    """Rows among rows of NaN, gathered by the mask: the same gradient, and exactly none for the padding."""
    columns = case.columns()
    weight = torch.ones(ROWS, dtype=torch.float64)
    whole = gradients(case, columns, [torch.arange(ROWS)], weight)
    kept = torch.arange(ROWS) * 2 + 1
    padded = {}
    for name, column in columns.items():
        if len(column) == 1:
            padded[name] = column
            continue
        garbage = torch.nan if column.is_floating_point() else 0
        padded[name] = torch.full((2 * ROWS + 1, *column.shape[1:]), garbage, dtype=column.dtype)
        padded[name][kept] = column
    spread = torch.zeros(2 * ROWS + 1, dtype=torch.float64)
    spread[kept] = weight
    found = gradients(case, padded, [kept], spread)
    for name, gradient in whole.items():
        if name in case.shared:
            torch.testing.assert_close(found[name], gradient)
            continue
        torch.testing.assert_close(found[name][kept], gradient)
        found[name][kept] = 0.0
        assert (found[name] == 0).all()


@every
def test_metrics_are_numbers_of_rows_without_gradient(case: Case) -> None:
    columns = case.columns()
    leaves = {name: columns[name].requires_grad_() for name in (*case.leaves, *case.shared)}
    terms = case.loss(**{**columns, **leaves})
    for name, metric in terms.metrics.items():
        assert metric.dim() == 1, name
        assert len(metric) <= ROWS, name
        assert not metric.requires_grad, name
        assert metric.dtype.is_floating_point, name
        assert torch.isfinite(metric).all(), name


@pytest.mark.parametrize("case", [case for case in CASES if case.bounded], ids=lambda case: case.name)
@pytest.mark.parametrize("size", [40.0, 3000.0])
def test_nothing_overflows_in_float32(case: Case, size: float) -> None:
    """Columns far beyond anything sensible: a large number, and a gradient, but neither infinity nor NaN."""
    columns = {
        name: column.float() * (size if name in case.leaves else 1.0) if column.is_floating_point() else column
        for name, column in case.columns().items()
    }
    leaves = {name: columns[name].clone().requires_grad_() for name in (*case.leaves, *case.shared)}
    loss = case.loss(**{**columns, **leaves}).loss
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    loss.sum().backward()
    assert all(leaf.grad is not None and torch.isfinite(leaf.grad).all() for leaf in leaves.values())


@every
def test_no_rows_are_no_loss(case: Case) -> None:
    terms = case.loss(**case.take(case.columns(), torch.arange(0)))
    assert terms.loss.shape == (0,)
    assert all(metric.numel() == 0 for metric in terms.metrics.values())


@given(st.integers(0, 10_000))
def test_rows_do_not_see_each_other(seed: int) -> None:
    """For any two rows of any loss: the second one's gradient is 0 in the first one's loss."""
    case = CASES[seed % len(CASES)]
    columns = case.columns(seed)
    leaves = {name: columns[name].clone().requires_grad_() for name in case.leaves}
    if not leaves:
        return
    case.loss(**{**columns, **leaves}).loss[0].backward()
    for leaf in leaves.values():
        assert leaf.grad is None or leaf.grad[1:].abs().sum() == 0
