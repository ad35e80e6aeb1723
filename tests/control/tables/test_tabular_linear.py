"""The deadly triad on Baird's seven states: what diverges, and what does not, with numbers."""

import numpy as np
import pytest
from plain_episodes import plain_episodes

from hone.control.tables.learn import RateConfig, TabularLearner
from hone.control.tables.linear import (
    BAIRD_START,
    LinearRule,
    LinearStep,
    LinearUpdate,
    baird_features,
    gtd2,
    semi_gradient,
    semi_gradient_with_target,
    tdc,
)
from hone.control.tables.tables import StateValues
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError

FEATURES = baird_features()
VISITS = np.full(7, 1 / 7)
DISCOUNT = 0.99


def wandering(count: int, seed: int) -> Episodes:
    """Baird's world under the behaviour that goes to the seventh state once in seven."""
    draws = np.random.default_rng(seed)
    solid = draws.random(count) < 1 / 7
    state = np.concatenate([[0], np.where(solid, 6, draws.integers(0, 6, count))])
    return plain_episodes(
        np.array([0, count]),
        seen=state[:-1],
        chosen=solid.astype(np.int64),
        logp=np.log(np.where(solid, 1 / 7, 6 / 7)).astype(np.float32),
        group=np.zeros(1, np.int64),
        terminated=np.zeros(1, bool),
        final=state[-1:],
    )


def learned(step: LinearUpdate, *, rate: float, second: float = 0.0, copy: int = 0, count: int = 20_000) -> StateValues:
    values = StateValues(np.tile([0.0, 1.0], (7, 1)), features=FEATURES)
    values.x[:] = BAIRD_START
    learner = TabularLearner(
        values, LinearRule(step, second_rate=second, target_update_every=copy), RateConfig(rate=rate)
    )
    episodes = wandering(count, seed=0)
    discount = np.full(count, DISCOUNT, np.float32)
    learner.update(episodes, Credits(advantage=episodes.reward, discount=discount))
    return values


def projected_bellman_error(features: np.ndarray, weight: np.ndarray, backup: np.ndarray, visits: np.ndarray) -> float:
    """||Pi (T v - v)||: root of the mean, over `visits` `[S]`, of the squared Bellman error `[S]` of v = X w projected
    onto the features. `backup` `[S]` is T v. 0 at the fixed point of TD(0).
    """
    share = visits / visits.sum()
    root = np.sqrt(share)[:, None]
    shown, *_ = np.linalg.lstsq(root * features, root[:, 0] * (backup - features @ weight), rcond=None)
    return float(np.sqrt((share * (features @ shown) ** 2).sum()))


def error_of(values: StateValues) -> float:
    """The projected Bellman error, weighted by where the behaviour goes: every state alike."""
    backup = np.full(7, DISCOUNT * values.v[6])
    return projected_bellman_error(FEATURES, values.x, backup, VISITS)


def test_the_features_are_those_of_the_book() -> None:
    weight = np.array(BAIRD_START)
    assert (FEATURES @ weight).tolist() == [3.0] * 6 + [12.0]
    assert np.linalg.matrix_rank(FEATURES) == 7  # the true values, all 0, can be expressed


def test_the_semi_gradient_diverges() -> None:
    """Whatever its step size: at a tenth of it, it takes ten times as long."""
    fast = learned(semi_gradient, rate=0.01, count=3_000)
    slow = learned(semi_gradient, rate=0.001, count=30_000)
    assert np.abs(fast.x).max() > 1e3
    assert np.abs(slow.x).max() > 1e3


def test_a_run_that_diverges_says_so() -> None:
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match="a method that is sound off policy"):
        learned(semi_gradient, rate=0.5, count=20_000)


@pytest.mark.parametrize("step", [gtd2, tdc])
def test_the_gradient_of_the_projected_error_mends_it(step: LinearUpdate) -> None:
    begin = error_of(learned(step, rate=0.005, second=0.05, count=1))
    after = learned(step, rate=0.005, second=0.05)
    assert begin > 2.0
    assert error_of(after) < 0.05
    assert np.abs(after.x).max() < 10.0


def test_a_target_network_mends_it_too() -> None:
    """Each copy is a step of exact evaluation, a contraction by the discount, since the features can express it."""
    early = learned(semi_gradient_with_target, rate=0.02, copy=100, count=20_000)
    late = learned(semi_gradient_with_target, rate=0.02, copy=100, count=60_000)
    assert np.abs(early.v).max() < 13.0
    assert np.abs(late.v).max() < 0.25 * np.abs(early.v).max()


def test_each_rule_by_hand() -> None:
    row = LinearStep(
        features=np.array([1.0, 2.0]),
        next_features=np.array([3.0, -1.0]),
        reward=1.0,
        discount=0.5,
        ratio=2.0,
        step_size=0.1,
    )  # error = 1 + 0.5 * (w . ahead) - w . now, with w = (1, 1): 1 + 1 - 3 = -1; x - factor x' = (-0.5, 2.5)
    for step, second, weight_after, second_after in (
        (semi_gradient, [0.0, 0.0], [0.8, 0.6], [0.0, 0.0]),
        (semi_gradient_with_target, [2.0, 0.0], [1.2, 1.4], [2.0, 0.0]),  # error = 1 + 0.5 * 6 - 3 = 1
        (gtd2, [1.0, 0.0], [0.9, 1.5], [0.2, -1.6]),  # x.v = 1; v += 0.2 * 2 * (-1 - 1) * x
        (tdc, [1.0, 0.0], [0.5, 0.7], [0.2, -1.6]),
    ):
        weight, other = np.array([1.0, 1.0]), np.array(second)
        step(weight, other, row, 0.2)
        np.testing.assert_allclose(weight, weight_after, atol=1e-12)
        np.testing.assert_allclose(other, second_after, atol=1e-12)
