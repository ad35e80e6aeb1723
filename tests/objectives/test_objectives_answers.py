"""Losses on single answers and of models that score them; what KTO, BCO and TD3+BC take from the whole batch."""

from functools import partial
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.core.errors import DataError
from hone.objectives.batchwide import RunningShift, kto_baseline, q_value_scale, same_rank
from hone.objectives.preference import apo_zero, apo_zero_unpaired, bco, bco_pair, kto
from hone.objectives.reward_model import (
    UNLABELLED,
    bradley_terry,
    implicit_process_reward,
    step_classification,
    step_regression,
)

L3 = log(3)
numbers = st.floats(-20, 20)
YES, NO = torch.tensor([True]), torch.tensor([False])


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# ------------------------------------------------------------------------------------------------------ KTO


def test_kto_by_hand() -> None:
    """log 3 above a baseline of 1 nat: 1/4 is left to gain, 3/4 to lose; weights 2 and 3."""
    score, flags = column(1 + L3, 1 + L3), torch.tensor([True, False])
    terms = kto(score, flags, column(1.0, 1.0), beta=1.0, desirable_weight=2.0, undesirable_weight=3.0)
    torch.testing.assert_close(terms.loss, column(2 * 0.25, 3 * 0.75))
    metrics = terms.metrics
    assert metrics["preference/accuracy"].tolist() == [1.0, 0.0]
    torch.testing.assert_close(metrics["preference/desirable_nats"], column(1 + L3))
    torch.testing.assert_close(metrics["preference/undesirable_nats"], column(1 + L3))
    assert metrics["preference/baseline_nats"].tolist() == [1.0, 1.0]


@given(numbers, st.floats(0, 20))
def test_kto_lifts_the_desirable_and_most_where_it_is_undecided(score: float, baseline: float) -> None:
    z0 = column(baseline)
    for flag, sign in ((YES, -1), (NO, 1)):
        here, middle = column(score, grad=True), column(baseline, grad=True)
        (slope,) = torch.autograd.grad(kto(here, flag, z0).loss.sum(), here)
        (steepest,) = torch.autograd.grad(kto(middle, flag, z0).loss.sum(), middle)
        assert sign * slope.item() > 0
        assert steepest.item() == pytest.approx(sign * 0.1 / 4)
        assert abs(slope.item()) <= abs(steepest.item()) + 1e-12


def test_the_baseline_by_hand() -> None:
    """Unknown ones leave the mean; a negative mean is 0, and it is clamped after averaging, not before."""
    assert kto_baseline(np.array([1.0, 3.0, np.nan])).tolist() == [2.0, 2.0, 2.0]
    assert kto_baseline(np.array([-3.0, 1.0])).tolist() == [0.0, 0.0]
    assert kto_baseline(np.array([4.0, -2.0])).tolist() == [1.0, 1.0]
    assert kto_baseline(np.array([np.nan, np.nan])).tolist() == [0.0, 0.0]
    assert kto_baseline(np.zeros(0)).shape == (0,)


@given(numbers)
def test_apo_zero_on_single_answers_is_kto_without_a_baseline(score: float) -> None:
    s, zero = column(score), column(0.0)
    for flag in (YES, NO):
        torch.testing.assert_close(apo_zero_unpaired(s, flag).loss, kto(s, flag, zero).loss)


@given(numbers, numbers)
def test_pairs_are_two_answers(chosen: float, rejected: float) -> None:
    won, lost, shift = column(chosen), column(rejected), column(0.7)
    both = apo_zero_unpaired(won, YES).loss + apo_zero_unpaired(lost, NO).loss
    torch.testing.assert_close(both, apo_zero(won, lost).loss)
    both = bco(won, YES, shift).loss + bco(lost, NO, shift).loss
    torch.testing.assert_close(both, bco_pair(won, lost, shift).loss)


@pytest.mark.parametrize("loss", [kto, bco])
def test_a_batch_of_one_kind_is_as_good_as_any(loss) -> None:
    score, flags = column(1.0, -2.0, grad=True), torch.tensor([False, False])
    terms = loss(score, flags, column(0.5, 0.5))
    terms.loss.sum().backward()
    assert score.grad is not None
    assert (score.grad > 0).all()
    assert terms.metrics["preference/desirable_nats"].numel() == 0


# ------------------------------------------------------------------------------------- from the whole batch


