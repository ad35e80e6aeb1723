"""Losses at their edges: rows that must not see each other's axis, bounds that are reached, defaults, and precision."""

from math import exp, log

import numpy as np
import pytest
import torch
from torch import Tensor

from hone.objectives import batchwide, constraint, distill, distributional, implicit, mismatch, offline, policy, td
from hone.objectives.distributional import ValueSupport
from hone.objectives.ratios import is_saturated, log1mexp
from hone.objectives.reward_model import implicit_process_reward, step_classification, step_regression


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


TABLE = torch.tensor([[0.0, 3.0], [5.0, 1.0], [-2.0, -4.0]], dtype=torch.float64)
"""Three rows of two actions: the best are 3, 5 and -2."""


# ------------------------------------------------------------------------------------------------- rows by themselves


def test_the_best_action_is_each_row_s_own() -> None:
    reward, discount = column(1.0, 2.0, 3.0), column(0.5, 0.5, 0.5)
    assert td.greedy_target(reward, discount, TABLE).tolist() == [2.5, 4.5, 2.0]
    assert td.double_target(reward, discount, TABLE, -TABLE).tolist() == [-0.5, -0.5, 4.0]
    assert td.dueling(column(10.0, 20.0, 30.0), TABLE).tolist() == [[8.5, 11.5], [22.0, 18.0], [31.0, 29.0]]
    target = constraint.bcq_target(reward, discount, TABLE, TABLE, pessimism=0.75)
    assert target.tolist() == [2.5, 4.5, 2.0]
    low = constraint.bcq_target(reward, discount, TABLE, -TABLE, pessimism=1.0)
    assert low.tolist() == [1.0, 2.0 - 0.5, 3.0 - 1.0]


def test_admissible_actions_are_each_row_s_own() -> None:
    logp = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.02, 0.88]], dtype=torch.float64).log()
    found = constraint.bcq_admissible_actions(logp, threshold=0.4)
    assert found.tolist() == [[True, True, False], [False, False, True]]
    square = torch.tensor([[0.5, 0.5], [0.01, 0.99]], dtype=torch.float64).log()
    assert constraint.bcq_admissible_actions(square, threshold=0.4).tolist() == [[True, True], [False, True]]
    illegal = column(-1.0, -float("inf"), -2.0)[None]
    assert constraint.bcq_admissible_actions(illegal, threshold=0.0).tolist() == [[True, False, True]]


