"""Dynamic programming against hand-worked values, brute force, linear programmes and simulation."""

from itertools import product

import finite_ceilings as ceilings
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from linear_program import solve_linear_program

from hone.control.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_gymnasium, mdp_from_table
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import (
    backward_induction,
    bellman_residual,
    evaluate_policy,
    finite_horizon_value,
    occupancy,
    policy_iteration,
    start_value,
    value_iteration,
)
from hone.core.errors import DataError


def uniform(mdp: FiniteMdp) -> np.ndarray:
    return mdp.available / np.maximum(mdp.available.sum(axis=1, keepdims=True), 1)


def slow_value(mdp: FiniteMdp, policy: np.ndarray, steps: int) -> np.ndarray:
    """Apply the policy's operator, outcome by outcome."""
    value = np.zeros(mdp.states)
    for _ in range(steps):
        after = np.zeros(mdp.states)
        for pair in range(mdp.states * mdp.actions):
            state, action = divmod(pair, mdp.actions)
            for k in range(mdp.offsets[pair], mdp.offsets[pair + 1]):
                beyond = 0.0 if mdp.terminates[k] else mdp.discount * value[mdp.next_state[k]]
                after[state] += policy[state, action] * mdp.probability[k] * (mdp.reward[k] + beyond)
        value = after
    return value


def test_the_random_walk_of_the_textbook() -> None:
    mdp = chain_mdp(5, discount=1.0)
    np.testing.assert_allclose(evaluate_policy(mdp, uniform(mdp)), np.arange(1, 6) / 6, atol=1e-12)


def test_two_states_by_hand() -> None:
    """Stay for 1 for ever, or leave for 5 and end: at discount 0.5 staying is worth 2 and leaving 5."""
    mdp = mdp_from_table({0: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 0, 5.0, True)]}}, start=np.ones(1), discount=0.5)
    assert evaluate_policy(mdp, np.array([0])) == pytest.approx([2.0])
    assert policy_iteration(mdp).value == pytest.approx([5.0])
    patient = mdp.with_discount(0.9)  # staying is worth 10
    assert policy_iteration(patient).policy.tolist() == [0]
    assert policy_iteration(patient).q == pytest.approx(np.array([[10.0, 5.0]]))


@examples(25)
@given(seed=st.integers(0, 10_000), discount=st.sampled_from([0.3, 0.9]), ending=st.sampled_from([0.0, 0.2]))
def test_brute_force_over_all_policies_agrees(seed: int, discount: float, ending: float) -> None:
    mdp = garnet_mdp(states=4, actions=2, branching=2, seed=seed, discount=discount, ending=ending)
    every = [evaluate_policy(mdp, np.array(policy)) for policy in product(range(2), repeat=4)]
    best = policy_iteration(mdp)
    np.testing.assert_allclose(best.value, np.max(every, axis=0), atol=1e-10)
    np.testing.assert_allclose(evaluate_policy(mdp, best.policy), best.value, atol=1e-10)
    assert np.abs(bellman_residual(mdp, best.value)).max() < 1e-10
    swept = value_iteration(mdp, tolerance=1e-7)
    rounding = 1e-13 * np.abs(best.value).max()
    assert np.abs(swept.value - best.value).max() <= swept.error_bound + rounding
    assert swept.error_bound <= 1e-7


@examples(15)
@given(seed=st.integers(0, 10_000))
def test_the_linear_programme_agrees_and_its_dual_is_the_visits(seed: int) -> None:
    mdp = garnet_mdp(states=6, actions=3, branching=3, seed=seed, discount=0.9, ending=0.05)
    best, program = policy_iteration(mdp), solve_linear_program(mdp)
    np.testing.assert_allclose(program.value, best.value, atol=1e-6)
    np.testing.assert_allclose(program.occupancy, occupancy(mdp, best.policy), atol=1e-6)  # it starts anywhere


@examples(15)
@given(seed=st.integers(0, 10_000))
def test_evaluation_and_visits_against_slow_sums(seed: int) -> None:
    mdp = garnet_mdp(states=5, actions=3, branching=2, seed=seed, discount=0.8, ending=0.1)
    policy = np.random.default_rng(seed).dirichlet(np.ones(3), 5)
    value = evaluate_policy(mdp, policy)
    np.testing.assert_allclose(value, slow_value(mdp, policy, 200), atol=1e-9)
    visits = occupancy(mdp, policy)
    assert (visits * mdp.expected_reward).sum() == pytest.approx(start_value(mdp, value))
    continuing = garnet_mdp(states=5, actions=3, branching=2, seed=seed, discount=0.8)
    assert occupancy(continuing, policy).sum() == pytest.approx(5.0)  # 1 / (1 - 0.8)
    np.testing.assert_allclose(finite_horizon_value(mdp, policy, 7), slow_value(mdp, policy, 7), atol=1e-12)


