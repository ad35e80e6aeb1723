"""Counter-based streams: known values, independence of ids, draws that do not depend on how many are made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.random import generator, key, keys, permutation, uniforms, uniforms_from_keys

ids = st.lists(st.one_of(st.integers(0, 999), st.text(max_size=4)), max_size=3).map(tuple)


def test_values_are_frozen() -> None:
    """What these give today they must give for ever: a change would change every run that was ever started."""
    assert key(0, "sample") == 0xB8B2EC0A6B60E9ACEBF1594B51BE1678
    assert key(7, "token", "prompt#3", 2) == 0x3F97A6864CBC3D1CB3C1C064B44460F1
    assert uniforms(7, "token", "prompt#3", 2, count=3).tolist() == [
        0.515387932951493,
        0.6582226848996328,
        0.9747019616932555,
    ]
    assert permutation(1, "logged", 0, count=8).tolist() == [4, 5, 0, 3, 2, 6, 7, 1]


@given(ids, ids)
def test_different_ids_have_different_keys(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assert (key(0, "s", *one) == key(0, "s", *other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "s", 1, 23), (0, "s", 12, 3)),
        ((0, "s", 1), (0, "s", "1")),
        ((0, "s", "ab", "c"), (0, "s", "a", "bc")),
        ((0, "sa"), (0, "s", "a")),
        ((1, "s"), (0, "s")),
        ((0, "s", ""), (0, "s")),
    ],
)
def test_neighbours_are_told_apart(one: tuple[int, str], other: tuple[int, str]) -> None:
    assert key(*one) != key(*other)


@given(count=st.integers(0, 60), more=st.integers(0, 60), seed=st.integers(0, 2**40))
def test_a_draw_does_not_depend_on_how_many_are_made(count: int, more: int, seed: int) -> None:
    few, many = uniforms(seed, "s", 3, count=count), uniforms(seed, "s", 3, count=count + more)
    assert few.tolist() == many[:count].tolist()
    assert ((many >= 0) & (many < 1)).all()


@given(st.integers(0, 200), st.integers(0, 50))
def test_a_permutation_holds_every_row_once(count: int, epoch: int) -> None:
    assert sorted(permutation(0, "p", epoch, count=count).tolist()) == list(range(count))


def test_streams_look_uniform_and_unrelated() -> None:
    """4,000 draws each from 20 streams: means, and correlations of neighbouring streams, within 5 standard errors."""
    draws = np.stack([uniforms(0, "token", "prompt", sample, count=4000) for sample in range(20)])
    centred = draws - 0.5
    assert np.abs(centred.mean(axis=1)).max() < 5 * np.sqrt(1 / 12 / 4000)
    correlation = (centred[1:] * centred[:-1]).mean(axis=1) * 12
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_a_generator_carries_nothing_from_one_use_to_the_next() -> None:
    first = generator(3, "x", 1).normal(size=5)
    generator(3, "x", 1).normal(size=1000)
    assert generator(3, "x", 1).normal(size=5).tolist() == first.tolist()


@given(ids, st.integers(0, 5), st.integers(0, 70))
def test_many_streams_at_once_are_the_streams_one_by_one(one: tuple[int | str, ...], streams: int, count: int) -> None:
    """Against numpy's own Philox, to the bit; and the keys in their words."""
    words = keys(3, "s", *one, count=streams)
    assert words.shape == (streams, 2) and words.dtype == np.uint64
    assert [low | high << 64 for low, high in words.tolist()] == [key(3, "s", *one, k) for k in range(streams)]
    drawn = uniforms_from_keys(words, count=count)
    assert drawn.shape == (streams, count)
    for number, row in enumerate(drawn):
        assert row.tobytes() == uniforms(3, "s", *one, number, count=count).tobytes()
