"""Losses where a small fault hides: bounds reached exactly, extreme log-ratios, ties, defaults, number types."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hone.objectives import (
    batchwide,
    implicit,
    kl,
    mismatch,
    policy,
    ratios,
    reward_model,
    selection,
    sequence,
    trust,
    value,
)
from hone.objectives import (
    mismatch as rejection,
)
from hone.objectives import (
    policy as covariance,
)
from hone.objectives import (
    policy as simko,
)
from hone.objectives import (
    preference as reference_free,
)
from hone.objectives import (
    preference as unpaired,
)
from hone.objectives.terms import LossTerms

FAR = 30.0
"""Nats beyond the limit of 20."""
MANY = 400
"""Decisions with ties: an unstable sort keeps the order of a few equal values, not of so many."""


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=grad)


ZERO = column(0.0, 0.0)
FIRST = torch.tensor([0, 0])

RNG = np.random.default_rng(7)
NOW, THEN, ADVANTAGE = (torch.tensor(RNG.normal(0.0, size, 12_000)) for size in (1.0, 1.0, 2.0))
EACH = torch.arange(12_000)
UNIFORM, FREE = RNG.random(12_000), np.zeros(12_000, np.bool_)


def simpo_hinge(**numbers: float) -> Tensor:
    return reference_free.simpo_hinge(NOW, THEN, **numbers).loss


def of_sequences(loss: Callable[..., LossTerms]) -> Callable[..., Tensor]:
    return lambda **numbers: loss(1e-3 * NOW, 1e-3 * THEN, ADVANTAGE, EACH, **numbers).loss


DEFAULTS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "geometric_rejection": (
        lambda **numbers: mismatch.geometric_rejection(1e-3 * NOW, 1e-3 * THEN, EACH, **numbers),
        {"ratio_floor": 0.999, "ratio_cap": 1.001},
    ),
    "icepop": (lambda **numbers: mismatch.icepop(NOW, THEN, **numbers), {"weight_floor": 0.5, "weight_cap": 5.0}),
    "kpop": (lambda **numbers: mismatch.kpop(NOW - 3.0, THEN - 3.0, **numbers), {"max_divergence_nats": 2.0}),
    "masked_is": (lambda **numbers: mismatch.masked_is(NOW, THEN, **numbers), {"weight_floor": 0.0, "weight_cap": 2.0}),
    "sequence_masked_is": (
        lambda **numbers: mismatch.sequence_masked_is(NOW, THEN, EACH, **numbers),
        {"weight_floor": 0.0, "weight_cap": 3.0},
    ),
    "truncated_weight": (
        lambda **numbers: mismatch.truncated_weight(NOW, weight_cap=2.0, **numbers), {"weight_floor": 0.0},
    ),
    "simpo_hinge": (simpo_hinge, {"beta": 2.0, "margin": 1.0}),
    "clip_cov_mask": (
        lambda **numbers: torch.from_numpy(
            selection.clip_cov_mask(NOW.numpy(), ADVANTAGE.numpy(), FREE, UNIFORM, **{"fraction": 1.0, **numbers})
        ),
        {"min_covariance": 1.0, "max_covariance": 5.0},
    ),
    "clip_cov_mask, fraction": (
        lambda **numbers: torch.from_numpy(
            selection.clip_cov_mask(NOW.numpy(), ADVANTAGE.numpy(), FREE, UNIFORM, **numbers)
        ),
        {"fraction": 2e-4},
    ),
    "gspo": (of_sequences(sequence.gspo), {"low": 3e-4, "high": 4e-4}),
    "gspo_token": (of_sequences(sequence.gspo_token), {"low": 3e-4, "high": 4e-4}),
    "luspo": (of_sequences(sequence.luspo), {"low": 2e-3, "high": 2.5e-3}),
    "forking_tokens": (
        lambda **numbers: simko.forking_tokens(NOW.exp(), torch.zeros_like(EACH), **numbers), {"quantile": 0.8},
    ),
}  # fmt: skip
"""Numbers of the papers and of the libraries that the docstrings name; every one has an effect on these columns."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_numbers_of_the_sources(name: str) -> None:
    loss, numbers = DEFAULTS[name]
    found = loss()
    assert torch.equal(found, loss(**numbers))
    for key, number in numbers.items():
        other = number + 0.1 if number == 0.0 else 0.5 * number
        if (key, number) != ("weight_floor", 0.0):
            assert not torch.equal(found, loss(**{**numbers, key: other})), key


