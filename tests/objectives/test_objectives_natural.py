"""The natural gradient: conjugate gradients, two ways to a Fisher product, the line search, what it leaves behind."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.models.language.token_logprobs import token_logprobs
from hone.objectives.kl import k2, k3
from hone.objectives.natural import (
    TrustRegion,
    TrustRegionOutcome,
    conjugate_gradient,
    finite_difference_product,
    fisher_product,
    trust_region_direction,
    trust_region_step,
)
from hone.objectives.policy import importance_weighted

SIZE = 6
FREE = TrustRegion(damping=0.0, iterations=50, residual=1e-24, min_gain_share=0.0)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 1000), size=st.integers(1, 8))
def test_conjugate_gradients_solve(seed: int, size: int) -> None:
    root = normal(seed, size, size)
    matrix = root @ root.T + torch.eye(size, dtype=torch.float64)
    target = normal(seed + 1, size)
    found = conjugate_gradient(lambda v: matrix @ v, target, iterations=3 * size, residual=1e-26)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target), rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_stop_where_nothing_curves() -> None:
    target = torch.ones(3, dtype=torch.float64)
    assert (conjugate_gradient(lambda v: 0 * v, target) == 0).all()
    assert (conjugate_gradient(lambda v: -v, target) == 0).all()
    assert (conjugate_gradient(lambda v: v, 0 * target) == 0).all()


def fisher(logits: Tensor) -> Tensor:
    p = torch.softmax(logits, 0)
    return torch.diag(p) - torch.outer(p, p)


def exact_kl(logits: Tensor, old: Tensor) -> Tensor:
    then, now = torch.log_softmax(old, 0), torch.log_softmax(logits, 0)
    return (then.exp() * (then - now)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_products_are_those_of_the_fisher_matrix(seed: int) -> None:
    """By the exact KL, by k2 averaged over the policy's own choices (what a language model samples), by differences."""
    logits, v = normal(seed, SIZE).requires_grad_(), normal(seed + 9, SIZE)
    old = logits.detach().clone()
    expected = fisher(old) @ v

    def sampled() -> Tensor:
        return (torch.softmax(old, 0) * k2(torch.log_softmax(logits, 0), torch.log_softmax(old, 0))).sum()

    def slope() -> Tensor:
        return torch.autograd.grad(exact_kl(logits, old), logits)[0]

    torch.testing.assert_close(fisher_product(lambda: exact_kl(logits, old), [logits])(v), expected)
    torch.testing.assert_close(fisher_product(sampled, [logits])(v), expected)
    torch.testing.assert_close(finite_difference_product(logits, slope)(v), expected, rtol=1e-5, atol=1e-8)
    assert torch.equal(logits, old)
    assert (finite_difference_product(logits, slope)(0 * v) == 0).all()


def test_differences_serve_a_language_model_s_head() -> None:
    """The chunked log-softmax of the decoder: first derivatives agree with the Jacobian's outer products."""
    hidden, weight = normal(0, 7, 4), normal(1, 5, 4).requires_grad_()
    chosen = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    then = token_logprobs(hidden, weight, chosen, 1.0).logp.detach()

    def slope() -> Tensor:
        loss = k2(token_logprobs(hidden, weight, chosen, 1.0).logp, then).mean()
        return torch.autograd.grad(loss, weight)[0].reshape(-1)

    def rows() -> Tensor:
        logp = token_logprobs(hidden, weight, chosen, 1.0).logp
        return torch.stack([torch.autograd.grad(one, weight, retain_graph=True)[0].reshape(-1) for one in logp])

    jacobian, v = rows(), normal(2, 20)
    found = finite_difference_product(weight.detach().view(-1), slope, radius=1e-4)(v)
    torch.testing.assert_close(found, jacobian.T @ (jacobian @ v) / 7, rtol=1e-6, atol=1e-9)


def test_the_direction_is_the_natural_gradient_and_meets_the_bound() -> None:
    logits, slope = normal(3, SIZE), normal(4, SIZE)
    slope -= slope.mean()  # a softmax does not feel a common shift
    step = trust_region_direction(slope, lambda v: fisher(logits) @ v, FREE)
    step = step - step.mean()
    exact = -torch.linalg.pinv(fisher(logits)) @ slope
    exact -= exact.mean()
    torch.testing.assert_close(step / step.norm(), exact / exact.norm(), rtol=1e-6, atol=1e-8)
    assert float(0.5 * step @ fisher(logits) @ step) == pytest.approx(FREE.max_kl_nats, rel=1e-6)


