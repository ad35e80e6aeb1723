"""Corrections of engine against trainer by hand, their bounds, and the contract of routing replay."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.core.errors import DataError
from hone.objectives import mismatch
from hone.objectives.policy import reinforce_loss
from hone.objectives.routing import check_routing, replayed_gates, routing_coverage


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
        "worst": mismatch.max_abs_log_ratio(PROXIMAL, THEN, OWNER),
    }
    expected = {
        "truncated": (2, 0.5, 0.1),
        "masked": (0, 0.5, 0.1),
        "icepop": (4, 0.5, 0),
        "product": (1.5, 1.5, 0.1),
        "product masked": (2, 2, 0),
        "geometric": (root, root, 0.1),
        "rejected": (1, 1, 0),
        "worst": (math.log(4), math.log(4), math.log(10)),
    }
    for name, values in expected.items():
        torch.testing.assert_close(found[name], column(*values), msg=name)


def test_kpop_masks_by_divergence() -> None:
    """rho = 3 from 1e-4 moves nothing and stays; rho = 1.8 from 0.5 to 0.9 has 0.88 nats of symmetric divergence."""
    then, proximal = column(1e-4, 0.5).log(), column(3e-4, 0.9).log()
    divergence = 0.4 * (math.log(0.9 / 0.1) - math.log(0.5 / 0.5))
    assert divergence == pytest.approx(0.8789, abs=1e-4)
    torch.testing.assert_close(mismatch.kpop(proximal, then, max_divergence_nats=0.87), column(3.0, 0.0))
    torch.testing.assert_close(mismatch.kpop(proximal, then, max_divergence_nats=0.88), column(3.0, 1.8))


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


def recorded(tokens: int = 4, layers: int = 2) -> np.ndarray:
    """Two of eight experts a token."""
    rng = np.random.default_rng(0)
    return np.stack([[rng.permutation(8)[:2] for _ in range(layers)] for _ in range(tokens)])


def test_whole_routing_passes() -> None:
    check_routing(recorded(), tokens=4, layers=2, chosen=2, experts=8)
    assert routing_coverage(recorded()) == 1.0
    assert routing_coverage(np.zeros((0, 2, 2), np.int64)) == 1.0


def test_routing_faults_are_told_all_at_once_with_their_places() -> None:
    routing = recorded()
    routing[1, 0] = -1
    routing[2, 1] = [9, 3]
    routing[3, 0] = [5, 5]
    with pytest.raises(DataError) as caught:
        check_routing(routing, tokens=4, layers=2, chosen=2, experts=8)
    missing, unknown, twice = caught.value.messages
    assert "coverage 0.875000, must be 1: 1 of 8" in missing and "token 1 layer 0" in missing
    assert "no such expert (there are 8" in unknown and "token 2 layer 1: [9, 3]" in unknown
    assert "stands twice at token 3 layer 0: [5, 5]" in twice


def test_a_routing_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(4, 2, 2\), expected .* = \(6, 2, 2\); .* the prompt's too"):
        check_routing(recorded(), tokens=6, layers=2, chosen=2, experts=8)


def test_replayed_gates_follow_the_record_and_learn_from_the_scores() -> None:
    """Scores 0, log 3, 5: the engine chose the first two, gates 1/4 and 3/4; the third gets no gradient."""
    scores = column(0.0, math.log(3), 5.0).reshape(1, 3).requires_grad_()
    gates = replayed_gates(scores, torch.tensor([[1, 0]]))
    torch.testing.assert_close(gates, column(0.75, 0.25).reshape(1, 2))
    (found,) = torch.autograd.grad(gates[0, 0], scores)
    torch.testing.assert_close(found, column(-3 / 16, 3 / 16, 0).reshape(1, 3))
