"""Values as distributions: encoding there and back, C51's projection, quantiles."""

import numpy as np
import pytest
import slow_losses as slow
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives.distributional import (
    ValueSupport,
    c51_loss,
    categorical_target,
    distribution_mean,
    quantile_huber_loss,
    two_hot,
)
from hone.objectives.td import td_target

SUPPORT = ValueSupport(low=-10.0, high=10.0, size=21)


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_two_hot_by_hand() -> None:
    """Atoms 0, 1, 2, 3: 1.25 lies a quarter of the way; outside, all is at the end; on an atom, all is there."""
    support = ValueSupport(low=0.0, high=3.0, size=4)
    found = two_hot(column(1.25, -7.0, 2.0, 99.0), support)
    wanted = [[0, 0.75, 0.25, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


@given(target=st.floats(-60, 60))
def test_two_hot_is_a_distribution(target: float) -> None:
    probability = two_hot(column(target), SUPPORT)
    assert (probability >= 0).all()
    assert probability.sum().item() == pytest.approx(1.0)


@given(target=st.floats(-10, 10))
def test_two_hot_there_and_back(target: float) -> None:
    assert distribution_mean(two_hot(column(target), SUPPORT), SUPPORT).item() == pytest.approx(target, abs=1e-9)


@given(target=st.floats(-14, 14))
def test_two_hot_agrees_with_the_slow_one(target: float) -> None:
    expected_ = slow.two_hot(target, -10.0, 10.0, 21)
    torch.testing.assert_close(two_hot(column(target), SUPPORT)[0], column(*expected_), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------------- C51


def test_the_projection_by_hand() -> None:
    """Atoms -1, 0, 1; r = 1/2, discount 1/2: they move to 0, 1/2, 1. An end: all mass at the reward."""
    support = ValueSupport(low=-1.0, high=1.0, size=3)
    probability = torch.tensor([[0.2, 0.5, 0.3]] * 2, dtype=torch.float64)
    found = categorical_target(column(0.5, 0.5), column(0.5, 0.0), probability, support=support)
    wanted = [[0.0, 0.2 + 0.25, 0.25 + 0.3], [0.0, 0.5, 0.5]]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


@given(seed=st.integers(0, 10_000), reward=st.floats(-30, 30), discount=st.floats(0, 1))
def test_the_projection_keeps_mass_and_mean(seed: int, reward: float, discount: float) -> None:
    """Mass always, the mean while nothing leaves the support; it agrees with the slow version either way."""
    generator = torch.Generator().manual_seed(seed)
    probability = torch.softmax(3 * torch.randn(1, 21, generator=generator, dtype=torch.float64), dim=1)
    found = categorical_target(column(reward), column(discount), probability, support=SUPPORT)
    assert (found >= 0).all()
    assert found.sum().item() == pytest.approx(1.0)
    wanted = slow.c51_target(reward, discount, probability[0].tolist(), -10.0, 10.0)
    torch.testing.assert_close(found[0], column(*wanted), rtol=1e-9, atol=1e-12)
    inside = column(0.1 * reward)
    moved = categorical_target(inside, column(0.7), probability, support=SUPPORT)
    mean = 0.1 * reward + 0.7 * distribution_mean(probability, SUPPORT)
    assert distribution_mean(moved, SUPPORT).item() == pytest.approx(mean.item(), abs=1e-9)


def test_atoms_that_land_on_atoms_lose_nothing() -> None:
    """The classical bug: floor and ceiling coincide, and both weights are 0."""
    probability = torch.softmax(torch.randn(3, 21, dtype=torch.float64), dim=1)
    found = categorical_target(column(0.0, 2.0, -3.0), column(1.0, 1.0, 1.0), probability, support=SUPPORT)
    torch.testing.assert_close(found.sum(dim=1), column(1.0, 1.0, 1.0))
    torch.testing.assert_close(found[0], probability[0])


def test_categorical_values_rest_at_their_target() -> None:
    """There the divergence is 0, and the loss is the target's entropy."""
    target = torch.softmax(torch.randn(2, 21, dtype=torch.float64), dim=1)
    logits = target.log().requires_grad_()
    terms = c51_loss(logits, target, support=SUPPORT)
    torch.testing.assert_close(terms.metrics["value/kl_nats"], column(0.0, 0.0), atol=1e-12, rtol=0)
    (slope,) = torch.autograd.grad(terms.loss.sum(), logits)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-12, rtol=0)
    sure = torch.nn.functional.one_hot(torch.tensor([3]), 21).double()
    assert torch.isfinite(c51_loss(torch.zeros(1, 21), sure, support=SUPPORT).metrics["value/kl_nats"]).all()


# ------------------------------------------------------------------------------------------------- quantiles


def test_quantiles_by_hand() -> None:
    """Two quantiles, 1/4 and 3/4, at 0 and 1; targets 1 and 3. Errors 1, 3 and 0, 2; Huber 1/2, 5/2 and 0, 3/2."""
    terms = quantile_huber_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 3.0]]))
    assert terms.loss.item() == pytest.approx(0.25 * (0.5 + 2.5) / 2 + 0.75 * (0.0 + 1.5) / 2)
    assert terms.metrics["value/mean"].item() == 0.5
    assert terms.metrics["value/std"].item() == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_the_minimisers_are_the_quantiles(seed: int) -> None:
    """With kappa = 0, of 10 targets: the third, fifth ... in order; the gradient's sign changes exactly there."""
    targets = np.sort(np.random.default_rng(seed).normal(size=10))
    for index, level in enumerate((0.125, 0.375, 0.625, 0.875)):
        best = targets[int(np.ceil(level * 10)) - 1]
        for shift, sign in ((-1e-6, -1), (1e-6, 1)):
            quantiles = torch.zeros(1, 4, dtype=torch.float64)
            quantiles[0, index] = best + shift
            quantiles.requires_grad_()
            loss = quantile_huber_loss(quantiles, torch.from_numpy(targets)[None], kappa=0.0).loss
            (slope,) = torch.autograd.grad(loss.sum(), quantiles)
            assert sign * slope[0, index].item() > 0


