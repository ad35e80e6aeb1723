"""Graphs, partitions and options of finite processes, against hand-worked cases and slow versions."""

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.core.errors import DataError, ResourceError
from hone.envs.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_gymnasium, mdp_from_table
from hone.envs.finite.graph import (
    closed_class_states,
    component_labels,
    cyclic_states,
    on_cycles,
    reachable_states,
    strong_components,
    union_find_labels,
)
from hone.envs.finite.options import MarkovOption, mdp_over_options, option_model, primitive_option
from hone.envs.finite.partition import bisimulation, clusters, is_bisimulation, quotient_mdp
from hone.envs.finite.program import solve_linear_program
from hone.envs.finite.solve import evaluate_policy, policy_iteration


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_snippet_mdp_graph_has_cycle_sees_a_cycle_of_two() -> None:
    """A published `has_cycle` never recursed, and missed this one."""
    assert on_cycles(ints(0, 1), ints(1, 0), 2).all()
    assert on_cycles(ints(0, 1, 1), ints(1, 2, 1), 3).tolist() == [False, True, False]  # an edge to itself
    assert not on_cycles(ints(0, 0, 1), ints(1, 2, 2), 3).any()  # two ways to one place are no cycle


def test_snippet_union_find_joins_equal_ranks() -> None:
    """A published `union(0, 1)` did nothing when both ranks were equal."""
    assert union_find_labels(ints(0), ints(1), 3).tolist() == [0, 0, 1]
    assert union_find_labels(ints(0, 2, 0), ints(1, 3, 2), 5).tolist() == [0, 0, 0, 0, 1]


@given(
    count=st.integers(1, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20),
)
def test_union_find_and_components_against_matrix_powers(count: int, pairs: list[tuple[int, int]]) -> None:
    edges = np.array([pair for pair in pairs if max(pair) < count], dtype=np.int64).reshape(-1, 2)
    step = np.eye(count, dtype=bool)
    step[edges[:, 0], edges[:, 1]] = True
    ahead = np.linalg.matrix_power(step.astype(float), count) > 0
    both = np.linalg.matrix_power((step | step.T).astype(float), count) > 0
    label = component_labels(edges[:, 0], edges[:, 1], count)
    np.testing.assert_array_equal(label[:, None] == label, ahead & ahead.T)
    label = union_find_labels(edges[:, 0], edges[:, 1], count)
    np.testing.assert_array_equal(label[:, None] == label, both)


def test_a_long_path_needs_no_recursion() -> None:
    count = 200_000
    path = np.arange(count - 1)
    assert len(np.unique(component_labels(path, path + 1, count))) == count
    assert union_find_labels(path, path + 1, count).max() == 0
    assert on_cycles(np.append(path, count - 1), np.append(path + 1, 0), count).all()


def test_what_can_be_reached_left_and_come_back_to() -> None:
    mdp = grid_mdp(["S.G", "###", "..."], discount=0.9)
    assert reachable_states(mdp).tolist() == [True, True] + [False] * 7
    assert cyclic_states(mdp).tolist() == [True, True, False, False, False, False, True, True, True]
    assert closed_class_states(mdp)[[0, 6]].tolist() == [
        False,
        True,
    ]  # nobody leaves the lower row, and nothing ends there
    right = np.full(9, 2)
    assert reachable_states(mdp, right).tolist() == [True, True] + [False] * 7
    assert not cyclic_states(mdp, right)[:2].any()
    left = np.zeros(9, np.int64)
    assert closed_class_states(mdp, left)[:2].tolist() == [True, False]
    assert len(np.unique(strong_components(mdp)[:2])) == 1


def test_taxi_hides_states_that_no_episode_comes_to() -> None:
    assert reachable_states(mdp_from_gymnasium("Taxi-v4", discount=0.9)).sum() == 400


def test_states_that_pay_and_lead_alike_become_one() -> None:
    """Four rooms in a row that differ in their number only: action 0 stays for 1, action 1 ends for 2."""
    table = {s: {0: [(0.5, (s + 1) % 4, 1.0, False), (0.5, s, 1.0, False)], 1: [(1.0, s, 2.0, True)]} for s in range(4)}
    mdp = mdp_from_table(table, start=np.full(4, 0.25), discount=0.9)
    assert bisimulation(mdp).tolist() == [0, 0, 0, 0]
    small = quotient_mdp(mdp, bisimulation(mdp))
    assert small.states == 1
    assert policy_iteration(small).value == pytest.approx(policy_iteration(mdp).value[:1])
    table[2][1] = [(1.0, 2, 2.5, True)]  # one differs, and so do those that lead to it, by how far they are
    mdp = mdp_from_table(table, start=np.full(4, 0.25), discount=0.9)
    assert bisimulation(mdp).tolist() == [0, 1, 2, 3]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), copies=st.integers(2, 4))