def test_distributions_are_each_row_s_own() -> None:
    logits = torch.tensor([[0.0, 0.0, log(2.0)], [log(6.0), log(3.0), 0.0]], dtype=torch.float64)
    whole = torch.tensor([[0.25, 0.25, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(distill.renormalised(logits), whole.log())
    support = ValueSupport(low=-1.0, high=1.0, size=3)
    torch.testing.assert_close(distributional.logits_mean(logits, support), column(0.25, -0.5))
    target = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    terms = distributional.c51_loss(logits, target, support=support)
    torch.testing.assert_close(terms.loss, column(-log(0.25), -0.5 * (log(0.6) + log(0.3))))
    torch.testing.assert_close(terms.metrics["value/mean"], column(0.25, -0.5))


def test_numbers_are_split_by_the_distance_in_atoms() -> None:
    support = ValueSupport(low=-1.0, high=1.0, size=5)
    found = distributional.two_hot(column(-0.875, 0.5, 3.0), support)
    expected = [[0.75, 0.25, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------- bounds and defaults


def test_the_published_width_of_the_discrepancy_is_20() -> None:
    first, second = torch.tensor([[[0.0], [9.0]]]), torch.tensor([[[5.0], [30.0]]])
    assert torch.equal(constraint.mmd(first, second), constraint.mmd(first, second, width=20.0))
    assert not torch.equal(constraint.mmd(first, second), constraint.mmd(first, second, width=21.0))


def test_actions_are_clipped_to_their_own_bounds() -> None:
    action, noise = torch.zeros(1, 4), torch.tensor([[-9.0, -1.0, 1.0, 9.0]])
    found = td.smoothed_action(action, noise, scale=1.0, limit=2.0, low=-1.5, high=0.5)
    assert found.tolist() == [[-1.5, -1.0, 0.5, 0.5]]
    wide = td.smoothed_action(action, noise, scale=1.0, limit=2.0, low=-5.0, high=5.0)
    assert wide.tolist() == [[-2.0, -1.0, 1.0, 2.0]]


@pytest.mark.parametrize(("logarithm", "price"), [(-9.0, exp(-5)), (-2.0, exp(-2)), (10.0, exp(10)), (12.0, exp(10))])
def test_bear_s_multiplier_is_bounded(logarithm: float, price: float) -> None:
    given = column(logarithm)
    terms = constraint.bear_actor_loss(column(1.0), column(2.0), given)
    assert terms.loss.item() == pytest.approx(2 * price - 1)
    assert constraint.bear_multiplier_loss(given, column(0.0)).metrics["policy/multiplier"].item() == pytest.approx(
        price
    )


def test_statistics_of_half_precision_are_taken_in_float64() -> None:
    wide = np.array([1e8, 1.0, -1e8], np.float32)
    assert batchwide.kto_baseline(wide).tolist() == pytest.approx([1 / 3] * 3)
    shift = batchwide.RunningShift()
    assert shift.update(wide).tolist() == pytest.approx([1 / 3] * 3) and shift.mean == pytest.approx(1 / 3)
    assert batchwide.q_value_scale(np.full(3, 0.1, np.float32)).tolist() == pytest.approx([25.0] * 3, rel=1e-6)
    assert batchwide.q_value_scale(np.array([1e8, 1.0, 1.0], np.float32), alpha=1.0)[0] == 3 / (1e8 + 2)


def test_lengths_of_one_token_divide_by_1() -> None:
    found = implicit.reference_log_ratio(column(-1.0, -4.0), column(-3.0, -2.0), length=torch.tensor([1, 2]))
    assert found.tolist() == [2.0, -1.0]


def test_weights_of_preferences_are_data() -> None:
    chosen, rejected = column(-1.0).requires_grad_(), column(-2.0).requires_grad_()
    assert not implicit.wpo_weight(chosen, rejected).requires_grad


def test_corrections_have_their_published_bounds() -> None:
    proximal, then, sequence = column(1.0, -0.2), column(0.0, 0.0), torch.arange(2)
    found = mismatch.geometric_truncated_is(proximal, then, sequence)
    torch.testing.assert_close(found, column(2.0, exp(-0.2)))


def test_a_weight_that_just_reaches_its_cap_is_not_capped() -> None:
    terms = offline.advantage_weighted_regression(column(-1.0, -1.0), column(0.0, 1.0), cap=1.0)
    assert terms.metrics["policy/capped_fraction"].tolist() == [0.0, 1.0]


def test_a_log_ratio_of_just_20_nats_still_has_a_gradient() -> None:
    change = column(20.0, 20.5).requires_grad_()
    assert is_saturated(change).tolist() == [False, True]
    now = column(-1.0, -1.0).requires_grad_()
    terms = policy.clipped_surrogate(now, column(-21.0, -21.5), column(1.0, 1.0), high=1e12)
    (found,) = torch.autograd.grad(terms.loss.sum(), now)
    assert (found != 0).tolist() == [True, False]
    assert terms.metrics["policy/clip_fraction"].tolist() == [0.0, 1.0]


def test_a_score_of_0_is_no_verdict() -> None:
    right, wrong = torch.tensor([True]), torch.tensor([False])
    assert implicit_process_reward(column(0.0), right).metrics["reward_model/accuracy"].tolist() == [0.0]
    assert implicit_process_reward(column(0.0), wrong).metrics["reward_model/accuracy"].tolist() == [1.0]
    assert implicit_process_reward(column(0.5), right).metrics["reward_model/accuracy"].tolist() == [1.0]
    steps = step_regression(column(0.0, 0.5, 0.5, -0.5), column(1.0, 1.0, 0.5, 0.5))
    assert steps.metrics["steps/accuracy"].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_steps_without_a_label_have_no_loss() -> None:
    logits = torch.tensor([[3.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    terms = step_classification(logits, torch.tensor([-100, 1]))
    assert terms.loss.tolist() == pytest.approx([0.0, log(2.0)])
    regressed = step_regression(column(3.0, 0.0), column(float("nan"), 1.0))
    assert regressed.loss.tolist() == pytest.approx([0.0, log(2.0)])


def test_log1mexp_is_exact_on_both_sides_of_log_2() -> None:
    """In float32, where either form alone loses digits at one end."""
    x = torch.tensor([-1e-5, -1e-3, -0.5, -0.69, -0.7, -3.0, -15.0], dtype=torch.float64)
    exact = torch.log(-torch.expm1(x))
    exact[-2:] = torch.log1p(-torch.exp(x[-2:]))
    torch.testing.assert_close(log1mexp(x.float()).double(), exact, rtol=3e-7, atol=0)
