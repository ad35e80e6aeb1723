"""Losses for control: values by hand, slow versions, properties, gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from hone.objectives.offline import behaviour_cloning, cql_penalty, cql_penalty_sampled
from hone.objectives.policy import clipped_surrogate, reinforce_loss
from hone.objectives.td import double_target, sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.value import clipped_value, huber, squared_error

numbers = st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3)


def column(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_clipped_by_hand() -> None:
    ratios = column(1.1, 1.5, 1.5, 0.5, 0.5)
    advantage = column(2, 2, -2, 2, -2)
    terms = clipped_surrogate(ratios.log(), torch.zeros(5), advantage, low=0.2, high=0.3)
    torch.testing.assert_close(terms.loss, column(-2.2, -2.6, 3.0, -1.0, 1.6))
    torch.testing.assert_close(terms.metrics["policy/clip_fraction"], column(0, 1, 0, 0, 1))
    torch.testing.assert_close(terms.metrics["policy/kl_nats"], ratios - 1 - ratios.log())
    torch.testing.assert_close(terms.metrics["policy/ratio_max"].max(), column(1.5)[0])


@given(logratio=st.floats(-2, 2), advantage=numbers, low=st.floats(0.05, 0.5), high=st.floats(0.05, 0.5))
def test_the_clipped_gradient_stops_exactly_there(logratio: float, advantage: float, low: float, high: float) -> None:
    now = column(logratio, grad=True)
    clipped_surrogate(now, column(0.0), column(advantage), low=low, high=high).loss.sum().backward()
    r = math.exp(logratio)
    stopped = (advantage > 0 and r > 1 + high) or (advantage < 0 and r < 1 - low)
    assert now.grad is not None
    expected = 0.0 if stopped else -advantage * r
    assert now.grad.item() == pytest.approx(expected, abs=1e-12)


def test_at_the_first_step_clipped_is_the_policy_gradient() -> None:
    first, second = column(-1.0, -2.0, grad=True), column(-1.0, -2.0, grad=True)
    advantage = column(3.0, -1.5)
    clipped_surrogate(first, first.detach(), advantage, low=0.2, high=0.2).loss.sum().backward()
    reinforce_loss(second, advantage).loss.sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_an_absurd_ratio_stays_finite() -> None:
    now = column(500.0, grad=True)
    loss = clipped_surrogate(now, column(0.0), column(-1.0), low=0.2, high=0.2).loss
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert now.grad is not None
    assert now.grad.item() == 0


def test_values_by_hand() -> None:
    torch.testing.assert_close(squared_error(column(1, 4), column(3, 4)).loss, column(2.0, 0.0))
    # kept within 0.5 of what it was: 1.5 and 2.5; the larger error counts
    terms = clipped_value(column(3.0, 2.2), column(1.0, 2.0), column(3.0, 0.0), clip_range=0.5)
    torch.testing.assert_close(terms.loss, column(0.5 * 1.5**2, 0.5 * 2.2**2))


def test_soft_losses_by_hand() -> None:
    alpha = column(0.5)
    target = soft_target(column(1, 1), column(0.9, 0.0), column(10, 10), column(2, 2), alpha)
    torch.testing.assert_close(target, column(1 + 0.9 * (10 - 1), 1))
    torch.testing.assert_close(twin_critic_loss(column(3), column(5), column(4)).loss, column(1.0))
    torch.testing.assert_close(sac_actor_loss(column(2), column(3), column(1), alpha).loss, column(0.5 * 2 - 1))
    log_alpha = column(0.3, grad=True)
    terms = temperature_loss(log_alpha, column(-0.5, -2.5), target_entropy=-1.0)
    torch.testing.assert_close(terms.loss, column(-0.3 * -1.5, -0.3 * -3.5))


@given(entropy=st.floats(-5, 5), target=st.floats(-5, 5))
def test_the_temperature_rises_while_entropy_is_short(entropy: float, target: float) -> None:
    log_alpha = column(0.0, grad=True)
    temperature_loss(log_alpha, column(-entropy), target_entropy=target).loss.sum().backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(entropy - target)  # descent raises alpha where entropy < target


def test_the_soft_policy_leaves_the_temperature_alone() -> None:
    log_alpha, logp = column(0.2, grad=True), column(1.0, grad=True)
    sac_actor_loss(logp, column(0.0), column(1.0), log_alpha.exp()).loss.sum().backward()
    assert log_alpha.grad is None
    assert logp.grad is not None


def test_double_target_by_hand() -> None:
    now, slow = column(1, 5, 3).reshape(1, 3), column(10, 20, 90).reshape(1, 3)
    torch.testing.assert_close(double_target(column(2), column(0.5), now, slow), column(2 + 0.5 * 20))
    torch.testing.assert_close(double_target(column(2), column(0.0), now, slow), column(2))


def test_huber_by_hand_and_by_torch() -> None:
    value, target = column(0, 0.5, 3, -4), column(0, 0, 0, 0)
    torch.testing.assert_close(huber(value, target).loss, column(0, 0.125, 2.5, 3.5))
    torch.testing.assert_close(
        huber(value, target).loss, torch.nn.functional.huber_loss(value, target, reduction="none")
    )


@given(st.lists(numbers, min_size=2, max_size=6), st.integers(0, 5))
def test_the_conservative_gap_is_minus_log_softmax(values: list[float], pick: int) -> None:
    table, chosen = column(*values).reshape(1, -1), torch.tensor([pick % len(values)])
    gap = cql_penalty(table, chosen).loss
    assert gap.item() >= 0
    torch.testing.assert_close(gap, -torch.log_softmax(table, dim=1)[:, pick % len(values)])
    shifted = cql_penalty(table + 7.0, chosen).loss
    torch.testing.assert_close(shifted, gap)


def test_the_sampled_gap_estimates_the_integral() -> None:
    """Q(a) = -a^2 / 2 on [-1, 1], uniform proposals of density 1/2: log of the integral of exp(Q) is known."""
    actions = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    worth = (-0.5 * actions.square()).reshape(1, -1)
    density = torch.full_like(worth, math.log(0.5))
    expected = math.log(math.sqrt(2 * math.pi) * math.erf(1 / math.sqrt(2)))
    gap = cql_penalty_sampled(worth, density, column(0.25)).loss
    assert gap.item() == pytest.approx(expected - 0.25, abs=1e-4)


def test_imitation() -> None:
    torch.testing.assert_close(behaviour_cloning(column(-1.5)).loss, column(1.5))


def test_gradients() -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    fixed = torch.randn(4, dtype=torch.float64)
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    density = torch.randn(4, 3, dtype=torch.float64)
    alpha = torch.tensor([0.3], dtype=torch.float64)
    assert gradcheck(lambda x: clipped_surrogate(x, fixed, fixed, low=0.2, high=0.2).loss, (a,))
    assert gradcheck(lambda x: squared_error(x, fixed).loss, (a,))
    assert gradcheck(lambda x: clipped_value(x, fixed + 0.3, fixed, clip_range=0.5).loss, (a,))
    assert gradcheck(lambda x, y: twin_critic_loss(x, y, fixed).loss, (a, b))
    assert gradcheck(lambda x, y, z: sac_actor_loss(x, y, z, alpha).loss, (a, b, c))
    assert gradcheck(lambda x: huber(x, fixed).loss, (a,))
    assert gradcheck(lambda x: cql_penalty(x, torch.tensor([0, 2, 1, 1])).loss, (table,))
    assert gradcheck(lambda x, y: cql_penalty_sampled(x, density, y).loss, (table, a))
