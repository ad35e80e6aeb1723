"""Tables from Gymnasium, maps, logs: what they mean, and what is refused."""

import numpy as np
import pytest

from hone.control.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_gymnasium, mdp_from_log, mdp_from_table
from hone.control.finite.model import MdpOutcomes, make_mdp, policy_probabilities
from hone.control.finite.solve import evaluate_policy, policy_iteration
from hone.control.finite.world import FiniteWorld
from hone.core.errors import ConfigError, DataError, UserCodeError


class Uniform:
    """Chooses by its noise alone."""

    version = 3

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def noise(self, draws, shape):
        return draws.random(shape)

    def decide(self, seen, noise):
        chosen = (noise * self.actions).astype(np.int64)
        return chosen, np.full(len(seen), -np.log(self.actions), np.float32)


def test_gymnasium_tables_are_taken_over_outcome_by_outcome() -> None:
    import gymnasium

    inside = gymnasium.make("FrozenLake-v1").unwrapped
    mdp = mdp_from_gymnasium("FrozenLake-v1", discount=0.9)
    assert (mdp.states, mdp.actions, mdp.step_limit) == (16, 4, 100)
    for state, actions in inside.P.items():
        for action, outcomes in actions.items():
            pair = state * 4 + action
            rows = slice(mdp.offsets[pair], mdp.offsets[pair + 1])
            mine = zip(mdp.probability[rows], mdp.next_state[rows], mdp.reward[rows], mdp.terminates[rows], strict=True)
            assert sorted(mine) == sorted(outcome for outcome in outcomes if outcome[0] > 0)


def test_an_environment_without_a_table_is_refused() -> None:
    with pytest.raises(DataError, match="CartPole-v1 has no table"):
        mdp_from_gymnasium("CartPole-v1", discount=0.9)


def test_names_and_options_that_gymnasium_refuses_are_the_users_faults() -> None:
    with pytest.raises(ConfigError, match=r"finite.world.id = 'Taxi-v33': no such .* did you mean Taxi-v4"):
        mdp_from_gymnasium("Taxi-v33", discount=0.9)
    with pytest.raises(UserCodeError, match="Taxi-v4: the environment cannot be made: TypeError"):
        mdp_from_gymnasium("Taxi-v4", discount=0.9, options={"colour": 1})


def test_all_faults_of_a_map_are_told() -> None:
    with pytest.raises(DataError) as caught:
        grid_mdp(["..x", "..y"], discount=0.9)
    assert caught.value.messages == (
        "the map has the marks 'xy', which are neither #, S, . nor in `rewards`",
        "the map has no S, the start of an episode",
    )


def test_a_grid_by_hand() -> None:
    mdp = grid_mdp(["S#G", "..."], discount=1.0, step=-1.0, rewards={"G": 10.0})
    assert policy_iteration(mdp).value.tolist() == [6.0, 0.0, 0.0, 7.0, 8.0, 9.0]
    assert mdp.terminal.tolist() == [False, True, True, False, False, False]
    slippery = grid_mdp(["S#G", "..."], discount=1.0, slip=0.2)
    right = slippery.dense()[0][3, 2]  # at the lower left, going right: on, or up, or against the lower edge
    np.testing.assert_allclose(right, [0.1, 0, 0, 0.1, 0.8, 0])


def test_every_fault_of_a_table_at_once() -> None:
    with pytest.raises(DataError) as caught:
        mdp_from_table(
            {0: {0: [(0.5, 1, 1.0, False)]}, 1: {0: [(1.0, 0, np.nan, False)]}},
            start=np.array([0.5, 0.4]),
            discount=1.5,
        )
    text = str(caught.value)
    assert "discount is 1.5" in text
    assert "start must be 2 probabilities that add up to 1" in text
    assert "state 0, action 0: probabilities add up to 0.5" in text
    assert "outcome 1: the reward is not finite" in text


def test_outcomes_that_lead_nowhere_are_refused() -> None:
    def one(after: int, probability: float, *, state: int = 0) -> MdpOutcomes:
        return MdpOutcomes(
            state=np.array([state]), action=np.array([0]), next_state=np.array([after]),
            probability=np.array([probability]), reward=np.zeros(1), terminates=np.zeros(1, bool),
        )  # fmt: skip

    start = np.array([1.0, 0.0])
    with pytest.raises(DataError, match="leads to state 1, which has no actions"):
        make_mdp(one(1, 1.0), states=2, actions=1, start=start, discount=0.9)
    with pytest.raises(DataError, match=r"after is 2, expected 0 \.\. 1"):
        make_mdp(one(2, 1.0), states=2, actions=1, start=start, discount=0.9)
    with pytest.raises(DataError, match="probability is -1"):
        make_mdp(one(0, -1.0), states=2, actions=1, start=start, discount=0.9)
    with pytest.raises(DataError, match="state 0 is a start and has no action"):
        make_mdp(one(1, 1.0, state=1), states=2, actions=1, start=start, discount=0.9)


def test_policies_that_cannot_be_followed_are_refused() -> None:
    mdp = chain_mdp(3, discount=0.9)
    with pytest.raises(DataError, match=r"probabilities in state 1 are \[0.7, 0.7\]"):
        policy_probabilities(mdp, np.array([[0.5, 0.5], [0.7, 0.7], [1.0, 0.0]]))
    only = mdp_from_table({0: {1: [(1.0, 0, 0.0, True)]}}, start=np.ones(1), discount=0.9)
    with pytest.raises(DataError, match="takes action 0 in state 0, which is unavailable"):
        policy_probabilities(only, np.array([0]))


def test_a_log_gives_back_the_table_it_came_from() -> None:
    truth = garnet_mdp(states=5, actions=2, branching=2, seed=4, discount=0.9, ending=0.1)
    log = FiniteWorld(mdp=truth, steps=4000, copies=10, seed=0).rollout(Uniform(2))
    found = mdp_from_log(log, states=5, actions=2, discount=0.9)
    (chances, paid), (expected, worth) = found.dense(), truth.dense()
    np.testing.assert_allclose(chances, expected, atol=0.035)  # 4000 visits a pair: 4 standard errors
    np.testing.assert_allclose(paid, worth, atol=1e-6)
    policy = policy_iteration(truth).policy
    np.testing.assert_allclose(evaluate_policy(found, policy), evaluate_policy(truth, policy), atol=0.3)


def test_counts_by_hand_and_what_was_never_tried() -> None:
    mdp = chain_mdp(3, discount=0.9)
    world = FiniteWorld(mdp=mdp, steps=1, copies=1, seed=0)

    class Right(Uniform):
        def decide(self, seen, noise):
            return np.ones(len(seen), np.int64), np.zeros(len(seen), np.float32)

    log = world.rollout(Right(2))  # one step: 1 -> 2
    found = mdp_from_log(log, states=3, actions=2, discount=0.9)
    assert found.available.tolist() == [[False, False], [False, True], [False, False]]
    assert found.terminates.tolist() == [True]  # nobody knows what follows in state 2
    assert evaluate_policy(found, np.array([0, 1, 0])).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(DataError, match=r"row 0: final state is 2, expected 0 \.\. 1"):
        mdp_from_log(log, states=2, actions=2, discount=0.9)
