"""Defaults are those of the papers, types are those of the loss, and borders are on the side that the formula says."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hone.objectives.mismatch import (
    geometric_rejection,
    icepop,
    kpop,
    masked_is,
    sequence_masked_is,
    truncated_weight,
    with_mismatch_correction,
)
from hone.objectives.policy import forking_tokens, surrogate
from hone.objectives.preference import simpo_hinge
from hone.objectives.ratios import sequence_quantile
from hone.objectives.selection import clip_cov_mask
from hone.objectives.sequence import gspo, gspo_token, luspo
from hone.objectives.terms import LossTerms
from hone.objectives.value import (
    balanced_bias,
    bounded_cross_entropy,
    clipped_value,
    huber,
    load_balance,
    squared_error,
)


def logs(*ratios: float) -> Tensor:
    return torch.tensor(ratios).log()


ZERO = torch.zeros(2)
ANSWERS = torch.tensor([0, 1])


def test_weights_are_masked_beyond_their_usual_bounds() -> None:
    """masked_is keeps ratios up to 2, IcePop those in [0.5, 5], a sequence's product up to 3."""
    torch.testing.assert_close(masked_is(logs(1.9, 2.5), ZERO), torch.tensor([1.9, 0.0]))
    torch.testing.assert_close(icepop(logs(4.9, 5.5), ZERO), torch.tensor([4.9, 0.0]))
    torch.testing.assert_close(sequence_masked_is(logs(2.9, 3.5), ZERO, ANSWERS), torch.tensor([2.9, 0.0]))
    torch.testing.assert_close(truncated_weight(logs(0.25, 7.0), weight_cap=2.0), torch.tensor([0.25, 2.0]))


def test_geometric_rejection_keeps_a_thousandth() -> None:
    assert geometric_rejection(logs(1.0009, 1.5), ZERO, ANSWERS).tolist() == [1.0, 0.0]
    assert geometric_rejection(logs(0.9991, 0.9), ZERO, ANSWERS).tolist() == [1.0, 0.0]


def test_kpop_masks_beyond_two_nats() -> None:
    """p = 0.95 under the engine: the larger divergence is 1.9 nats at q = 0.2 under the trainer, and 2.4 at 0.1."""

    def divergence(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    near, far = 0.2, 0.1
    assert 1.6 < max(divergence(0.95, near), divergence(near, 0.95)) <= 2.0
    assert 2.2 < max(divergence(0.95, far), divergence(far, 0.95)) < 3.0
    found = kpop(logs(near, far), logs(0.95, 0.95))
    torch.testing.assert_close(found, torch.tensor([near / 0.95, 0.0]))


@pytest.mark.parametrize(("loss", "low", "high"), [(gspo, 3e-4, 4e-4), (gspo_token, 3e-4, 4e-4), (luspo, 2e-3, 2.5e-3)])
def test_sequences_are_clipped_at_the_papers_widths(loss, low: float, high: float) -> None:  # type: ignore[no-untyped-def]
    now, sequence = logs(1.5, 0.5).double(), torch.tensor([0, 1])
    risen = loss(now, ZERO.double(), torch.ones(2).double(), sequence).loss
    fallen = loss(now, ZERO.double(), -torch.ones(2).double(), sequence).loss
    torch.testing.assert_close(risen, torch.tensor([-(1 + high), -0.5]).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(fallen, torch.tensor([1.5, 1 - low]).double(), rtol=1e-6, atol=0)


def test_the_hinge_has_scale_two_and_margin_one() -> None:
    """relu(1 - (2 (a_w - a_l) - 1)) at differences 0.25 and 3."""
    found = simpo_hinge(torch.tensor([0.25, 3.0]), torch.zeros(2)).loss
    torch.testing.assert_close(found, torch.tensor([1.5, 0.0]))


def test_covariances_between_one_and_five_are_left_out() -> None:
    """Centred advantages -2, 2, times centred log-probabilities of half of the covariance."""
    for covariance, stopped in ((0.9, False), (1.5, True), (4.9, True), (5.5, False)):
        now, advantage = np.array([-covariance / 2, covariance / 2]), np.array([-2.0, 2.0])
        found = clip_cov_mask(now, advantage, np.zeros(2, np.bool_), np.array([0.3, 0.1]))
        assert found.tolist() == [False, stopped], covariance


def test_forking_tokens_are_above_four_fifths_of_their_answer() -> None:
    """Entropies 0 .. 5: the 0.8 quantile is 4."""
    entropy = torch.arange(6.0)
    assert forking_tokens(entropy, torch.zeros(6, dtype=torch.int64)).tolist() == [False] * 5 + [True]


def test_quantiles_of_nothing_and_of_one_value() -> None:
    empty = sequence_quantile(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 0.5)
    assert empty.tolist() == []
    alone = torch.tensor([2.0, 7.0], requires_grad=True)
    found = sequence_quantile(alone, torch.tensor([0, 2]), 0.8)
    assert found.tolist() == [2.0, 7.0]
    assert not found.requires_grad


def test_a_ratio_at_the_cap_still_learns() -> None:
    r = torch.tensor([3.0], requires_grad=True)
    loss, stopped = surrogate(r, torch.tensor([-1.0]), low=0.2, high=0.2, negative_cap=3.0)
    loss.sum().backward()
    assert stopped.tolist() == [False]
    assert r.grad is not None and r.grad.tolist() == [1.0]


def test_no_gradient_flows_through_a_correction() -> None:
    factor = torch.tensor([0.5, 2.0], requires_grad=True)
    value = torch.tensor([1.0, 3.0], requires_grad=True)
    terms = with_mismatch_correction(LossTerms(loss=value, compute_metrics=dict), factor)
    terms.loss.sum().backward()
    assert factor.grad is None
    assert value.grad is not None and value.grad.tolist() == [0.5, 2.0]
    assert not terms.metrics["mismatch/weight_ess"].requires_grad


def test_losses_have_the_type_of_the_value() -> None:
    """Targets in double precision, as a learner on a GPU may get them, promote nothing, and gradients exist."""
    value, target = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0], dtype=torch.float64)
    assert squared_error(value, target).loss.dtype == torch.float32
    assert huber(value, target, delta=1.0).loss.dtype == torch.float32
    (slope,) = torch.autograd.grad(huber(value, target, delta=1.0).loss.sum(), value)
    assert slope.item() == -0.5
    assert clipped_value(value, value, target, clip_range=0.2).loss.dtype == torch.float32
    bounded = bounded_cross_entropy(value, None, target, low=0.0, high=1.0, clip_range=None)
    assert bounded.loss.dtype == bounded.metrics["value/target_clipped"].dtype == torch.float32
    logits, load = torch.zeros(1, 1, 2), torch.ones(1, 2, dtype=torch.float64)
    assert load_balance(logits, load).dtype == torch.float32
    assert balanced_bias(torch.zeros(2), torch.tensor([1.0, 0.0]).double(), rate=0.1).dtype == torch.float32


def test_targets_at_the_bounds_are_inside() -> None:
    found = bounded_cross_entropy(torch.zeros(2), None, torch.tensor([0.0, 1.0]), low=0.0, high=1.0, clip_range=None)
    assert found.metrics["value/target_clipped"].tolist() == [0.0, 0.0]