def test_the_running_shift_is_the_mean_of_all_that_came() -> None:
    shift = RunningShift()
    assert shift.update(np.array([1.0, 3.0])).tolist() == [2.0, 2.0]
    assert shift.update(np.array([5.0, np.nan])).tolist() == [3.0, 3.0]
    assert shift.update(np.zeros(0)).shape == (0,)
    resumed = RunningShift()
    resumed.restore(shift.state())
    assert resumed == shift
    assert resumed.update(np.array([-1.0])).tolist() == [2.0]
    with pytest.raises(DataError, match="mean"):
        resumed.restore({"count": 3})


@given(st.lists(st.lists(numbers, max_size=5), max_size=5))
def test_the_running_shift_does_not_depend_on_how_answers_came(batches: list[list[float]]) -> None:
    shift, everything = RunningShift(), [score for batch in batches for score in batch]
    for batch in batches:
        shift.update(np.array(batch))
    assert shift.count == len(everything)
    assert shift.mean == pytest.approx(np.mean(everything) if everything else 0.0, abs=1e-9)


@given(st.integers(0, 1000))
def test_ranks_are_matched(seed: int) -> None:
    draws = np.random.default_rng(seed)
    scores, others = draws.normal(size=7).round(1), draws.normal(size=7)
    partners = same_rank(scores, others)
    assert sorted(partners) == sorted(others)
    order = np.argsort(scores, kind="stable")
    assert (np.diff(partners[order]) >= 0).all()


def test_the_scale_of_worth_by_hand() -> None:
    assert q_value_scale(np.array([2.0, -3.0]), alpha=2.5).tolist() == [1.0, 1.0]
    assert np.isfinite(q_value_scale(np.zeros(2))).all()
    assert q_value_scale(np.zeros(0)).shape == (0,)


# ----------------------------------------------------------------------------------------------- reward models


@given(numbers, numbers, numbers)
def test_only_differences_of_rewards_count_without_centring(chosen: float, rejected: float, shift: float) -> None:
    one = bradley_terry(column(chosen), column(rejected)).loss
    torch.testing.assert_close(one, bradley_terry(column(chosen + shift), column(rejected + shift)).loss)


def test_centring_draws_the_sum_to_0() -> None:
    chosen, rejected = column(3.0, grad=True), column(3.0, grad=True)
    bradley_terry(chosen, rejected, centring=0.01).loss.sum().backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert (chosen.grad + rejected.grad).item() == pytest.approx(2 * 2 * 0.01 * 6.0)


def test_steps_by_hand() -> None:
    """Odds of 3 to 1 for good: right, wrong, and a position where no step ends, whose logits are garbage."""
    logits = torch.tensor([[0.0, L3], [0.0, L3], [torch.nan, torch.inf]], dtype=torch.float64, requires_grad=True)
    terms = step_classification(logits, torch.tensor([1, 0, UNLABELLED]))
    torch.testing.assert_close(terms.loss, column(log(4 / 3), log(4), 0.0))
    assert terms.metrics["steps/accuracy"].tolist() == [1.0, 0.0]
    terms.loss.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], column(0.25, -0.25))
    assert logits.grad[2].tolist() == [0.0, 0.0]


def test_scored_steps_by_hand() -> None:
    """sigmoid = 3/4 against labels 1, 1/4 and none."""
    logit = torch.tensor([L3, L3, torch.nan], dtype=torch.float64, requires_grad=True)
    terms = step_regression(logit, column(1.0, 0.25, torch.nan))
    torch.testing.assert_close(terms.loss, column(log(4 / 3), 0.25 * log(4 / 3) + 0.75 * log(4), 0.0))
    assert terms.metrics["steps/accuracy"].tolist() == [1.0, 0.0]
    terms.loss.sum().backward()
    assert logit.grad is not None
    torch.testing.assert_close(logit.grad, column(-0.25, 0.5, 0.0))


def test_two_classes_are_one_score() -> None:
    logits, label = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    one = step_classification(logits, label).loss
    torch.testing.assert_close(one, step_regression(logits[:, 1] - logits[:, 0], label.double()).loss)


def test_implicit_process_by_hand() -> None:
    terms = implicit_process_reward(column(L3, L3), column(1.0, 0.0), beta=1.0)
    torch.testing.assert_close(terms.loss, column(log(4 / 3), log(4)))
    assert terms.metrics["reward_model/accuracy"].tolist() == [1.0, 0.0]


def test_half_precision_rewards_are_compared_in_float32() -> None:
    chosen, rejected = torch.tensor([1.0]).bfloat16(), torch.tensor([0.9]).bfloat16()
    for loss in (bradley_terry, partial(bradley_terry, centring=0.01)):
        assert loss(chosen, rejected).loss.dtype == torch.float32
    assert step_classification(torch.zeros(1, 2).bfloat16(), torch.tensor([1])).loss.dtype == torch.float32
