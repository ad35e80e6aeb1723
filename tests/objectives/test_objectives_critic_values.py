"""Losses of a critic's values by classification: by hand, against numeric slow versions, and their gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.objectives.distributional import ValueSupport, distribution_mean, hl_gauss, two_hot
from hone.objectives.value import bounded_cross_entropy

SUPPORT = ValueSupport(low=-1.0, high=2.0, size=13)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slow_histogram(target: float, spread: float) -> list[float]:
    """Mass of a normal distribution in each bin by the error function, normalised."""
    inside, width = min(max(target, SUPPORT.low), SUPPORT.high), SUPPORT.width
    masses = []
    for place in range(SUPPORT.size):
        centre = SUPPORT.low + place * width
        upper, lower = ((centre + side * width / 2 - inside) / (spread * width * math.sqrt(2)) for side in (1, -1))
        masses.append(0.5 * (math.erf(upper) - math.erf(lower)))
    return [mass / sum(masses) for mass in masses]


@given(st.floats(-3, 4), st.floats(0.2, 3.0))
def test_hl_gauss_is_the_mass_in_each_bin(target: float, spread: float) -> None:
    found = hl_gauss(tensor(target), SUPPORT, spread=spread)
    torch.testing.assert_close(found[0], tensor(*slow_histogram(target, spread)))
    assert float(found.sum()) == pytest.approx(1.0)


def test_hl_gauss_keeps_the_mean_inside_and_tends_to_one_bin() -> None:
    assert float(distribution_mean(hl_gauss(tensor(0.5), SUPPORT, spread=0.75), SUPPORT)[0]) == pytest.approx(0.5)
    narrow = hl_gauss(tensor(0.5), SUPPORT, spread=0.01)
    torch.testing.assert_close(narrow, two_hot(tensor(0.5), SUPPORT), atol=1e-9, rtol=0)


def test_bounded_cross_entropy_by_hand() -> None:
    """Scores in [0, 1]: at logit 0 the loss is log 2 whatever the target, and the gradient the error."""
    logit = tensor(0.0, 0.0).requires_grad_()
    terms = bounded_cross_entropy(logit, tensor(0.5, 0.5), tensor(1.0, 0.25), low=0.0, high=1.0, clip_range=None)
    torch.testing.assert_close(terms.loss, tensor(math.log(2), math.log(2)))
    terms.loss.sum().backward()
    torch.testing.assert_close(logit.grad, tensor(-0.5, 0.25))
    torch.testing.assert_close(terms.metrics["value/mean"], tensor(0.5, 0.5))


@given(st.floats(-4, 4), st.floats(-3, 3), st.floats(0.1, 4))
def test_the_least_loss_is_at_the_target(target: float, low: float, width: float) -> None:
    high = low + width
    inside = min(max(target, low + 0.01 * width), high - 0.01 * width)
    share = (inside - low) / width
    best = tensor(math.log(share / (1 - share))).requires_grad_()
    terms = bounded_cross_entropy(best, tensor(0.0), tensor(inside), low=low, high=high, clip_range=None)
    terms.loss.sum().backward()
    assert best.grad is not None
    assert float(best.grad.abs()[0]) < 1e-9
    assert float(terms.metrics["value/error_abs"][0]) < 1e-6


def test_targets_beyond_the_bounds_are_counted() -> None:
    terms = bounded_cross_entropy(
        tensor(0.0, 0.0, 0.0), tensor(0.5, 0.5, 0.5), tensor(-1.0, 0.5, 7.0), low=0.0, high=1.0, clip_range=None
    )
    assert terms.metrics["value/target_clipped"].tolist() == [1.0, 0.0, 1.0]
    torch.testing.assert_close(terms.loss, tensor(math.log(2), math.log(2), math.log(2)))


def test_a_clipped_value_has_no_gradient() -> None:
    """The value rose from 0.3 to 0.73 towards its target 1, beyond 0.2: the larger loss is that of 0.5, a constant."""
    logit = tensor(1.0).requires_grad_()
    terms = bounded_cross_entropy(logit, tensor(0.3), tensor(1.0), low=0.0, high=1.0, clip_range=0.2)
    torch.testing.assert_close(terms.loss.detach(), tensor(math.log(2)))
    terms.loss.sum().backward()
    assert logit.grad is not None and float(logit.grad[0]) == 0.0
    assert terms.metrics["value/clip_fraction"].tolist() == [1.0]


@given(st.floats(-6, 6), st.floats(-3, 3), st.floats(-4, 4), st.floats(-3, 3), st.floats(0.1, 4), st.floats(0.05, 2.0))
def test_clipped_cross_entropy_agrees_with_scalars(
    logit: float, then: float, target: float, low: float, width: float, clip_range: float
) -> None:
    """In plain Python, for any bounds: the larger loss of the value, and of the value held near the old one."""
    high = low + width
    found = bounded_cross_entropy(
        tensor(logit), tensor(then), tensor(target), low=low, high=high, clip_range=clip_range
    )
    share = min(max((target - low) / (high - low), 0.0), 1.0)
    value = low + width / (1 + math.exp(-logit))
    near = min(max(value, then - clip_range), then + clip_range)
    inside = min(max((near - low) / width, 1e-6), 1 - 1e-6)
    free = math.log1p(math.exp(-abs(logit))) + max(logit, 0) - share * logit
    held = -share * math.log(inside) - (1 - share) * math.log(1 - inside)
    assert float(found.loss[0]) == pytest.approx(max(free, held), rel=1e-9, abs=1e-9)
    if abs(held - free) > 1e-9:
        assert found.metrics["value/clip_fraction"].tolist() == [float(held > free)]


def test_losses_of_clipped_values_are_not_mixed() -> None:
    """Each decision has its own; a held value beyond the range counts just inside it, at -log 1e-6."""
    logit, then, target = tensor(0.0, 0.0, 0.0), tensor(0.5, 5.0, -5.0), tensor(1.0, 0.0, 1.0)
    found = bounded_cross_entropy(logit, then, target, low=0.0, high=1.0, clip_range=0.1)
    torch.testing.assert_close(found.loss, tensor(math.log(2), -math.log(1e-6), -math.log(1e-6)), rtol=1e-6, atol=0)
    assert found.metrics["value/clip_fraction"].tolist() == [0.0, 1.0, 1.0]
    assert found.metrics["value/clip_fraction"].dtype == logit.dtype


def test_without_an_old_value_nothing_is_clipped() -> None:
    found = bounded_cross_entropy(tensor(2.0), None, tensor(1.0), low=0.0, high=1.0, clip_range=0.1)
    assert "value/clip_fraction" not in found.metrics
    torch.testing.assert_close(found.loss, tensor(math.log1p(math.exp(-2.0))))
