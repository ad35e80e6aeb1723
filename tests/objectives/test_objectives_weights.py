"""Aggregation schemes by hand, and what they promise of any batch."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.objectives.weights import (
    WeightingScheme,
    constant_length,
    prompt_mean,
    prompt_sequence_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
    token_sum,
)

LENGTHS = np.array([4, 1, 0, 3])
GROUP = np.array([7, 7, 5, 5])
"""Two prompts with decisions: five of the first, three of the second, in two answers and in one."""


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (token_mean, [1 / 8, 1 / 8, None, 1 / 8]),
        (sequence_mean, [1 / 12, 1 / 3, None, 1 / 9]),
        (partial(constant_length, length=10), [1 / 30, 1 / 30, None, 1 / 30]),
        (token_sum, [1, 1, None, 1]),
        (sequence_sum, [1 / 3, 1 / 3, None, 1 / 3]),
        (partial(prompt_mean, group=GROUP), [1 / 10, 1 / 10, None, 1 / 6]),
        (partial(prompt_sequence_mean, group=GROUP), [1 / 16, 1 / 4, None, 1 / 6]),
    ],
)
def test_by_hand(scheme: WeightingScheme, expected: list[float | None]) -> None:
    """Eight decisions in three sequences that have any; the weight of a sequence without decisions weighs nothing."""
    for found, wanted in zip(scheme(LENGTHS).tolist(), expected, strict=True):
        assert np.isfinite(found)
        assert wanted is None or found == pytest.approx(wanted)


lengths_lists = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(np.array)


@given(lengths_lists, st.sampled_from([token_mean, sequence_mean]))
def test_weights_of_all_decisions_sum_to_one(lengths: np.ndarray, scheme: WeightingScheme) -> None:
    total = float((scheme(lengths) * lengths).sum())
    assert total == pytest.approx(1.0 if lengths.any() else 0.0)


@given(lengths_lists)
def test_sequences_weigh_the_same_whatever_their_length(lengths: np.ndarray) -> None:
    shares = (sequence_mean(lengths) * lengths)[lengths > 0]
    np.testing.assert_allclose(shares, 1 / max(len(shares), 1))


@given(lengths_lists, st.integers(1, 9))
def test_constant_length_is_the_token_mean_of_full_sequences(lengths: np.ndarray, length: int) -> None:
    full = np.full(len(lengths), length)
    np.testing.assert_allclose(constant_length(full, length=length), token_mean(full))
    assert len(set(constant_length(lengths, length=length).tolist())) == 1, "no length changes a weight"


@pytest.mark.parametrize("scheme", [token_mean, sequence_mean, partial(constant_length, length=5)])
def test_empty_sequences_and_empty_batches(scheme: WeightingScheme) -> None:
    padded = np.array([3, 0, 2, 0, 0])
    kept = padded > 0
    np.testing.assert_allclose(scheme(padded)[kept], scheme(padded[kept]), err_msg="an empty sequence counted")
    assert np.isfinite(scheme(np.zeros(3, dtype=np.int64))).all()
    assert scheme(np.zeros(0, dtype=np.int64)).shape == (0,)


@given(lengths_lists, st.integers(0, 3))
def test_prompts_weigh_the_same_whatever_was_answered(lengths: np.ndarray, seed: int) -> None:
    group = np.random.default_rng(seed).integers(0, 4, len(lengths))
    for scheme in (prompt_mean, prompt_sequence_mean):
        share = np.bincount(group, weights=scheme(lengths, group=group) * lengths)
        share = share[np.bincount(group, weights=lengths) > 0]
        np.testing.assert_allclose(share, 1 / max(len(share), 1))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8).map(np.array))
def test_grpo_s_formula_is_the_sequence_mean_of_equal_groups(lengths: np.ndarray) -> None:
    twice, group = np.tile(lengths, 2), np.repeat([0, 1], len(lengths))
    np.testing.assert_allclose(prompt_sequence_mean(twice, group=group), sequence_mean(twice))
    np.testing.assert_allclose(prompt_mean(lengths, group=np.zeros(len(lengths), int)), token_mean(lengths))