class Softmax:
    """A policy over SIZE choices, each worth something; all of them enumerated."""

    def __init__(self, seed: int) -> None:
        self.logits, self.worth = normal(seed, SIZE), normal(seed + 50, SIZE)
        self.old = self.logits.clone()

    def loss(self, logits: Tensor) -> Tensor:
        then = torch.log_softmax(self.old, 0)
        return (then.exp() * importance_weighted(torch.log_softmax(logits, 0), then, self.worth).loss).sum()

    def judge(self) -> tuple[float, float]:
        return float(self.loss(self.logits)), float(exact_kl(self.logits, self.old))

    def step(self, region: TrustRegion, judge: Callable[[], tuple[float, float]] | None = None) -> TrustRegionOutcome:
        leaf = self.logits.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(leaf), leaf)
        product = fisher_product(lambda: exact_kl(leaf, self.old), [leaf])
        return trust_region_step(self.logits, slope, product, judge or self.judge, region)


@given(seed=st.integers(0, 500), bound=st.sampled_from([1e-4, 0.01, 0.1]))
def test_an_accepted_step_gains_and_keeps_the_bound(seed: int, bound: float) -> None:
    policy = Softmax(seed)
    found = policy.step(TrustRegion(max_kl_nats=bound, damping=1e-3))
    assert found.accepted
    loss, kl = policy.judge()
    assert found.loss_decrease == pytest.approx(-loss - float(torch.softmax(policy.old, 0) @ policy.worth))
    assert 0 < kl <= bound
    assert kl == pytest.approx(found.kl_nats)
    assert found.step_share == pytest.approx(0.8 ** (found.tries - 1))
    assert float(torch.softmax(policy.logits, 0) @ policy.worth) > float(torch.softmax(policy.old, 0) @ policy.worth)


def test_steps_climb_to_the_best_choice() -> None:
    policy = Softmax(1)
    for _ in range(60):
        policy.old = policy.logits.clone()
        policy.step(TrustRegion(max_kl_nats=0.1, damping=1e-4))
    assert float(torch.softmax(policy.logits, 0)[policy.worth.argmax()]) > 0.95


@pytest.mark.parametrize("verdict", [(1e9, 0.0), (-1e9, 1e9), (float("nan"), 0.0), (-1.0, float("nan"))])
def test_parameters_are_restored_when_the_search_fails(verdict: tuple[float, float]) -> None:
    """Worse at every length, too far at every length, or not a number: bit for bit what they were."""
    policy = Softmax(2)
    answers = iter([(0.0, 0.0)] + [verdict] * 10)
    found = policy.step(TrustRegion(), lambda: next(answers))
    assert not found.accepted
    assert (found.loss_decrease, found.kl_nats, found.step_share, found.tries) == (0, 0, 0, 10)
    assert torch.equal(policy.logits, policy.old)


def test_parameters_are_restored_when_judging_raises() -> None:
    policy = Softmax(3)
    answers = iter([(0.0, 0.0), (1.0, 0.0)])

    def judge() -> tuple[float, float]:
        try:
            return next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        policy.step(TrustRegion(), judge)
    assert torch.equal(policy.logits, policy.old)


def test_nothing_to_follow_is_no_step() -> None:
    policy = Softmax(4)
    policy.worth[:] = 1.0
    assert not policy.step(replace(FREE, residual=1e-20)).accepted
    assert torch.equal(policy.logits, policy.old)
    broken = trust_region_step(
        policy.logits, torch.full((SIZE,), float("nan")).double(), lambda v: v, policy.judge, FREE
    )
    assert not broken.accepted
    assert torch.equal(policy.logits, policy.old)


def test_the_sampled_kl_of_a_language_model_judges_a_step() -> None:
    """k3 on the sampled tokens is the KL that the line search holds to its bound."""
    table = normal(8, 40, 5)
    old = torch.log_softmax(table, 1)
    chosen = torch.multinomial(old.exp(), 1, generator=torch.Generator().manual_seed(0))
    advantage, then = normal(9, 40), old.gather(1, chosen)[:, 0]
    flat = table.reshape(-1)

    def logp(of: Tensor) -> Tensor:
        return torch.log_softmax(of.view(40, 5), 1).gather(1, chosen)[:, 0]

    leaf = flat.clone().requires_grad_()
    (slope,) = torch.autograd.grad(importance_weighted(logp(leaf), then, advantage).loss.mean(), leaf)
    product = fisher_product(lambda: k2(logp(leaf), then).mean(), [leaf])

    def judge() -> tuple[float, float]:
        now = logp(flat)
        return float(importance_weighted(now, then, advantage).loss.mean()), float(k3(then, now).mean())

    found = trust_region_step(flat, slope, product, judge, TrustRegion(max_kl_nats=0.02))
    assert found.accepted
    assert judge()[1] <= 0.02
