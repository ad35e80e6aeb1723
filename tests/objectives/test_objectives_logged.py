"""Targets, dueling and TD3; IQL, TD3+BC, BCQ, BEAR: values by hand and what each is for."""

from math import exp, log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives.constraint import (
    bcq_admissible_actions,
    bcq_target,
    bcq_vae_loss,
    bear_actor_loss,
    bear_multiplier_loss,
    gaussian,
    mmd,
)
from hone.objectives.offline import advantage_weighted_regression, behaviour_cloning, expectile_loss, td3_bc_actor_loss
from hone.objectives.td import (
    ddpg_actor_loss,
    double_target,
    dueling,
    greedy_target,
    smoothed_action,
    td_target,
    twin_target,
)
from hone.objectives.value import clipped_value, huber, squared_error

numbers = st.floats(-20, 20)
TABLE = torch.tensor([[1.0, 5.0, 3.0]], dtype=torch.float64)


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# --------------------------------------------------------------------------------------------------- targets


def test_targets_by_hand() -> None:
    """r = 2, discount 1/2; where the world ended only the reward is left."""
    reward, discount = column(2.0), column(0.5)
    assert td_target(reward, discount, column(6.0)).tolist() == [5.0]
    assert greedy_target(reward, discount, TABLE).tolist() == [4.5]
    assert twin_target(reward, discount, column(4.0), column(3.0)).tolist() == [3.5]
    first, second = torch.tensor([[4.0, 8.0]]), torch.tensor([[2.0, 0.0]])
    # 3/4 min + 1/4 max: 2.5 and 2; the best of both actions
    assert bcq_target(torch.tensor([2.0]), torch.tensor([0.5]), first, second).tolist() == [3.25]
    zero = column(0.0)
    for target in (td_target(reward, zero, column(6.0)), greedy_target(reward, zero, TABLE)):
        assert target.tolist() == [2.0]


def test_double_learning_is_not_fooled_by_one_lucky_value() -> None:
    lucky = torch.tensor([[1.0, 5.0, 30.0]], dtype=torch.float64)
    assert double_target(column(0.0), column(1.0), TABLE, lucky).item() == 5.0
    assert greedy_target(column(0.0), column(1.0), lucky).item() == 30.0


def test_targets_carry_no_gradient() -> None:
    table = TABLE.clone().requires_grad_()
    assert not greedy_target(column(0.0), column(1.0), table).requires_grad


def test_smoothing_by_hand() -> None:
    """0.2 * 1 = 0.2; 0.2 * 9 is cut to 0.5; beyond the box, the box."""
    action, noise = torch.tensor([[0.0, 0.0, 0.9]]), torch.tensor([[1.0, -9.0, 9.0]])
    torch.testing.assert_close(smoothed_action(action, noise), torch.tensor([[0.2, -0.5, 1.0]]))


def test_dueling() -> None:
    """V = 2, A = (1, 5, 3): the mean 3 goes; the mean of Q is V, and a constant in A changes nothing."""
    found = dueling(column(2.0), TABLE)
    assert found.tolist() == [[0.0, 4.0, 2.0]]
    torch.testing.assert_close(dueling(column(2.0), TABLE + 7.0), found)


def test_the_deterministic_policy_climbs() -> None:
    action = column(0.3, grad=True)
    ddpg_actor_loss(-((action - 1.0) ** 2)).loss.sum().backward()
    assert action.grad is not None
    assert action.grad.item() < 0


# --------------------------------------------------------------------------------------------------- critics


def test_value_losses_by_hand() -> None:
    assert huber(column(3.0, 0.5), column(0.0, 0.0), delta=2.0).loss.tolist() == [4.0, 0.125]
    terms = clipped_value(column(1.5, 0.1, 1.5), column(0.0, 0.0, 0.0), column(2.0, 1.0, 0.0), clip_range=0.2)
    # kept at 0.2: farther from 2, so it counts and the gradient has stopped; inside; kept nearer to 0, so it does not
    torch.testing.assert_close(terms.loss, column(0.5 * 1.8**2, 0.5 * 0.9**2, 0.5 * 1.5**2))
    assert terms.metrics["value/clip_fraction"].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(terms.metrics["value/error_abs"], column(0.5, 0.9, 1.5))


@given(numbers, numbers, numbers)
def test_the_clip_fraction_is_where_the_gradient_stops(value: float, then: float, target: float) -> None:
    leaf = column(value, grad=True)
    terms = clipped_value(leaf, column(then), column(target))
    (slope,) = torch.autograd.grad(terms.loss.sum(), leaf)
    free = (value - target) ** 2
    held = (then + max(min(value - then, 0.2), -0.2) - target) ** 2
    if abs(free - held) > 1e-9:
        stopped = bool(terms.metrics["value/clip_fraction"].item())
        assert slope.item() == pytest.approx(0.0 if stopped else value - target, abs=1e-9)


@given(numbers, numbers)
def test_a_wide_clip_and_a_wide_huber_are_the_squared_error(value: float, target: float) -> None:
    v, y = column(value), column(target)
    torch.testing.assert_close(clipped_value(v, column(0.0), y, clip_range=1e3).loss, squared_error(v, y).loss)
    torch.testing.assert_close(huber(v, y, delta=1e3).loss, squared_error(v, y).loss)


# ------------------------------------------------------------------------------------------------------- IQL


def test_expectiles_by_hand() -> None:
    """An error of +2 at weight 0.7, of -2 at 0.3."""
    torch.testing.assert_close(expectile_loss(column(0.0, 4.0), column(2.0, 2.0)).loss, column(2.8, 1.2))


