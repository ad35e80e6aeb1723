"""TRPO's line search, scripted: which step is taken, what is said of it, and defaults that are the settings' own."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hone.objectives.natural import (
    TrustRegion,
    TrustRegionOutcome,
    conjugate_gradient,
    finite_difference_product,
    fisher_product,
    trust_region_direction,
    trust_region_step,
)

REGION = TrustRegion(max_kl_nats=0.125, damping=0.0, max_backtracks=3, shrink=0.5, min_gain_share=0.5)
"""With a gradient of 1 and the identity as Fisher matrix: a full step of -1/2, which promises 1/2."""
REJECTED = TrustRegionOutcome(accepted=False, loss_decrease=0.0, kl_nats=0.0, step_share=0.0, tries=3)


def identity(v: Tensor) -> Tensor:
    return v.clone()


def script(
    verdicts: Sequence[tuple[float, float]], parameters: Tensor, seen: list[float]
) -> Callable[[], tuple[float, float]]:
    answers = iter(verdicts)

    def judge() -> tuple[float, float]:
        seen.append(float(parameters[0]))
        return next(answers)

    return judge


def searched(*verdicts: tuple[float, float], region: TrustRegion = REGION) -> tuple[TrustRegionOutcome, list[float]]:
    """The outcome, and the parameter at each call of the judge and at the end; the first verdict is of the start."""
    parameters, seen = torch.tensor([2.0], dtype=torch.float64), []
    judge = script(verdicts, parameters, seen)
    outcome = trust_region_step(parameters, torch.ones(1, dtype=torch.float64), identity, judge, region)
    return outcome, [*seen, float(parameters[0])]


def test_a_full_step_that_gains_just_enough_is_taken() -> None:
    """At both bounds: half of the promised 1/2, and the whole KL."""
    outcome, seen = searched((1.0, 0.0), (0.75, 0.125))
    assert outcome == TrustRegionOutcome(accepted=True, loss_decrease=0.25, kl_nats=0.125, step_share=1.0, tries=1)
    assert seen == [2.0, 1.5, 1.5]


def test_a_shortened_step_has_to_gain_its_share_of_the_promise() -> None:
    """1/8 is too little of a full step, and exactly enough of half of one: that step is taken and reported."""
    outcome, seen = searched((1.0, 0.0), (0.875, 0.01), (0.875, 0.01))
    assert outcome == TrustRegionOutcome(accepted=True, loss_decrease=0.125, kl_nats=0.01, step_share=0.5, tries=2)
    assert seen == [2.0, 1.5, 1.75, 1.75]
    outcome, seen = searched((1.0, 0.0), (0.9375, 0.01), (0.90625, 0.01), (0.9375, 0.02))
    assert outcome == TrustRegionOutcome(accepted=True, loss_decrease=0.0625, kl_nats=0.02, step_share=0.25, tries=3)
    assert seen == [2.0, 1.5, 1.75, 1.875, 1.875]


def test_steps_past_the_bound_are_shortened() -> None:
    outcome, seen = searched((1.0, 0.0), (0.0, 0.126), (0.0, 0.2), (0.5, 0.1))
    assert outcome == TrustRegionOutcome(accepted=True, loss_decrease=0.5, kl_nats=0.1, step_share=0.25, tries=3)
    assert seen == [2.0, 1.5, 1.75, 1.875, 1.875]


@pytest.mark.parametrize(
    "verdict", [(1.0, 0.0), (0.99, 0.0), (0.0, 1.0), (float("nan"), 0.0), (float("-inf"), 0.0), (0.0, float("nan"))]
)
def test_no_step_is_told_as_none(verdict: tuple[float, float]) -> None:
    outcome, seen = searched((1.0, 0.0), *3 * [verdict])
    assert outcome == REJECTED and outcome.accepted is False and isinstance(outcome.loss_decrease, float)
    assert seen == [2.0, 1.5, 1.75, 1.875, 2.0]


def test_nothing_to_follow_is_told_as_no_step() -> None:
    parameters = torch.tensor([2.0])
    outcome = trust_region_step(parameters, torch.zeros(1), identity, lambda: (0.0, 0.0), REGION)
    assert outcome == TrustRegionOutcome(accepted=False, loss_decrease=0.0, kl_nats=0.0, step_share=0.0, tries=0)
    assert outcome.accepted is False and isinstance(outcome.loss_decrease, float) and isinstance(outcome.tries, int)


def test_an_error_at_a_trial_step_takes_it_back() -> None:
    parameters = torch.tensor([2.0], dtype=torch.float64)
    calls: list[int] = []

    def judge() -> tuple[float, float]:
        calls.append(1)
        if len(calls) == 2:
            raise ArithmeticError("broken")
        return 1.0, 0.0

    with pytest.raises(ArithmeticError, match="broken"):
        trust_region_step(parameters, torch.ones(1, dtype=torch.float64), identity, judge, REGION)
    assert parameters.tolist() == [2.0]


# ------------------------------------------------------------------------------------------------- the direction


def spread(size: int = 16) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A product with eigenvalues from 1 to 1000, which ten iterations do not solve."""
    scale = torch.logspace(0, 3, size, dtype=torch.float64)
    return lambda v: scale * v, torch.ones(size, dtype=torch.float64)


def test_conjugate_gradients_stop_by_default_after_ten_iterations_or_at_1e_10() -> None:
    product, target = spread()
    found = conjugate_gradient(product, target)
    assert torch.equal(found, conjugate_gradient(product, target, iterations=10, residual=1e-10))
    assert not torch.equal(found, conjugate_gradient(product, target, iterations=11, residual=1e-10))
    small = 1e-4 * target
    assert conjugate_gradient(product, small).abs().max() > 0
    assert not conjugate_gradient(product, 1e-6 * target).any(), "a squared norm of 1.6e-11 is below 1e-10"


def test_a_residual_that_is_reached_ends_the_iterations() -> None:
    assert conjugate_gradient(identity, torch.tensor([1.0, 0.0]), residual=1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("settings", [{"iterations": 1}, {"iterations": 4}, {"residual": 12.0}])
def test_the_direction_is_solved_as_the_settings_say(settings: dict[str, float]) -> None:
    product, target = spread()
    region = TrustRegion(damping=0.0, **settings)  # type: ignore[arg-type]
    x = conjugate_gradient(product, -target, iterations=region.iterations, residual=region.residual)
    found = trust_region_direction(target, product, region)
    torch.testing.assert_close(found / found.norm(), x / x.norm())
    other = trust_region_direction(target, product, TrustRegion(damping=0.0))
    assert not torch.allclose(found / found.norm(), other / other.norm())


def test_parameters_that_the_kl_is_linear_in_do_not_curve() -> None:
    a, b = torch.tensor([3.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    product = fisher_product(lambda: (a * a + b).sum(), [a, b])
    found = product(torch.tensor([1.0, 1.0]))
    assert found.tolist() == [2.0, 0.0] and not found.requires_grad


def test_differences_carry_no_gradient() -> None:
    parameters = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    product = finite_difference_product(parameters, lambda: 3.0 * parameters)
    found = product(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert not found.requires_grad
    torch.testing.assert_close(found, torch.tensor([3.0, -3.0], dtype=torch.float64))
