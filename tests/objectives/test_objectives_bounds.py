"""Losses with two bounds, each at a width of its own: the wrong bound at the wrong side is seen.

One decision a sequence, so that its ratio is its token's. A probe is a ratio (or a probability), the sign of
the advantage, and whether the loss still has a gradient there.
"""

from collections.abc import Callable
from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch
from torch import Tensor

from hone.objectives import mismatch, policy, selection, sequence, trust
from hone.objectives import policy as covariance
from hone.objectives.terms import LossTerms

LOW, HIGH = 0.1, 0.5
RATIOS = (
    # ratio, advantage, whether it has a gradient
    (1.3, 1.0, True),  # stopped at 1 + LOW
    (1.45, 2.0, True),
    (1.6, 1.0, False),
    (0.7, 1.0, True),
    (0.8, -1.0, False),  # free above 1 - HIGH
    (0.55, -2.0, False),
    (0.95, -1.0, True),
    (1.6, -1.0, True),
)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def in_sequences(loss: Callable[..., LossTerms], **bounds: float) -> Callable[..., LossTerms]:
    return lambda now, then, a: loss(now, then, a, torch.arange(len(a)), **bounds)


def masked(loss: Callable[..., LossTerms], **bounds: float) -> Callable[..., LossTerms]:
    return lambda now, then, a: loss(now, then, a, torch.zeros(len(a)), **bounds)


def decoupled(now: Tensor, then: Tensor, advantage: Tensor) -> LossTerms:
    clipped = partial(policy.clipped_surrogate, low=LOW, high=HIGH)
    return policy.decoupled_ppo(now, then - 0.3, then, advantage, clipped=clipped)


WIDTHS = {"low": LOW, "high": HIGH}
CLIPPED: dict[str, Callable[[Tensor, Tensor, Tensor], LossTerms]] = {
    "clipped_surrogate": partial(policy.clipped_surrogate, **WIDTHS),
    "dual_clip": partial(policy.clipped_surrogate, **WIDTHS, negative_cap=3.0),
    "decoupled_ppo": decoupled,
    "gspo": in_sequences(sequence.gspo, **WIDTHS),
    "gspo_token": in_sequences(sequence.gspo_token, **WIDTHS),
    "luspo": in_sequences(sequence.luspo, **WIDTHS),
    "gmpo": in_sequences(sequence.gmpo, log_low=-log(1 - LOW), log_high=log(1 + HIGH)),
    "clip_cov": masked(covariance.clip_cov, **WIDTHS),
}


def gradient(loss: Callable[..., LossTerms], now: Tensor, then: Tensor, advantage: Tensor) -> tuple[Tensor, LossTerms]:
    leaf = now.clone().requires_grad_()
    terms = loss(leaf, then, advantage)
    (found,) = torch.autograd.grad(terms.loss.sum(), leaf)
    return found, terms


@pytest.mark.parametrize("name", CLIPPED)
def test_each_bound_stands_on_its_side(name: str) -> None:
    ratios, advantage = column(*(r for r, _, _ in RATIOS)), column(*(a for _, a, _ in RATIOS))
    then = column(*np.linspace(-3, -1, len(RATIOS)))
    found, terms = gradient(CLIPPED[name], then + ratios.log(), then, advantage)
    assert (found != 0).tolist() == [free for _, _, free in RATIOS]
    assert terms.metrics["policy/clip_fraction"].tolist() == [float(not free) for _, _, free in RATIOS]


@pytest.mark.parametrize("name", CLIPPED)
def test_a_decision_of_advantage_0_is_not_clipped(name: str) -> None:
    then = column(-1.0, -1.0, -30.0)
    change = column(1.0, -1.0, 25.0)
    _, terms = gradient(CLIPPED[name], then + change, then, column(0.0, 0.0, 0.0))
    assert terms.metrics["policy/clip_fraction"].tolist() == [0.0, 0.0, 0.0]


def test_the_mask_of_clipped_decisions_has_the_same_sides() -> None:
    ratios = np.array([r for r, _, _ in RATIOS])
    advantage, then = np.array([a for _, a, _ in RATIOS]), np.linspace(-3, -1, len(RATIOS))
    found = selection.clipped_mask(then + np.log(ratios), then, advantage, **WIDTHS)
    assert found.tolist() == [not free for _, _, free in RATIOS]


def test_a_bound_that_is_reached_still_has_a_gradient() -> None:
    """GMPO's bounds are in nats: at exactly log_high, and -log_low, nothing is stopped."""
    exact = in_sequences(sequence.gmpo, log_low=0.25, log_high=0.5)
    then, advantage = column(-2.0, -2.0), column(1.0, -1.0)
    _, terms = gradient(exact, then + column(0.5, -0.25), then, advantage)
    assert terms.metrics["policy/clip_fraction"].tolist() == [0.0, 0.0]
    _, terms = gradient(exact, then + column(0.5078125, -0.2578125), then, advantage)
    assert terms.metrics["policy/clip_fraction"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["gspo", "gmpo", "clipped_surrogate", "decoupled_ppo"])
