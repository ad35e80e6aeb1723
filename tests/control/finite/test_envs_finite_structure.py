"""Options in finite processes, against hand-worked cases and slow versions."""

import sys

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_table
from hone.control.finite.options import MarkovOption, mdp_over_options, option_model, primitive_option
from hone.control.finite.solve import evaluate_policy, policy_iteration
from hone.core.errors import DataError, ResourceError


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


@examples(10)
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
    with pytest.raises(ResourceError, match=r"pip install 'hone-rl\[control\]'"):
        evaluate_policy(mdp, np.zeros(1600, np.int64))
