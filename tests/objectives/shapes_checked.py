"""Every loss with its shapes checked: what `test_objectives_shapes.py` runs in a Python of its own, under the hook.

Not collected by itself: without the hook nobody looks at annotations, and the wrong shapes below are silently taken.
"""

from collections.abc import Callable
from dataclasses import fields, replace

import objectives_cases as answers
import policy_cases as policies
import pytest
import torch
from jaxtyping import TypeCheckError
from objectives_cases import CASES
from policy_cases import LOSSES, Batch, View, factors, make_batch, view, weight
from torch import Tensor

from hone.objectives.terms import LossTerms

SPREAD = {("sac_actor_loss", "alpha"), ("dpo reweighted", "weight")}
"""One number for all rows: a temperature may be; a weight is not held to the rows of terms that were made before."""
PLACES = [field.name for field in fields(View) if field.name != "batch"] + [f"batch.{f.name}" for f in fields(Batch)]

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_policy = pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.name)


def run(terms: LossTerms, rows: int) -> None:
    """Loss, gradient and metrics, all of them looked at."""
    assert terms.loss.shape == (rows,)
    if terms.loss.requires_grad:
        terms.loss.sum().backward()
    assert all(metric.dim() == 1 for metric in terms.metrics.values())


@every
def test_right_shapes_pass(case: answers.Case) -> None:
    for rows in (answers.ROWS, 1, 0):
        columns = case.take(case.columns(), torch.arange(rows))
        leaves = {name: columns[name].requires_grad_() for name in (*case.leaves, *case.shared)}
        run(case.loss(**{**columns, **leaves}), rows)


@every
def test_a_column_that_would_spread_is_refused(case: answers.Case) -> None:
    columns = case.columns()
    alone = sum(len(column) > 1 for column in columns.values()) == 1  # then one row is a batch of one
    for name, column in columns.items():
        with pytest.raises(TypeCheckError, match=r"hone\.objectives\."):
            case.loss(**{**columns, name: column.unsqueeze(1)})
        if len(column) > 1 and not alone and (case.name, name) not in SPREAD:
            with pytest.raises(TypeCheckError, match=r"hone\.objectives\."):
                case.loss(**{**columns, name: column[:1]})


def seen(case: policies.Case) -> View:
    batch = make_batch()
    found = view(batch, weight(), factors(case, batch, weight()))
    return replace(found, now=found.now.detach().requires_grad_())


def column_of(v: View, place: str) -> Tensor:
    return vars(v.batch)[place.removeprefix("batch.")] if place.startswith("batch.") else vars(v)[place]


def with_column(v: View, place: str, column: Tensor | None) -> View:
    if place.startswith("batch."):
        return replace(v, batch=replace(v.batch, **{place.removeprefix("batch."): column}))
    return replace(v, **{place: column})


def fails(loss: Callable[[View], LossTerms], v: View) -> bool:
    try:
        loss(v)
    except (TypeError, AttributeError, TypeCheckError):
        return True
    return False


@every_policy
def test_right_shapes_of_a_policy_loss_pass(case: policies.Case) -> None:
    v = seen(case)
    run(case.loss(v), len(v.now))


@every_policy
def test_a_column_of_a_policy_loss_that_would_spread_is_refused(case: policies.Case) -> None:
    v = seen(case)
    looked_at = [place for place in PLACES if fails(case.loss, with_column(v, place, None))]
    assert "now" in looked_at
    # the cases themselves, not the losses, look tokens up by their ids
    for place in set(looked_at) - {"batch.top", "batch.chosen"}:
        with pytest.raises(TypeCheckError, match=r"hone\.objectives\."):
            case.loss(with_column(v, place, column_of(v, place).unsqueeze(1)))
