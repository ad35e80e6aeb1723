"""Corrections of engine against trainer by hand, their bounds, and the contract of routing replay."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives import mismatch
from hone.objectives.policy import reinforce_loss


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


OWNER = torch.tensor([0, 0, 1])
THEN = column(-1.0, -2.0, -3.0)
PROXIMAL = THEN + column(4.0, 0.5, 0.1).log()
"""rho = 4, 0.5, 0.1: a first answer with product 2 and geometric mean sqrt 2, a second of 0.1."""


def test_by_hand() -> None:
    root = math.sqrt(2)
    found = {
        "truncated": mismatch.truncated_is(PROXIMAL, THEN),
        "masked": mismatch.masked_is(PROXIMAL, THEN),
        "icepop": mismatch.icepop(PROXIMAL, THEN, weight_floor=0.4),
        "product": mismatch.sequence_truncated_is(PROXIMAL, THEN, OWNER, weight_cap=1.5),
        "product masked": mismatch.sequence_masked_is(PROXIMAL, THEN, OWNER, weight_floor=0.5),
        "geometric": mismatch.geometric_truncated_is(PROXIMAL, THEN, OWNER),
        "rejected": mismatch.geometric_rejection(PROXIMAL, THEN, OWNER, ratio_floor=0.5, ratio_cap=1.5),
    }
    expected = {
        "truncated": (2, 0.5, 0.1),
        "masked": (0, 0.5, 0.1),
        "icepop": (4, 0.5, 0),
        "product": (1.5, 1.5, 0.1),
        "product masked": (2, 2, 0),
        "geometric": (root, root, 0.1),
        "rejected": (1, 1, 0),
    }
    for name, values in expected.items():
        torch.testing.assert_close(found[name], column(*values), msg=name)


def test_kpop_masks_by_divergence() -> None:
    """rho = 3 from 1e-4 moves nothing and stays; rho = 1.8 from 0.5 to 0.9 has 0.37 nats one way and 0.51 the other:
    the bound is on the larger, not on their sum.
    """
    then, proximal = column(1e-4, 0.5).log(), column(3e-4, 0.9).log()
    forward, backward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2), 0.5 * math.log(1 / 1.8) + 0.5 * math.log(5)
    assert (forward, backward) == (pytest.approx(0.3681, abs=1e-4), pytest.approx(0.5108, abs=1e-4))
    torch.testing.assert_close(mismatch.kpop(proximal, then, max_divergence_nats=0.51), column(3.0, 0.0))
    torch.testing.assert_close(mismatch.kpop(proximal, then, max_divergence_nats=0.52), column(3.0, 1.8))


def test_off_policy_masking_drops_only_blamed_and_distant_answers() -> None:
    """Means of acted - now: 1 nat for the first answer, 0.2 for the second."""
    acted, now = column(-1.0, -2.0, -3.0), column(-2.5, -2.5, -3.2)
    blamed, praised = column(-1, -1, -1), column(1, 1, 1)
    assert mismatch.off_policy_sequence_mask(now, acted, blamed, OWNER).tolist() == [0, 0, 1]
    assert mismatch.off_policy_sequence_mask(now, acted, praised, OWNER).tolist() == [1, 1, 1]
    assert mismatch.off_policy_sequence_mask(now, acted, blamed, OWNER, max_kl_nats=1.1).tolist() == [1, 1, 1]


def test_a_correction_multiplies_and_is_told() -> None:
    now = column(-1.0, -2.0, -3.0).requires_grad_()
    factor = column(2.0, 0.0, 0.5).requires_grad_()
    terms = mismatch.with_mismatch_correction(reinforce_loss(now, column(1, 1, 1)), factor)
    torch.testing.assert_close(terms.loss, column(2.0, 0.0, 1.5))
    (found,) = torch.autograd.grad(terms.loss.sum(), now, retain_graph=True)
    torch.testing.assert_close(found, -factor.detach())
    assert torch.autograd.grad(terms.loss.sum(), factor, allow_unused=True) == (None,), "a factor is data"
    assert terms.metrics["mismatch/dropped_fraction"].tolist() == [0, 1, 0]
    assert terms.metrics["mismatch/weight_ess"].tolist() == [2, 0, 0.5]


gaps = st.lists(st.floats(-600, 600), min_size=1, max_size=12)


def test_normalised_weights_by_hand() -> None:
    """Weights 3, 1 and 2 of answers of two tokens and one: a mean of 2 over tokens, of (2 + 2) / 2 over answers. Where
    the second answer weighs 8 the means are 4 and 5. Means of at most 1e-8 divide nothing.
    """
    even, uneven, tiny = column(3.0, 1.0, 2.0), column(3.0, 1.0, 8.0), column(*3 * [0.9e-8])
    same = {"rtol": 1e-12, "atol": 0.0}
    torch.testing.assert_close(mismatch.normalised_weight(even), column(1.5, 0.5, 1.0), **same)
    torch.testing.assert_close(mismatch.normalised_weight(uneven), column(0.75, 0.25, 2.0), **same)
    apart = torch.tensor([0, 0, 3])  # numbers without a decision are no answers
    torch.testing.assert_close(mismatch.sequence_normalised_weight(even, apart), column(1.5, 0.5, 1.0), **same)
    torch.testing.assert_close(mismatch.sequence_normalised_weight(uneven, apart), column(0.6, 0.2, 1.6), **same)
    for found in (mismatch.normalised_weight(tiny), mismatch.sequence_normalised_weight(tiny, apart)):
        assert torch.equal(found, tiny)
    for found in (mismatch.normalised_weight(2 * tiny), mismatch.sequence_normalised_weight(2 * tiny, apart)):
        torch.testing.assert_close(found, torch.ones_like(tiny))
    assert mismatch.normalised_weight(column()).tolist() == []


@given(gaps, st.floats(1.0, 10.0))
def test_weights_are_bounded_and_equal_policies_get_1(values: list[float], cap: float) -> None:
    then = torch.zeros(len(values), dtype=torch.float64)
    proximal, owner = column(*values), torch.arange(len(values)) % 3
    for found in (
        mismatch.truncated_is(proximal, then, weight_cap=cap),
        mismatch.masked_is(proximal, then, weight_cap=cap),
        mismatch.sequence_truncated_is(proximal, then, owner, weight_cap=cap),
        mismatch.sequence_masked_is(proximal, then, owner, weight_cap=cap),
        mismatch.geometric_truncated_is(proximal, then, owner, weight_cap=cap),
    ):
        assert ((found >= 0) & (found <= cap)).all()
    for same in (
        mismatch.truncated_is(then, then),
        mismatch.icepop(then, then),
        mismatch.kpop(then - 1, then - 1),
        mismatch.sequence_masked_is(then, then, owner),
        mismatch.geometric_rejection(then, then, owner),
        mismatch.off_policy_sequence_mask(then, then, then - 1, owner),
    ):
        assert (same == 1).all()
