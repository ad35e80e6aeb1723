"""Ranks that share a batch compute the weights, selections and totals of one process, to the bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ranks_in_threads import on_ranks

from hone.core.reduction import ONE_PROCESS, largest, total, whole_batch
from hone.objectives.batchwide import q_value_scale
from hone.objectives.selection import (
    clip_cov_mask,
    high_entropy_mask,
    kl_cov_mask,
    second_moment_mask,
)
from hone.objectives.weights import (
    constant_length,
    prompt_mean,
    prompt_sequence_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
    token_sum,
)

Column = NDArray[Any]


def by_group(scheme: Callable[..., Column]) -> Callable[..., Column]:
    return lambda lengths, group: scheme(lengths, group=group)


SCHEMES: dict[str, Callable[..., Column]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant_length": partial(constant_length, length=7),
    "token_sum": token_sum,
    "sequence_sum": sequence_sum,
    "prompt_mean": by_group(prompt_mean),
    "prompt_sequence_mean": by_group(prompt_sequence_mean),
}
SELECTIONS: dict[str, tuple[Callable[..., Column], int]] = {
    "high_entropy": (high_entropy_mask, 1),
    "kl_cov": (partial(kl_cov_mask, fraction=0.3), 2),
    "second_moment": (partial(second_moment_mask, max_second_moment=0.5), 2),
    "clip_cov": (
        lambda now, credit, uniform: clip_cov_mask(
            now, credit, now > 1, uniform, fraction=0.3, min_covariance=-1, max_covariance=2
        ),
        3,
    ),
    "q_value_scale": (q_value_scale, 1),
}


def cut(columns: tuple[Column, ...], places: list[int], rank: int) -> tuple[Column, ...]:
    """Rows of one rank, of columns that are cut at `places`."""
    edges = [0, *sorted(places), len(columns[0])]
    return tuple(column[edges[rank] : edges[rank + 1]] for column in columns)


def agree(function: Callable[..., Column], columns: tuple[Column, ...], places: list[int]) -> None:
    parts = on_ranks(len(places) + 1, lambda ranks: whole_batch(function, ranks)(*cut(columns, places, ranks.rank)))
    whole = whole_batch(function, ONE_PROCESS)(*columns)
    np.testing.assert_array_equal(whole, function(*columns))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert [len(part) for part in parts] == [len(cut(columns, places, rank)[0]) for rank in range(len(parts))]


sizes = st.integers(1, 30).flatmap(
    lambda count: st.tuples(st.just(count), st.lists(st.integers(0, count), min_size=1, max_size=3))
)


@pytest.mark.parametrize("name", SCHEMES)
@examples(20)
@given(sizes, st.integers(0, 9))
def test_weights_of_ranks_are_those_of_one_process(name: str, size: tuple[int, list[int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, 9, size[0]), rng.integers(0, 4, size[0]))
    agree(SCHEMES[name], columns if name.startswith("prompt") else columns[:1], size[1])


@pytest.mark.parametrize("name", SELECTIONS)
@examples(20)
@given(sizes, st.integers(0, 9))
def test_selections_of_ranks_are_those_of_one_process(name: str, size: tuple[int, list[int]], seed: int) -> None:
    function, count = SELECTIONS[name]
    rng = np.random.default_rng(seed)
    columns = tuple(rng.random(size[0]) if place == 2 else rng.normal(size=size[0]) for place in range(count))
    agree(function, columns, size[1])


@examples(20)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4))
def test_totals_are_added_in_the_order_of_ranks(values: list[float]) -> None:
    told = on_ranks(len(values), lambda ranks: (total(values[ranks.rank], ranks), largest(values[ranks.rank], ranks)))
    assert told == [(sum(values[1:], start=values[0]), max(values))] * len(values)
    assert (total(values[0], ONE_PROCESS), largest(values[0], ONE_PROCESS)) == (values[0], values[0])