def test_dense_arrays_are_the_same_table() -> None:
    mdp = garnet_mdp(states=5, actions=3, branching=2, seed=1, discount=0.8, ending=0.1)
    chances, paid = mdp.dense()
    np.testing.assert_allclose(chances.sum(axis=2), 0.9)
    value = np.arange(5.0)
    np.testing.assert_allclose(mdp.backup(value), paid + 0.8 * chances @ value, atol=1e-12)


def test_large_processes_are_solved_sparsely() -> None:
    """Moving along 3000 states for 1 at the end: worth discount^(steps - 1)."""
    mdp = chain_mdp(3000, discount=0.999)
    expected = 0.999 ** np.arange(2999, -1, -1)
    np.testing.assert_allclose(evaluate_policy(mdp, np.ones(3000, np.int64)), expected, rtol=1e-9)


def test_a_horizon_looks_at_the_clock() -> None:
    """Far from the prize with little time left, the small prize is the best."""
    mdp = grid_mdp(["gS..G"], rewards={"g": 0.1, "G": 1.0}, discount=1.0)
    assert backward_induction(mdp, 3).value[1] == 1.0
    assert backward_induction(mdp, 2).value[1] == pytest.approx(0.1)
    assert backward_induction(mdp, 2).policy[0, 1] == 0
    assert finite_horizon_value(mdp, policy_iteration(mdp).policy, 2)[1] == 0.0


# name -> best in the limit, from an independent program over the same tables
KNOWN = {
    "FrozenLake-v1": 0.7442,
    "FrozenLake8x8-v1": 0.9132,
    "Taxi-v4": 7.93,
    "CliffWalking-v1": -13.0,
    "CliffWalkingSlippery-v1": -64.709,
    "FrozenLake-v1, not slippery": 1.0,
    "FrozenLake8x8-v1, not slippery": 1.0,
}


@pytest.mark.parametrize("name", list(ceilings.WORLDS))
def test_ceilings(name: str) -> None:
    mdp, best, clocked, kept, _ = ceilings.ceilings(name)
    assert clocked == pytest.approx(KNOWN[name], abs=5e-5 * max(1, abs(KNOWN[name])))
    assert kept <= clocked + 1e-9
    assert clocked <= best + 1e-6 or (mdp.reward < 0).any()  # a limit also cuts losses
    discounted = mdp.with_discount(0.95)
    swept, exact = value_iteration(discounted, tolerance=1e-9), policy_iteration(discounted)
    np.testing.assert_allclose(swept.value, exact.value, atol=2e-9)
    np.testing.assert_allclose(solve_linear_program(discounted).value, exact.value, atol=1e-6)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CliffWalkingSlippery-v1"])
def test_ceilings_in_the_real_environment(name: str) -> None:
    """The policy, played in Gymnasium itself, is paid what the table says."""
    import gymnasium

    mdp, _, clocked, _, _ = ceilings.ceilings(name)
    horizon = mdp.step_limit or ceilings.HORIZON
    policy = backward_induction(mdp, horizon).policy
    made, options = ceilings.WORLDS[name]
    env = gymnasium.make(made, **options)
    paid = []
    for episode in range(300):
        seen, _ = env.reset(seed=episode)
        total, over, t = 0.0, False, 0
        while not over and t < horizon:
            seen, reward, terminated, truncated, _ = env.step(int(policy[t, seen]))
            total, over, t = total + float(reward), terminated or truncated, t + 1
        paid.append(total)
    error = np.std(paid) / np.sqrt(len(paid))
    assert abs(np.mean(paid) - clocked) < 4 * error + 1e-9


def test_the_page_says_what_is_computed() -> None:
    assert ceilings.table() in ceilings.PAGE.read_text(encoding="utf-8"), (
        "run python tests/control/finite/finite_ceilings.py"
    )


def test_totals_that_are_not_defined_are_refused() -> None:
    mdp = grid_mdp(["S.G"], step=-1.0, discount=1.0)
    with pytest.raises(DataError, match="from state 0 the policy never terminates but receives"):
        evaluate_policy(mdp, np.zeros(3, np.int64))
    with pytest.raises(DataError, match="no stopping bound"):
        value_iteration(mdp)
    assert policy_iteration(mdp).value.tolist() == [-1.0, 0.0, 0.0]  # the prize of 1 is paid with the last step
    idle = grid_mdp(["S.G"], discount=1.0)
    assert evaluate_policy(idle, np.zeros(3, np.int64)).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(DataError, match="and never terminate"):
        occupancy(idle, np.zeros(3, np.int64))


def test_discount_one_prefers_an_end_to_idling() -> None:
    """Positive rewards: waiting for ever is worth 0, and the tie between now and later must not become never."""
    mdp = mdp_from_gymnasium("FrozenLake-v1", discount=1.0, options={"is_slippery": False})
    best = policy_iteration(mdp)
    assert evaluate_policy(mdp, best.policy)[0] == 1.0
    np.testing.assert_allclose(solve_linear_program(mdp).value, best.value, atol=1e-8)