# ----------------------------------------------------------------------------------------- extreme log-ratios


def test_log_ratios_are_bounded_on_both_sides() -> None:
    now, then = column(-FAR, 0.0), column(0.0, -FAR)
    each = torch.tensor([0, 1])
    for found in (
        mismatch.token_log_ratio(now, then),
        mismatch.sequence_log_ratio(now, then, each),
        mismatch.geometric_log_ratio(now, then, each),
    ):
        assert found.tolist() == [-20.0, 20.0]


def test_diagnostics_bound_log_ratios_of_tokens_and_of_answers() -> None:
    found = mismatch.mismatch_diagnostics(column(-FAR, 0.0), column(0.0, -FAR), torch.tensor([0, 1]))
    bounded = torch.tensor([-20.0, 20.0], dtype=torch.float64)
    torch.testing.assert_close(found["mismatch/k3_nats"], torch.expm1(bounded) - bounded)
    torch.testing.assert_close(found["mismatch/chi2_token"], torch.expm1(2 * bounded))
    torch.testing.assert_close(found["mismatch/chi2_answer"], torch.expm1(2 * bounded))


def test_weighted_k3_bounds_its_ratio_below() -> None:
    found = kl.weighted_k3(column(-40.0), column(-39.0), logp_old=column(-10.0))
    torch.testing.assert_close(found, math.exp(-20.0) * column(math.e - 2.0), rtol=1e-5, atol=0.0)


def test_vespo_bounds_each_log_ratio_and_their_sum() -> None:
    """A token of -30 nats counts -20, one of +30 counts 20; the sum of two of -20 counts log 1e-8."""
    advantage, pair = column(1.0, 1.0), torch.tensor([0, 0])
    for now, then, log_w in (
        (column(-FAR, 0.0), column(0.0, -19.5), -0.5),
        (column(0.0, -19.5), column(-FAR, 0.0), 0.5),
        (column(-FAR, -FAR), column(0.0, 0.0), math.log(1e-8)),
    ):
        phi = sequence.vespo(now, then, advantage, pair).metrics["policy/phi"]
        expected = math.exp(2.0 * log_w + 3.0 * (1.0 - math.exp(log_w)))
        torch.testing.assert_close(phi, torch.full_like(phi, expected), rtol=1e-4, atol=0.0)


# ------------------------------------------------------------------------------------- bounds reached exactly


def test_a_weight_on_a_bound_is_kept() -> None:
    at_one = column(0.0)
    for floor, cap in ((1.0, 2.0), (0.5, 1.0)):
        assert mismatch.masked_weight(at_one, weight_floor=floor, weight_cap=cap).tolist() == [1.0]
        assert mismatch.ratio_in_range(at_one, ratio_floor=floor, ratio_cap=cap).tolist() == [1.0]


def test_a_divergence_on_a_bound_is_kept() -> None:
    proximal, then = column(-0.5), column(-1.0)
    bound = float(mismatch.symmetric_binary_kl(proximal, then)[0])
    assert mismatch.kpop(proximal, then, max_divergence_nats=bound).item() > 0
    found = rejection.divergence_mask(
        proximal, then, torch.tensor([0]), statistic=rejection.k1_divergence, min_nats=-0.5, max_nats=-0.5
    )
    assert found.tolist() == [1.0]


def test_geometric_rejection_bounds_the_trainer_over_the_engine() -> None:
    """A ratio of e^0.5 = 1.65: within [0.9, 2], and its inverse is not."""
    found = mismatch.geometric_rejection(column(-0.5), column(-1.0), torch.tensor([0]), ratio_floor=0.9, ratio_cap=2.0)
    assert found.tolist() == [1.0]


