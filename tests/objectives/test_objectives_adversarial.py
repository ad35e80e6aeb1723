"""A discriminator's losses: values by hand, an independent slow version, its metrics, and gradients by differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from hone.objectives.value import discriminator_loss, gradient_norm_penalty

logits = st.floats(-30, 30)


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_telling_apart_by_hand() -> None:
    """D = 1/2 costs log 2 on either side; D(shown) = 3/4, D(own) = 1/4 cost log 4/3 each, the wrong way round log 4."""
    third = math.log(3.0)
    terms = discriminator_loss(column(0.0, third, -third), column(0.0, -third, third))
    torch.testing.assert_close(terms.loss, column(2 * math.log(2), 2 * math.log(4 / 3), 2 * math.log(4)))
    assert terms.metrics["discriminator/accuracy_expert"].tolist() == [0, 1, 0]
    assert terms.metrics["discriminator/accuracy_policy"].tolist() == [0, 1, 0]


@given(logits, logits)
def test_telling_apart_is_cross_entropy_of_the_probabilities(shown: float, own: float) -> None:
    """The slow way: probabilities first, then their logarithms."""
    slow = -math.log(1 / (1 + math.exp(-shown))) - math.log(1 / (1 + math.exp(own)))
    assert discriminator_loss(column(shown), column(own)).loss.item() == pytest.approx(slow, rel=1e-9, abs=1e-12)


@given(logits, logits)
def test_the_gradient_is_how_wrong_the_probabilities_are(shown: float, own: float) -> None:
    """-(1 - D(shown)) and D(own)."""
    a, b = column(shown, grad=True), column(own, grad=True)
    discriminator_loss(a, b).loss.sum().backward()
    assert a.grad is not None and b.grad is not None
    assert a.grad.item() == pytest.approx(-1 / (1 + math.exp(shown)), rel=1e-9)
    assert b.grad.item() == pytest.approx(1 / (1 + math.exp(-own)), rel=1e-9)


def test_absurd_logits_stay_finite() -> None:
    terms = discriminator_loss(torch.tensor([-1e4], requires_grad=True), torch.tensor([1e4]))
    assert terms.loss.tolist() == [2e4]


def test_steepness_by_hand() -> None:
    """Lengths 5, 1 and 0."""
    terms = gradient_norm_penalty(torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(terms.loss, column(16.0, 0.0, 1.0))
    torch.testing.assert_close(terms.metrics["discriminator/slope"], column(5.0, 1.0, 0.0), atol=1e-11, rtol=0)


def test_a_flat_place_has_a_gradient_that_is_a_number() -> None:
    slope = torch.zeros(2, 3, requires_grad=True)
    gradient_norm_penalty(slope).loss.sum().backward()
    assert slope.grad is not None and slope.grad.tolist() == [[0.0] * 3] * 2


def test_gradients() -> None:
    draws = torch.Generator().manual_seed(0)
    slope = torch.randn(5, 3, dtype=torch.float64, generator=draws).requires_grad_()
    assert gradcheck(lambda x: gradient_norm_penalty(x).loss, slope)
    assert gradcheck(
        lambda a, b: discriminator_loss(a, b).loss,
        (slope[:, 0].detach().requires_grad_(), column(*range(5), grad=True)),
    )
