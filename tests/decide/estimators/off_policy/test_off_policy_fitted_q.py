"""Fitted Q evaluation: by hand, exact dynamic programming, and the linear form against the table."""

from dataclasses import replace

import numpy as np
import pytest

from hone.control.finite.build import garnet_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy
from hone.core.errors import DivergedError
from hone.decide.estimators.trajectories import TabularTransitions, linear_fitted_q, tabular_fitted_q

DISCOUNT = 0.9


def every_outcome(mdp: FiniteMdp, copies: int = 10_000) -> TabularTransitions:
    """A log in which each outcome appears as often as its probability says, up to rounding."""
    times = np.round(copies * mdp.probability).astype(np.int64)
    outcome = np.repeat(np.arange(len(times)), times)
    state, action = np.divmod(mdp.pair_of_outcome[outcome], mdp.actions)
    return TabularTransitions(
        state=state, action=action, reward=mdp.reward[outcome], next_state=mdp.next_state[outcome],
        terminated=mdp.terminates[outcome],
    )  # fmt: skip


def small_world(seed: int) -> tuple[FiniteMdp, np.ndarray, TabularTransitions]:
    mdp = garnet_mdp(states=6, actions=3, branching=2, seed=seed, discount=DISCOUNT, ending=0.1)
    mdp = replace(mdp, probability=_rounded(mdp))
    return mdp, np.random.default_rng(seed).dirichlet(np.ones(3), 6), every_outcome(mdp)


def _rounded(mdp: FiniteMdp) -> np.ndarray:
    times = np.round(10_000 * mdp.probability)
    return times / np.bincount(mdp.pair_of_outcome, weights=times)[mdp.pair_of_outcome]


def test_a_table_by_hand() -> None:
    """One state: action 0 pays 1 and goes on, action 1 pays 3 and ends; the target takes each half of the time.

    q0 = 1 + 0.9 (q0 + 3) / 2, so q0 = 2.35 / 0.55.
    """
    log = TabularTransitions(
        state=np.zeros(2, np.int64), action=np.array([0, 1]), reward=np.array([1.0, 3.0]),
        next_state=np.zeros(2, np.int64), terminated=np.array([False, True]),
    )  # fmt: skip
    found = tabular_fitted_q(log, np.array([[0.5, 0.5]]), discount=DISCOUNT)
    assert found.q[0] == pytest.approx([2.35 / 0.55, 3.0])
    assert found.logged.all()
    assert found.reached_unlogged == 0.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_table_equals_dynamic_programming(seed: int) -> None:
    mdp, target, log = small_world(seed)
    found = tabular_fitted_q(log, target, discount=DISCOUNT)
    assert (target * found.q).sum(axis=1) == pytest.approx(evaluate_policy(mdp, target), abs=1e-9)


def test_the_linear_form_with_one_feature_a_pair_equals_the_table() -> None:
    _, target, log = small_world(3)
    pairs = np.eye(18)
    features = pairs[log.state * 3 + log.action]
    expected = (target[:, :, None] * pairs.reshape(6, 3, 18)).sum(axis=1)
    following = expected[log.next_state] * ~log.terminated[:, None]
    weights = linear_fitted_q(features, following, log.reward, discount=DISCOUNT)
    assert weights.reshape(6, 3) == pytest.approx(tabular_fitted_q(log, target, discount=DISCOUNT).q, abs=1e-8)


def test_pairs_that_were_never_logged_are_told() -> None:
    _, target, log = small_world(4)
    kept = log.action != 2
    fewer = TabularTransitions(
        state=log.state[kept], action=log.action[kept], reward=log.reward[kept], next_state=log.next_state[kept],
        terminated=log.terminated[kept],
    )  # fmt: skip
    found = tabular_fitted_q(fewer, target, discount=DISCOUNT)
    assert not found.logged[:, 2].any()
    assert found.reached_unlogged == pytest.approx(target[fewer.state, 2].mean())


def test_an_iteration_that_grows_is_refused() -> None:
    """Two states with features 1 and 2 (Tsitsiklis and Van Roy, 1996): one fit multiplies by 0.99 * 2."""
    features, following = np.array([[1.0]]), np.array([[2.0]])
    with pytest.raises(DivergedError, match=r"multiplies errors by 1\.98"):
        linear_fitted_q(features, following, np.zeros(1), discount=0.99)
    endless = TabularTransitions(
        state=np.zeros(1, np.int64), action=np.zeros(1, np.int64), reward=np.ones(1),
        next_state=np.zeros(1, np.int64), terminated=np.zeros(1, np.bool_),
    )  # fmt: skip
    with pytest.raises(DivergedError, match="discount < 1"):
        tabular_fitted_q(endless, np.ones((1, 1)), discount=1.0, tolerance=1e-6)