def test_a_mean_weight_of_the_smallest_size_divides_nothing() -> None:
    tiny = torch.full((1,), mismatch.SMALLEST_MEAN, dtype=torch.float64)
    torch.testing.assert_close(mismatch.normalised_weight(tiny), tiny)


def test_the_sequence_mask_keeps_what_is_on_the_bound_or_not_punished() -> None:
    def mask(advantage: float, bound: float, dtype: torch.dtype = torch.float32) -> Tensor:
        now, acted = torch.tensor([-1.0], dtype=dtype), torch.tensor([-0.5], dtype=dtype)
        return mismatch.off_policy_sequence_mask(
            now, acted, torch.tensor([advantage]), torch.tensor([0]), max_kl_nats=bound
        )

    assert [mask(-1.0, 0.5).item(), mask(-1.0, 0.49).item(), mask(0.0, 0.49).item()] == [1.0, 0.0, 1.0]
    assert mask(-1.0, 0.5, torch.float64).dtype == torch.float64 and mask(-1.0, 0.5).dtype == torch.float32


def test_the_trust_region_keeps_a_decision_on_its_edge() -> None:
    now, then, divergence = column(-0.5, -1.0), column(-1.0, -0.5), column(0.25, 0.25)
    kept = trust.trust_region_mask(now, then, column(1.0, -1.0), divergence, max_increase=0.25, max_decrease=0.25)
    assert kept.tolist() == [True, True]


def test_a_clipped_mask_at_its_edges_and_without_an_advantage() -> None:
    """Ratios 1/2, 2 and 4 are exact in binary."""
    log = np.log(np.array([0.5, 2.0, 4.0, 0.5, 4.0]))
    advantage = np.array([-1.0, 1.0, -1.0, 0.0, 0.0])
    exact = selection.clipped_mask(log, np.zeros(5), advantage, low=0.5, high=1.0, negative_cap=4.0)
    assert np.exp(log[:3]).tolist() == [0.5, 2.0, 4.0]
    assert exact.tolist() == [False] * 5
    assert not selection.clipped_mask(log[:1], np.zeros(1), advantage[:1], low=0.5).any()
    inside = selection.clipped_mask(log, np.zeros(5), advantage, low=0.4, high=0.9, negative_cap=3.0)
    assert inside.tolist() == [True, True, True, False, False]
    near = selection.clipped_mask(np.log([1.2, 0.8]), np.zeros(2), -np.ones(2), low=0.3, negative_cap=3.0)
    assert near.tolist() == [False, False]


def test_candidates_of_clip_cov_are_strictly_within_their_bounds() -> None:
    """Covariances by hand: A - mean = -1, 1 and log p - mean = -1, 1, so both are exactly 1."""
    now, advantage = np.array([-3.0, -1.0]), np.array([0.0, 2.0])
    free, uniform = np.zeros(2, np.bool_), np.array([0.3, 0.6])
    assert selection.covariances(now, advantage).tolist() == [1.0, 1.0]
    for low, high, expected in ((1.0, 5.0, [False, False]), (0.0, 1.0, [False, False]), (0.5, 2.0, [True, False])):
        found = selection.clip_cov_mask(
            now, advantage, free, uniform, fraction=0.0, min_covariance=low, max_covariance=high
        )
        assert found.tolist() == expected


def test_the_second_moment_stays_strictly_below_its_bound() -> None:
    found = selection.second_moment_mask(np.array([0.5, 0.0]), np.zeros(2), max_second_moment=0.125)
    assert found.tolist() == [False, True]


# ---------------------------------------------------------------------------------------------- ties and columns


