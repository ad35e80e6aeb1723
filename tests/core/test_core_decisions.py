"""Draws of decisions: the right frequencies, never an impossible action, and a key that decides alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hone.core.decisions import decision_key, draw_action, schema_hash, uniform_of_key


@given(arrays(np.float64, st.integers(1, 8), elements=st.sampled_from([0.0, 1e-18, 0.1, 1.0, 7.0])), st.integers(0))
def test_an_action_of_probability_zero_is_never_drawn(weights: np.ndarray, seed: int) -> None:
    if not weights.sum():
        weights[0] = 1.0
    with np.errstate(divide="ignore"):
        logp = np.log(weights / weights.sum())
    for draw_key in (0, (1 << 128) - 1, decision_key(seed, "a", "1")):
        assert weights[draw_action(logp, draw_key)] > 0


def test_frequencies_are_the_probabilities() -> None:
    probability = np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        logp = np.log(probability)
    drawn = [draw_action(logp, decision_key(3, "shop", str(number))) for number in range(20_000)]
    frequency = np.bincount(drawn, minlength=4) / len(drawn)
    assert frequency == pytest.approx(probability, abs=4 * np.sqrt(0.25 / len(drawn)))


def test_a_draw_by_hand() -> None:
    # u = 1/2 exactly: the first action covers [0, 0.5), so the second is drawn.
    assert uniform_of_key(1 << 127) == 0.5
    assert draw_action(np.log([0.5, 0.5]), 1 << 127) == 1
    assert draw_action(np.log([0.5, 0.5]), (1 << 127) - 1) == 0


def test_keys_tell_tenants_and_decisions_apart() -> None:
    keys = {decision_key(0, tenant, name) for tenant in ("a", "b") for name in ("1", "11")}
    assert len(keys) == 4
    assert schema_hash(["ab", "c"]) != schema_hash(["a", "bc"])
