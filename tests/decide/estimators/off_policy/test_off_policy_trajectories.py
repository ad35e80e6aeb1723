"""Estimators of trajectories: by hand, plain loops, unbiasedness by enumeration of every trajectory."""

import itertools
import math

import numpy as np
import pytest

from hone.decide.estimators.trajectories import (
    LoggedTrajectories,
    doubly_robust_trajectories,
    per_decision,
    trajectory_wise,
)

BY_HAND = LoggedTrajectories(
    offsets=np.array([0, 2, 3]), logp=np.log([0.5, 0.5, 0.25]), target_logp=np.log([1.0, 0.25, 0.5]),
    reward=np.array([1.0, 2.0, 3.0]), discount=0.5,
)  # fmt: skip
"""Ratios 2, 1 of the first episode and 2 of the second; discounted rewards 1, 1 and 3."""


def test_values_by_hand() -> None:
    assert trajectory_wise(BY_HAND).value == pytest.approx((1 * 2 + 2 * 3) / 2)
    assert per_decision(BY_HAND).value == pytest.approx((2 * 1 + 1 * 1 + 2 * 3) / 2)
    # step 0: (2 + 6) / (2 + 2); step 1: 1 * 1 / (1 + 2), as the ended episode keeps its 2
    assert per_decision(BY_HAND, normalised=True).value == pytest.approx(8 / 4 + 1 / 3)
    assert trajectory_wise(BY_HAND, normalised=True).value == pytest.approx((2 + 6) / 3)
    q, value = np.array([1.0, 1.0, 2.0]), np.array([1.5, 0.5, 1.0])
    # errors: 1 + 0.25 - 1, 2 - 1, 3 - 2
    robust = doubly_robust_trajectories(BY_HAND, q=q, value=value, final_value=np.zeros(2))
    assert robust.value == pytest.approx((1.5 + 2 * 0.25 + 0.5 * 1 * 1 + 1.0 + 2 * 1) / 2)


def slow_doubly_robust(logged: LoggedTrajectories, q: np.ndarray, value: np.ndarray, final: np.ndarray) -> float:
    """Jiang and Li's recursion from the last step: V = v + ratio (r + g V' - q)."""
    total = 0.0
    for e in range(logged.episodes):
        after = float(final[e])
        for i in reversed(range(int(logged.offsets[e]), int(logged.offsets[e + 1]))):
            ratio = math.exp(float(logged.target_logp[i] - logged.logp[i]))
            after = float(value[i]) + ratio * (float(logged.reward[i]) + logged.discount * after - float(q[i]))
        total += after
    return total / logged.episodes


@pytest.mark.parametrize("seed", range(5))
def test_doubly_robust_equals_its_recursion(seed: int) -> None:
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(random.integers(1, 6, 4))])
    n = int(offsets[-1])
    logged = LoggedTrajectories(
        offsets=offsets, logp=np.log(random.uniform(0.2, 1, n)), target_logp=np.log(random.uniform(0.2, 1, n)),
        reward=random.normal(size=n), discount=0.9,
    )  # fmt: skip
    q, value, final = random.normal(size=n), random.normal(size=n), random.normal(size=4)
    made = doubly_robust_trajectories(logged, q=q, value=value, final_value=final)
    assert made.value == pytest.approx(slow_doubly_robust(logged, q, value, final))
    nothing = doubly_robust_trajectories(logged, q=0 * q, value=0 * value, final_value=0 * final)
    assert nothing.value == pytest.approx(per_decision(logged).value)
    weighted = doubly_robust_trajectories(logged, q=0 * q, value=0 * value, final_value=0 * final, normalised=True)
    assert weighted.value == pytest.approx(per_decision(logged, normalised=True).value)
    assert made.influence.mean() == pytest.approx(made.value)


def test_estimators_are_unbiased_over_every_trajectory() -> None:
    """Two steps, two states, two actions, chance in the step: all 32 trajectories with their probabilities."""
    behaviour, target = np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([[0.1, 0.9], [0.8, 0.2]])
    up, reward, discount = np.array([[0.2, 0.7], [0.5, 0.9]]), np.array([[1.0, -0.5], [0.3, 2.0]]), 0.8
    q_model = np.array([[[0.3, 1.0], [2.0, -1.0]], [[0.7, 0.1], [0.4, 0.4]]])  # of step, state and action: any numbers
    v_model = (target * q_model).sum(axis=2)
    truth, means = 0.0, np.zeros(3)
    for s0, a0, s1, a1 in itertools.product((0, 1), repeat=4):
        move = up[s0, a0] if s1 else 1 - up[s0, a0]
        chance, wanted = (0.5 * p[s0, a0] * move * p[s1, a1] for p in (behaviour, target))
        truth += wanted * (reward[s0, a0] + discount * reward[s1, a1])
        logged = LoggedTrajectories(
            offsets=np.array([0, 2]), logp=np.log([behaviour[s0, a0], behaviour[s1, a1]]),
            target_logp=np.log([target[s0, a0], target[s1, a1]]),
            reward=np.array([reward[s0, a0], reward[s1, a1]]), discount=discount,
        )  # fmt: skip
        q, value = np.array([q_model[0, s0, a0], q_model[1, s1, a1]]), np.array([v_model[0, s0], v_model[1, s1]])
        robust = doubly_robust_trajectories(logged, q=q, value=value, final_value=np.zeros(1))
        means += chance * np.array([trajectory_wise(logged).value, per_decision(logged).value, robust.value])
    assert means == pytest.approx(np.full(3, truth), abs=1e-12)