def test_a_small_kappa_is_nearly_none() -> None:
    quantiles, target = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    smooth = quantile_huber_loss(quantiles, target, kappa=1e-7).loss
    torch.testing.assert_close(smooth, quantile_huber_loss(quantiles, target, kappa=0.0).loss, atol=1e-5, rtol=0)


def test_the_target_of_quantiles_moves_them_alike() -> None:
    found = td_target(column(1.0, 2.0), column(0.5, 0.0), torch.tensor([[2.0, 4.0], [9.0, 9.0]], dtype=torch.float64))
    assert found.tolist() == [[2.0, 3.0], [2.0, 2.0]]


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(-50, 50))
def test_one_quantile_is_median_regression(target: list[float], guess: float) -> None:
    """The only quantile is at 1/2: half the mean absolute error, of which the median is the minimiser."""
    quantile = column(guess, grad=True)
    loss = quantile_huber_loss(quantile[:, None], column(*target)[None, :], kappa=0.0).loss
    assert loss.item() == pytest.approx(0.5 * np.abs(np.array(target) - guess).mean(), abs=1e-12)
    (slope,) = torch.autograd.grad(loss.sum(), quantile)
    below, above = sum(y < guess for y in target), sum(y > guess for y in target)
    assert slope.item() == pytest.approx((below - above) / (2 * len(target)), abs=1e-12)
    median = column(float(np.median(target)))[:, None]
    at_median = quantile_huber_loss(median, column(*target)[None, :], kappa=0.0).loss
    assert at_median.item() <= loss.item() + 1e-12
    smooth = quantile_huber_loss(quantile[:, None], column(target[0])[None, :], kappa=1.0).loss
    size = abs(target[0] - guess)  # with one target, half of Huber's loss of width 1
    assert smooth.item() == pytest.approx(0.5 * (0.5 * size**2 if size < 1 else size - 0.5), abs=1e-12)