def test_ties_go_to_the_earlier_decision_among_many() -> None:
    """Half of the decisions tie for the first place, and half for the second."""
    now = np.where(np.arange(MANY) % 2, -1.0, -3.0)
    advantage = np.where(np.arange(MANY) % 2, 2.0, 0.0)
    first = np.flatnonzero(selection.kl_cov_mask(now, np.where(np.arange(MANY) % 4 == 1, 2.0, 0.0), fraction=0.1))
    assert first.tolist() == list(range(1, MANY, 4))[: MANY // 10]
    uniform = np.where(np.arange(MANY) % 2, 0.5, 0.25)
    drawn = selection.clip_cov_mask(now, advantage, np.zeros(MANY, np.bool_), uniform, fraction=0.1, min_covariance=0.0)
    assert np.flatnonzero(drawn).tolist() == list(range(0, MANY, 2))[: MANY // 10]
    kept = selection.second_moment_mask(np.where(np.arange(MANY) % 2, 1.0, 0.0), np.zeros(MANY), max_second_moment=0.25)
    assert (
        np.flatnonzero(kept & (np.arange(MANY) % 2 == 1)).tolist()
        == list(range(1, MANY, 2))[: int(kept.sum()) - MANY // 2]
    )


def test_columns_of_16_bits_are_widened_before_they_are_compared() -> None:
    now = np.array([-3.0, -1.0, -0.3333], dtype=np.float16)
    assert selection.covariances(now, now).dtype == np.float64
    assert selection.covariances(np.float16([-3.0, 1.0]), np.array([1.0, 2.0])).dtype == np.float64
    wide = now.astype(np.float64)
    exact = (wide - wide.mean()) * (wide - wide.mean())
    np.testing.assert_array_equal(selection.covariances(now, now), exact)
    far = selection.clipped_mask(np.float16([-0.001]), np.float16([-3.0]), np.ones(1), high=19.055)
    assert far.tolist() == [True]  # e^2.99900 = 20.065, and 20.046 by a difference of 16 bits
    square = selection.second_moment_mask(np.float16([300.0]), np.float16([0.0]), max_second_moment=1e5)
    assert square.tolist() == [True]


def test_no_decisions_have_an_empty_mask() -> None:
    found = selection.high_entropy_mask(np.zeros(0))
    assert found.shape == (0,) and found.dtype == np.bool_
    assert selection.covariances(np.zeros(0), np.zeros(0)).shape == (0,)


def test_the_scale_of_q_values_is_summed_in_64_bits() -> None:
    worth = np.array([2.0**24, 1.0, 1.0, 1.0], dtype=np.float32)
    expected = 1.0 / ((2.0**24 + 3.0) / 4)
    assert batchwide.q_value_scale(worth, alpha=1.0)[0] == expected


# ------------------------------------------------------------------------------------------------ per sequence


def test_statistics_of_a_sequence_of_one_and_of_none() -> None:
    one, none = column(0.7), column()
    first, nowhere = torch.tensor([0]), torch.zeros(0, dtype=torch.int64)
    for statistic in (ratios.sequence_sum, rejection.sequence_max, lambda x, s: ratios.sequence_quantile(x, s, 0.9)):
        assert statistic(one, first).tolist() == pytest.approx([0.7])
        assert statistic(none, nowhere).shape == (0,)
    two = ratios.sequence_quantile(column(0.2, 0.4), torch.tensor([0, 1]), 0.9)
    assert two.tolist() == pytest.approx([0.2, 0.4])


def test_quantiles_are_data() -> None:
    found = ratios.sequence_quantile(column(1.0, 2.0, grad=True), FIRST, 0.5)
    assert not found.requires_grad
    assert not simko.forking_tokens(column(1.0, 2.0, grad=True), FIRST).requires_grad


def test_answers_without_a_token_have_no_log_probability() -> None:
    found = implicit.length_desensitised(column(-1.0, -2.0), FIRST, torch.tensor([1, 0]), alpha=0.5)
    assert found.tolist() == [-2.0, 0.0]


# --------------------------------------------------------------------------------------- corrections and gradients


def test_corrections_carry_no_gradient() -> None:
    factor, proximal = column(2.0, 2.0, grad=True), column(-0.2, -0.3, grad=True)
    now, praise = column(-0.5, -0.5, grad=True), ZERO + 1.0
    mismatch.with_mismatch_correction(policy.clipped_surrogate(now, ZERO, praise), factor).loss.sum().backward()
    assert factor.grad is None
    found = policy.decoupled_ppo(now, ZERO, proximal.detach(), praise).loss.sum()
    with_gradient = policy.decoupled_ppo(now, ZERO, proximal, praise).loss.sum()
    weight = proximal.detach().exp()
    (wanted,) = torch.autograd.grad(policy.clipped_surrogate(now, proximal, praise).loss @ weight, proximal)
    (slope,) = torch.autograd.grad(with_gradient, proximal)
    torch.testing.assert_close(slope, wanted)
    assert found.item() == with_gradient.item()


def test_decoupled_weights_have_a_floor() -> None:
    found = policy.decoupled_ppo(column(-3.0), column(0.0), column(-3.0), column(1.0), weight_floor=0.5)
    assert found.metrics["mismatch/weight"].tolist() == [0.5]


def test_caps_reach_the_loss_that_is_wrapped() -> None:
    now, then, advantage = column(math.log(8.0)), column(0.0), column(-1.0)
    found = covariance.clip_cov(now, then, advantage, column(0.0), high=9.0, negative_cap=3.0)
    assert found.loss.item() == pytest.approx(3.0)
    capped = trust.dppo_kl(now, then, column(1.0), max_increase_nats=1e9, ratio_cap=2.0)
    assert capped.metrics["policy/capped_fraction"].tolist() == [1.0]
    floor = sequence.sequence_cispo(column(-3.0), column(0.0), column(1.0), torch.tensor([0]), ratio_floor=0.5)
    assert floor.loss.item() == pytest.approx(0.5 * 3.0)


def test_decisions_that_are_left_out_count_as_clipped_whatever_their_advantage() -> None:
    now, out = ZERO, column(0.0, 1.0)
    advantage = column(1.0, 1.0)
    assert covariance.clip_cov(now, now, advantage, out).metrics["policy/clip_fraction"].tolist() == [0.0, 1.0]
    assert trust.m2po(now, now, advantage, 1.0 - out).metrics["policy/clip_fraction"].tolist() == [0.0, 1.0]
    for said, expected in ((1.0, [0.0, 1.0]), (0.0, [0.0, 0.0])):
        found = sequence.gmpo(now, now, ZERO + said, FIRST, keep=1.0 - out).metrics["policy/clip_fraction"]
        assert found.tolist() == expected


def test_the_gate_of_sapo_by_hand() -> None:
    """Ratio 1.5: sigmoid(t / 2) with t = 2 where A > 0 and 4 elsewhere, A = 0 included."""
    log = torch.full((3,), math.log(1.5))
    found = policy.soft_gate(log, column(1.0, -1.0, 0.0), positive_steepness=2.0, negative_steepness=4.0)
    gates = [1 / (1 + math.exp(-t / 2)) for t in (2.0, 4.0, 4.0)]
    assert found.metrics["policy/gate"].tolist() == pytest.approx([4 * g * (1 - g) for g in gates], rel=1e-5)


# --------------------------------------------------------------------------------------------- pairs and values


def test_simpo_hinge_tells_of_its_pairs() -> None:
    found = reference_free.simpo_hinge(column(-1.0), column(-3.0)).metrics
    assert {name: values.tolist() for name, values in found.items()} == {
        "preference/accuracy": [1.0], "preference/margin_nats": [2.0], "preference/chosen_nats": [-1.0],
        "preference/rejected_nats": [-3.0],
    }  # fmt: skip


def test_a_desirable_answer_is_right_above_the_threshold() -> None:
    found = unpaired.kto(column(1.0, 3.0), torch.tensor([True, False]), column(2.0, 2.0)).metrics
    assert found["preference/accuracy"].tolist() == [0.0, 0.0]


def test_targets_of_64_bits_leave_the_loss_of_32() -> None:
    guess, aim = column(0.5, 3.0), torch.tensor([0.0, 0.0], dtype=torch.float64)
    assert value.huber(guess, aim).loss.dtype == torch.float32
    assert value.clipped_value(guess, guess, aim, delta=1.0).loss.dtype == torch.float32
    label = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert reward_model.step_regression(guess, label).loss.dtype == torch.float32
    correction = torch.zeros(2, dtype=torch.float64)
    loss = sequence.vespo(ZERO, ZERO, ZERO + 1.0, FIRST, log_correction=correction).loss
    assert loss.dtype == torch.float32