@pytest.mark.parametrize("level", [0.5, 0.7, 0.9])
def test_the_minimiser_is_the_expectile(level: float) -> None:
    """Of 0 and 1, each seen half of the time: level * (1 - m) = (1 - level) * m, so m = level; 1/2 is the mean."""
    rest = column(level, level, grad=True)
    (slope,) = torch.autograd.grad(expectile_loss(rest, column(0.0, 1.0), level=level).loss.sum(), rest)
    assert slope.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_advantage_weighting_by_hand() -> None:
    """exp(3 * 1/3 * log 2) = 2; exp(3 * 9) is capped at 100."""
    logp = column(-1.5, -0.5, grad=True)
    terms = advantage_weighted_regression(logp, column(log(2) / 3, 9.0))
    torch.testing.assert_close(terms.loss, column(3.0, 50.0))
    assert terms.metrics["policy/capped_fraction"].tolist() == [0.0, 1.0]
    (slope,) = torch.autograd.grad(terms.loss.sum(), logp)
    torch.testing.assert_close(slope, column(-2.0, -100.0))


@given(numbers, numbers)
def test_without_temperature_it_is_imitation(logp: float, advantage: float) -> None:
    found = advantage_weighted_regression(column(logp), column(advantage), inverse_temperature=0.0).loss
    torch.testing.assert_close(found, behaviour_cloning(column(logp)).loss)


# ----------------------------------------------------------------------------------------- held near the log


def test_behaviour_regularised_by_hand() -> None:
    """2 * Q of 3, and squared distances 1 and 4 of two numbers."""
    action, logged = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    terms = td3_bc_actor_loss(torch.tensor([3.0]), action, logged, torch.tensor([2.0]))
    assert terms.loss.tolist() == [2.5 - 6.0]


def test_the_generator_by_hand() -> None:
    """Distances 1 and 0; a latent code N(1, 1) and N(0, 1): KL 1/2 and 0, their mean 1/4, half of it counts."""
    terms = bcq_vae_loss(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
    assert terms.loss.tolist() == [0.5 + 0.125]
    assert terms.metrics["generator/kl_nats"].tolist() == [0.25]


@given(numbers, st.floats(-2, 2))
def test_the_latent_divergence_is_torchs(mean: float, log_std: float) -> None:
    found = bcq_vae_loss(torch.zeros(1, 1), torch.zeros(1, 1), column(mean)[None], column(log_std)[None], divergence=1)
    code = torch.distributions.Normal(column(mean), column(exp(log_std)))
    torch.testing.assert_close(
        found.loss, torch.distributions.kl_divergence(code, torch.distributions.Normal(0.0, 1.0))
    )


def test_admissible_by_hand() -> None:
    """0.6, 0.3, 0.1 against 0.3 * 0.6 = 0.18; at 0 all, at 1 the likeliest; a target never looks the others up."""
    logp = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log()
    allowed = bcq_admissible_actions(logp)
    assert allowed.tolist() == [[True, True, False]]
    assert bcq_admissible_actions(logp, threshold=0.0).all()
    assert bcq_admissible_actions(logp, threshold=1.0).tolist() == [[True, False, False]]
    now = torch.tensor([[1.0, 2.0, 9.0]], dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    assert double_target(column(0.0), column(1.0), now, TABLE).tolist() == [5.0]


def test_mmd_by_hand() -> None:
    """One action each, 2 apart, width 1: k = exp(-1), so 2 - 2/e under the root."""
    first, second = torch.tensor([[[0.0]]], dtype=torch.float64), torch.tensor([[[2.0]]], dtype=torch.float64)
    assert mmd(first, second, width=1.0).item() == pytest.approx(sqrt(2 - 2 / exp(1) + 1e-6))
    assert mmd(first, second, width=1.0, kernel=gaussian).item() == pytest.approx(sqrt(2 - 2 / exp(2) + 1e-6))


@given(st.integers(0, 1000))
def test_mmd_is_a_distance(seed: int) -> None:
    """Symmetric, about 0 for the same sample in any order with a finite gradient there, larger farther away."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(2, 4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    for kernel_ in (gaussian, None):
        distance = (lambda x, y: mmd(x, y, kernel=gaussian)) if kernel_ else mmd
        torch.testing.assert_close(distance(first, second), distance(second, first))
        leaf = first.clone().requires_grad_()
        same = distance(leaf, first.flip(1))
        torch.testing.assert_close(same, torch.full_like(same, 1e-3), rtol=1e-3, atol=0)
        assert torch.isfinite(torch.autograd.grad(same.sum(), leaf)[0]).all()
        assert (distance(first, first + 5.0) > distance(first, first + 1.0)).all()


def test_the_price_of_distance() -> None:
    """Too far, and it rises by descent; near enough, and it falls; the actor takes it as data."""
    price = column(0.0, grad=True)
    for distance, sign in ((0.5, -1), (0.01, 1)):
        (slope,) = torch.autograd.grad(bear_multiplier_loss(price, column(distance)).loss.sum(), price)
        assert sign * slope.item() > 0
    distance = column(0.5, grad=True)
    loss = bear_actor_loss(column(2.0), distance, column(log(3), grad=True)).loss
    assert loss.item() == pytest.approx(3 * 0.5 - 2.0)
    (slope,) = torch.autograd.grad(loss.sum(), distance)
    assert slope.item() == pytest.approx(3.0)
    assert bear_multiplier_loss(column(50.0), column(0.0)).metrics["policy/multiplier"].item() == pytest.approx(exp(10))
