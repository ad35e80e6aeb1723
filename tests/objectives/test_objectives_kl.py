"""KL estimators: what their gradients really descend, by enumerating every choice of a small softmax."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.core.errors import ConfigError
from hone.objectives.kl import LIMIT, k1, k2, k3, k3_valued_k2, kl_loss_estimator, kl_penalty, weighted_k3
from hone.objectives.policy import clipped_surrogate, reinforce_loss

SIZE = 6


def logits(seed: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """d of(log-probabilities) / d logits."""
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(of(torch.log_softmax(leaf, 0)), leaf)
    return found


def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one.exp() * (one - other)).sum()


@pytest.mark.parametrize("seed", range(5))
def test_values_estimate_the_kl_of_policy_and_reference(seed: int) -> None:
    """E[k1] = E[k3] = KL(pi || ref) exactly; k2 only to second order."""
    pi, ref = torch.log_softmax(logits(seed), 0), torch.log_softmax(logits(seed + 100), 0)
    exact = kl(pi, ref)
    for estimator in (k1, k3):
        torch.testing.assert_close((pi.exp() * estimator(pi, ref)).sum(), exact)
    near = torch.log_softmax(logits(seed) + 1e-3 * logits(seed + 200), 0)
    torch.testing.assert_close((pi.exp() * k2(pi, near)).sum(), kl(pi, near), rtol=1e-2, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_expected_gradients_are_what_the_docstrings_say(seed: int) -> None:
    """The expectation is over choices of the policy as it acted: their probabilities are data, not differentiated."""
    start, ref = logits(seed), torch.log_softmax(logits(seed + 100), 0)
    acted = torch.log_softmax(start, 0).exp()
    forward = gradient(lambda pi: kl(pi, ref), start)
    reverse = gradient(lambda pi: kl(ref, pi), start)
    torch.testing.assert_close(gradient(lambda pi: (acted * k2(pi, ref)).sum(), start), forward)
    torch.testing.assert_close(gradient(lambda pi: (acted * k3(pi, ref)).sum(), start), reverse)
    assert not torch.allclose(forward, reverse)
    assert not k1(start.requires_grad_(), ref).requires_grad, "k1 as a loss would be noise around 0"
    naive = gradient(lambda pi: (acted * (pi - ref)).sum(), start.detach())
    torch.testing.assert_close(naive, torch.zeros(SIZE, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_the_weighted_estimator_is_right_off_policy_too(seed: int) -> None:
    """Choices are those of an older policy; the gradient is still that of KL(pi || ref)."""
    start, ref = logits(seed), torch.log_softmax(logits(seed + 100), 0)
    old = torch.log_softmax(logits(seed + 200), 0)
    expected = (old.exp() * weighted_k3(torch.log_softmax(start, 0), ref, logp_old=old)).sum()
    torch.testing.assert_close(expected, kl(torch.log_softmax(start, 0), ref))
    found = gradient(lambda pi: (old.exp() * weighted_k3(pi, ref, logp_old=old)).sum(), start)
    torch.testing.assert_close(found, gradient(lambda pi: kl(pi, ref), start))


def test_by_hand() -> None:
    """d = ln 2: k1 = 0.6931, k2 = 0.2402, k3 = 1/2 + 0.6931 - 1 = 0.1931; an old ratio of 3 makes it 0.5794."""
    now, ref = torch.tensor([-0.5]), torch.tensor([-0.5 - 0.693147])
    torch.testing.assert_close(k1(now, ref), torch.tensor([0.693147]))
    torch.testing.assert_close(k2(now, ref), torch.tensor([0.240226]), rtol=1e-5, atol=0)
    torch.testing.assert_close(k3(now, ref), torch.tensor([0.193147]), rtol=1e-5, atol=0)
    weighted = weighted_k3(now, ref, logp_old=now - 1.098612)
    torch.testing.assert_close(weighted, torch.tensor([0.579442]), rtol=1e-5, atol=0)


@given(st.floats(-500, 0), st.floats(-500, 0), st.floats(-500, 0))
def test_nothing_overflows(now: float, ref: float, old: float) -> None:
    leaf = torch.tensor([now], requires_grad=True)
    reference, before = torch.tensor([ref]), torch.tensor([old])
    for value in (k2(leaf, reference), k3(leaf, reference), weighted_k3(leaf, reference, logp_old=before)):
        assert torch.isfinite(value).all()
        assert (value >= 0).all()
        (slope,) = torch.autograd.grad(value.sum(), leaf, retain_graph=True)
        assert torch.isfinite(slope).all()


@pytest.mark.parametrize("drift", [1.0, LIMIT + 1, 60.0])
def test_a_policy_far_above_its_reference_is_pulled_back(drift: float) -> None:
    """d k3 / d logp = 1 - exp(-d): it must not vanish where the policy has drifted the most."""
    leaf = torch.tensor([-0.1], requires_grad=True)
    (slope,) = torch.autograd.grad(k3(leaf, leaf.detach() - drift).sum(), leaf)
    torch.testing.assert_close(slope, 1 - torch.exp(torch.tensor([-drift])))


def test_clipping_by_hand() -> None:
    """Ratios 1.5 and 0.5 under both signs of the advantage, clipped at 0.8 and 1.28."""
    r = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, 2.0, -2.0, -2.0, 1.0])
    now = r.log().requires_grad_()
    terms = clipped_surrogate(now, torch.zeros(5), advantage, low=0.2, high=0.28)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([-2.56, -1.0, 3.0, 1.6, -1.1]))
    (slope,) = torch.autograd.grad(terms.loss.sum(), now)
    torch.testing.assert_close(slope, torch.tensor([0.0, -1.0, 3.0, 0.0, -1.1]))
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 0, 0, 1, 0]
    torch.testing.assert_close(terms.metrics["policy/kl_nats"], r - 1 - r.log())
    torch.testing.assert_close(terms.metrics["policy/ratio_max"], r)
    assert not any(value.requires_grad for value in terms.metrics.values())


@pytest.mark.parametrize("seed", range(3))
def test_at_ratio_one_the_surrogate_is_the_policy_gradient(seed: int) -> None:
    now = logits(seed).requires_grad_()
    advantage = logits(seed + 50)
    (one,) = torch.autograd.grad(clipped_surrogate(now, now.detach(), advantage, low=0.2, high=0.2).loss.sum(), now)
    (other,) = torch.autograd.grad(reinforce_loss(now, advantage).loss.sum(), now)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(other, -advantage)


@given(st.floats(-600, 600), st.floats(-5, 5))
def test_an_absurd_ratio_is_a_large_number_and_not_infinity(gap: float, advantage: float) -> None:
    now = torch.tensor([gap], requires_grad=True)
    loss = clipped_surrogate(now, torch.zeros(1), torch.tensor([advantage]), low=0.2, high=0.2).loss
    (slope,) = torch.autograd.grad(loss.sum(), now)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_straight_through_estimator_is_right_in_value_and_gradient(seed: int) -> None:
    start, ref = logits(seed), torch.log_softmax(logits(seed + 100), 0)
    acted = torch.log_softmax(start, 0).exp()

    def expected(pi: Tensor) -> Tensor:
        return (acted * k3_valued_k2(pi, ref)).sum()

    torch.testing.assert_close(expected(acted.log()), kl(acted.log(), ref))
    torch.testing.assert_close(gradient(expected, start), gradient(lambda pi: kl(pi, ref), start))


def test_k1_is_refused_as_a_loss_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="'k1' cannot be a loss: the expected gradient of logp - logp_ref is 0"):
        kl_loss_estimator("k1")
    with pytest.raises(ConfigError, match="unknown KL estimator 'weighted_k2'; did you mean weighted_k3"):
        kl_loss_estimator("weighted_k2")


@pytest.mark.parametrize("name", ["k2", "k3", "weighted_k3", "k3_valued_k2"])
def test_a_penalty_is_the_distance_it_names(name: str) -> None:
    now, ref, then = (torch.log_softmax(logits(seed), 0) for seed in range(3))
    direct = {"k2": k2(now, ref), "k3": k3(now, ref), "weighted_k3": weighted_k3(now, ref, logp_old=then)}
    terms = kl_penalty(now, ref, then, estimator=kl_loss_estimator(name))
    torch.testing.assert_close(terms.loss, direct.get(name, k3_valued_k2(now, ref)))
    torch.testing.assert_close(terms.metrics["policy/kl_reference"], now - ref)