def test_past_the_numerical_cap_a_decision_counts_as_clipped(name: str) -> None:
    """A > 0 was clipped before; A < 0 has no gradient beyond 20 nats either. At A = 1, too: no number is special."""
    then = column(-30.0, -30.0, -30.0)
    found, terms = gradient(CLIPPED[name], then + column(25.0, 25.0, 25.0), then, column(1.0, -1.0, -2.0))
    stopped = (found == 0).double()
    assert stopped[0] == 1 and torch.equal(terms.metrics["policy/clip_fraction"], stopped)


# ------------------------------------------------------------------------------------------------- divergences


P, Q = (0.5, 0.3, 0.5, 0.7, 0.5), (0.3, 0.5, 0.4, 0.3, 0.9)
"""Probabilities now and then; total variations 0.2, 0.2, 0.1, 0.4, 0.4."""
SIDES = (1.0, -1.0, 1.0, 1.0, -1.0)


def kl(then: float, now: float) -> float:
    return then * log(then / now) + (1 - then) * log((1 - then) / (1 - now))


@pytest.mark.parametrize(("increase", "decrease"), [(0.15, 0.3), (0.3, 0.15), (0.5, 0.05)])
def test_each_divergence_bound_stands_on_its_side(increase: float, decrease: float) -> None:
    now, then, advantage = column(*P).log(), column(*Q).log(), column(*SIDES)
    far = [abs(p - q) > (increase if a > 0 else decrease) for p, q, a in zip(P, Q, SIDES, strict=True)]
    found, terms = gradient(partial(trust.dppo_tv, max_increase=increase, max_decrease=decrease), now, then, advantage)
    assert (found == 0).tolist() == far and terms.metrics["policy/clip_fraction"].tolist() == [float(f) for f in far]


@pytest.mark.parametrize(("increase", "decrease"), [(0.05, 0.15), (0.15, 0.05), (0.5, 0.01)])
def test_each_kl_bound_stands_on_its_side(increase: float, decrease: float) -> None:
    now, then, advantage = column(*P).log(), column(*Q).log(), column(*SIDES)
    far = [kl(q, p) > (increase if a > 0 else decrease) for p, q, a in zip(P, Q, SIDES, strict=True)]
    assert any(far) and not all(far)
    found, terms = gradient(
        partial(trust.dppo_kl, max_increase_nats=increase, max_decrease_nats=decrease), now, then, advantage
    )
    assert (found == 0).tolist() == far and terms.metrics["policy/clip_fraction"].tolist() == [float(f) for f in far]


def test_the_kl_has_a_direction() -> None:
    """KL(then || now) of 0.3 against 0.7 and 0.02: not the same both ways."""
    now, then = column(0.02).log(), column(0.3).log()
    assert kl(0.3, 0.02) > 2 * kl(0.02, 0.3)
    bound = 0.5 * (kl(0.3, 0.02) + kl(0.02, 0.3))
    found, _ = gradient(partial(trust.dppo_kl, max_decrease_nats=bound), now, then, column(-1.0))
    assert found.tolist() == [0.0]


# ------------------------------------------------------------------------------------------------- weights of ratios


def test_floors_and_caps_of_ratios_are_apart() -> None:
    change = column(log(0.3), log(0.6), log(1.5), log(4.0))
    then = torch.zeros_like(change)
    cispo = policy.cispo(change, then, column(1.0, 1.0, 1.0, 1.0), ratio_floor=0.5, ratio_cap=3.0)
    torch.testing.assert_close(cispo.loss, -column(0.5, 0.6, 1.5, 3.0) * change)
    assert cispo.metrics["policy/capped_fraction"].tolist() == [1.0, 0.0, 0.0, 1.0]
    reached = policy.cispo(then, then, column(1.0, 1.0, 1.0, 1.0), ratio_floor=1.0, ratio_cap=1.0)
    assert not reached.metrics["policy/capped_fraction"].any(), "a ratio at a bound is not capped"
    kept = mismatch.icepop(change, then, weight_floor=0.5, weight_cap=3.0)
    torch.testing.assert_close(kept, column(0.0, 0.6, 1.5, 0.0))
    kept = mismatch.masked_is(change, then, weight_floor=0.5, weight_cap=3.0)
    torch.testing.assert_close(kept, column(0.0, 0.6, 1.5, 0.0))
    each = torch.arange(4)
    kept = mismatch.geometric_rejection(change, then, each, ratio_floor=0.5, ratio_cap=3.0)
    assert (kept != 0).tolist() == [False, True, True, False]


def test_vespo_s_kernels_belong_to_their_signs() -> None:
    """phi(w) = w^k exp(l (1 - w)) with (k, l) by the sign of the advantage, 0 included in the praised."""
    then = column(-2.0, -2.0, -2.0)
    now = (then + log(1.5)).requires_grad_()
    terms = sequence.vespo(now, then, column(1.0, -1.0, 0.0), torch.arange(3), positive=(1.0, 4.0), negative=(3.0, 0.5))
    praised, blamed = 1.5 * exp(4.0 * -0.5), 1.5**3 * exp(0.5 * -0.5)
    assert terms.metrics["policy/phi"].tolist() == pytest.approx([praised, blamed, praised])