def test_copies_of_a_process_fold_back_into_it(seed: int, copies: int) -> None:
    """Each state has copies, and each outcome leads to any of them: the coarsest partition finds the original."""
    base = garnet_mdp(states=4, actions=2, branching=2, seed=seed, discount=0.9, ending=0.1)
    rng = np.random.default_rng(seed)
    table = {state: {0: [], 1: []} for state in range(4 * copies)}
    for state, action in product(table, range(2)):
        pair = (state % 4) * 2 + action
        for k in range(base.offsets[pair], base.offsets[pair + 1]):
            shares = rng.dirichlet(np.ones(copies)) * base.probability[k]
            told = (float(base.reward[k]), bool(base.terminates[k]))
            table[state][action] += [
                (share, int(base.next_state[k]) + 4 * copy, *told) for copy, share in enumerate(shares)
            ]
    many = mdp_from_table(table, start=np.full(4 * copies, 0.25 / copies), discount=0.9)
    blocks = bisimulation(many)
    assert blocks.tolist() == [0, 1, 2, 3] * copies
    assert is_bisimulation(many, blocks)
    np.testing.assert_allclose(
        policy_iteration(quotient_mdp(many, blocks)).value, policy_iteration(base).value, atol=1e-9
    )
    pairs = np.arange(4)
    assert is_bisimulation(many, union_find_labels(np.tile(pairs, copies - 1), np.arange(4, 4 * copies), 4 * copies))
    assert not is_bisimulation(many, np.zeros(4 * copies, np.int64))
    with pytest.raises(DataError, match="pay or lead differently"):
        quotient_mdp(many, np.zeros(4 * copies, np.int64))


def test_snippet_pair_sum_equal_numbers_are_found_with_a_tolerance() -> None:
    """0.1 + 0.2 and 0.3 are one number here; in a set of floats they are two."""
    assert clusters(np.array([0.1 + 0.2, 1.0, 0.3, 1.0 + 1e-6]), 1e-9).tolist() == [0, 1, 0, 2]
    assert clusters(np.array([np.inf, 0.0, np.inf]), 1e-9).tolist() == [1, 0, 1]


def test_one_step_options_are_the_process_itself() -> None:
    mdp = garnet_mdp(states=5, actions=3, branching=2, seed=2, discount=0.9, ending=0.1)
    over = mdp_over_options(mdp, [primitive_option(mdp, action) for action in range(3)])
    np.testing.assert_allclose(policy_iteration(over).value, policy_iteration(mdp).value, atol=1e-9)
    np.testing.assert_allclose(policy_iteration(over).q, policy_iteration(mdp).q, atol=1e-9)


def test_an_option_by_hand() -> None:
    """Run right along a chain of 5 and stop only at state 4: from state 1, three steps at discount 0.5."""
    mdp = chain_mdp(5, discount=0.5)
    stops = np.zeros(5)
    stops[4] = 1.0
    run = option_model(mdp, MarkovOption(policy=np.ones(5, np.int64), termination=stops))
    assert run.next_state[1].tolist() == pytest.approx([0, 0, 0, 0, 0.125])
    assert run.reward.tolist() == pytest.approx([0, 0, 0, 0, 1.0])  # in state 4 the first step ends the episode
    np.testing.assert_allclose(run.next_state[4], 0.0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_choosing_options_equals_simulated_call_and_return(seed: int) -> None:
    """The value over options, against the chain of (state, running option) solved as one larger process."""
    mdp = garnet_mdp(states=4, actions=2, branching=2, seed=seed, discount=0.8, ending=0.05)
    rng = np.random.default_rng(seed)
    options = [MarkovOption(policy=rng.integers(0, 2, 4), termination=rng.uniform(0.2, 1, 4)) for _ in range(2)]
    above = rng.integers(0, 2, 4)
    value = evaluate_policy(mdp_over_options(mdp, options), above)
    table = {}  # state 4 * o + s: option o is running in s
    for running, option in enumerate(options):
        for state in range(4):
            pair = state * 2 + int(option.policy[state])
            outcomes = []
            for k in range(mdp.offsets[pair], mdp.offsets[pair + 1]):
                after, p, r = int(mdp.next_state[k]), mdp.probability[k], mdp.reward[k]
                stop = option.termination[after]
                outcomes.append((p * (1 - stop), 4 * running + after, r, bool(mdp.terminates[k])))
                outcomes.append((p * stop, 4 * int(above[after]) + after, r, bool(mdp.terminates[k])))
            table[4 * running + state] = {0: outcomes}
    flat = evaluate_policy(mdp_from_table(table, start=np.eye(8)[0], discount=0.8), np.zeros(8, np.int64))
    np.testing.assert_allclose(value, flat[4 * above + np.arange(4)], atol=1e-10)


def test_an_option_that_never_stops_is_refused_without_a_discount() -> None:
    mdp = grid_mdp(["S.G"], discount=1.0)
    with pytest.raises(DataError, match="from state 0 the option never stops"):
        option_model(mdp, MarkovOption(policy=np.zeros(3, np.int64), termination=np.zeros(3)))


def test_without_scipy_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    mdp = chain_mdp(1600, discount=0.9)
    for work in (strong_components, solve_linear_program, lambda mdp: evaluate_policy(mdp, np.zeros(1600, np.int64))):
        with pytest.raises(ResourceError, match=r"pip install 'hone-rl\[control\]'"):
            work(mdp)
    assert reachable_states(mdp).all()
