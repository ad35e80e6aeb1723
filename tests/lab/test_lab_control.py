"""What the experiments of control stand on, by hand and by brute force; that each is a function of its seed."""

from functools import partial

import numpy as np
import pytest

from hone.control.finite.build import chain_mdp, garnet_mdp
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.suite.grid_worlds import FourRoomsEnv
from hone.control.tables.learn import QLearningRule, RateConfig
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.credit.returns import reward_as_advantage
from hone.lab.control import moving_average, replicate_mdp, tabular_recipe, train_recipe, with_rewards
from hone.lab.experiments import eligibility_traces, exploration, overestimation, shaping
from hone.lab.experiments.offline_shift import ACTIONS, DISCOUNT, STATES, TRIED, behaviour_policy
from hone.lab.experiments.options import KINDS, ONLY, plan_with_options
from hone.lab.registry import load_experiment, result_json


def test_worlds_side_by_side_are_the_world_and_nothing_joins_them() -> None:
    mdp = garnet_mdp(states=5, actions=3, branching=2, seed=1, discount=0.9, ending=0.1)
    both = replicate_mdp(mdp, 2)
    assert (both.states, both.actions, both.start_distribution.sum()) == (10, 3, pytest.approx(1.0))
    assert policy_iteration(both).value == pytest.approx(np.tile(policy_iteration(mdp).value, 2))
    assert ((both.pair_of_outcome // both.actions >= 5) == (both.next_state >= 5)).all()


def test_a_table_of_many_worlds_learns_what_each_pays() -> None:
    mdp = replicate_mdp(chain_mdp(1, discount=0.5, small=-1.0, large=2.0), 3)
    world = FiniteWorld(mdp=mdp, steps=40, seed=0, copies=3)
    table, steps = ActionTable(StateFeatures(count=3, actions=2), initial=5.0), list[int]()
    recipe = tabular_recipe(
        world, table, QLearningRule(actions=2), rate=RateConfig(rate=1.0), credit=reward_as_advantage
    )
    train_recipe(recipe, steps=2, watch=lambda step, episodes: steps.append(step))
    assert steps == [1, 2]
    assert table.q.tolist() == [[-1.0, 2.0]] * 3


def test_means_over_a_window_by_hand() -> None:
    assert moving_average(np.array([1.0, 3.0, 5.0, 1.0]), 2).tolist() == [2.0, 4.0, 3.0]


def test_pulling_blindly_costs_the_mean_gap() -> None:
    blind = exploration.ExplorationMethod(exploration=exploration.SoftmaxActions(kind="boltzmann", temperature=hot()))
    lost, by_copy = exploration.regret(blind, seed=0, pulls=50, copies=200)
    gap = exploration.RATES.max() - exploration.RATES.mean()
    assert lost.mean() == pytest.approx(gap, abs=0.01)
    assert by_copy.sum() / 200 == pytest.approx(lost.sum())  # every player pulled once a turn


def hot() -> exploration.ConstantSchedule:
    return exploration.ConstantSchedule(value=1e6)


def test_thompson_believes_what_its_own_copy_paid() -> None:
    player = exploration.ThompsonSampler(exploration.BetaBernoulliPosterior(2 * exploration.ARMS))
    sure = np.ones(2 * exploration.ARMS)
    sure[[3, exploration.ARMS + 7]] = 1e6  # copy 0 is sure of arm 3, copy 1 of arm 7
    player.policy.alpha, player.policy.beta = sure, np.full(2 * exploration.ARMS, 50.0)
    noise = player.noise(np.random.default_rng(0), (2,))
    assert player.decide(np.array([0, 1]), noise)[0].tolist() == [3, 7]
    assert player.decide(np.array([1, 0]), noise)[0].tolist() == [7, 3]


def test_walks_end_and_are_whole() -> None:
    mdp = chain_mdp(5, discount=1.0, small=-1.0, large=1.0)
    runs = eligibility_traces.random_walks(mdp, seed=3, runs=4)
    assert [len(walks) for walks in runs] == [eligibility_traces.EPISODES] * 4
    for walks in runs:
        assert all(walk.terminated.all() and walk.observations[0] == 2 for walk in walks)
        assert {float(walk.reward[-1]) for walk in walks} <= {-1.0, 1.0}


def test_monte_carlo_is_a_trace_that_never_fades() -> None:
    """With lambda = 1, rate 1 and no state met twice, one walk leaves its return in every state."""
    mdp = chain_mdp(3, discount=1.0, small=-1.0, large=1.0)
    walks = eligibility_traces.random_walks(mdp, seed=0, runs=40)
    straight = next(run[0] for run in walks if run[0].decisions == 2)
    left = float(straight.reward[-1])
    true = np.array([left, left, 0.0]) if left < 0 else np.array([0.0, left, left])
    error = partial(
        eligibility_traces.walk_error, mdp, [[straight] * 10], true, trace=eligibility_traces.DUTCH, rate=1.0
    )
    assert error(decay=1.0) == pytest.approx(0.0, abs=1e-12)
    assert error(decay=0.0) > 0.05  # one step at a time, the first walk teaches its last state only


def test_shaped_rewards_by_hand() -> None:
    mdp = chain_mdp(2, discount=0.5, small=0.0, large=1.0)
    potential = np.array([2.0, 4.0])
    # Outcomes in the order of pairs: 0 left (ends), 0 right (to 1), 1 left (to 0), 1 right (ends, pays 1).
    assert shaping.with_potential(mdp, potential).reward.tolist() == [-2.0, 0.0, -3.0, -3.0]
    assert shaping.with_bonus(mdp, potential).reward.tolist() == [0.0, 4.0, 2.0, 1.0]
    assert with_rewards(mdp, np.arange(4.0)).reward.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_losing_way_of_the_fork_loses() -> None:
    solved = policy_iteration(overestimation.maximisation_bias_mdp())
    assert solved.q[0].tolist() == pytest.approx([0.0] * 5 + [overestimation.TRUTH] * 5)
    assert solved.q[1].tolist() == pytest.approx([overestimation.TRUTH] * 10)


def test_habits_are_the_best_actions() -> None:
    mdp = garnet_mdp(states=STATES, actions=ACTIONS, branching=3, seed=5, discount=DISCOUNT, ending=0.02)
    share, q = behaviour_policy(mdp), policy_iteration(mdp).q
    assert (share.sum(axis=1) == 1).all()
    assert ((share > 0).sum(axis=1) == TRIED).all()
    assert (share[np.arange(STATES), q.argmax(axis=1)] > 0).all()
    assert start_value(mdp, evaluate_policy(mdp, share)) <= start_value(mdp, policy_iteration(mdp).value)


def test_planning_over_options_cannot_beat_planning_over_actions() -> None:
    plan = plan_with_options(FourRoomsEnv())
    single, ways, alone = plan[KINDS[0]], plan[KINDS[1]], plan[ONLY]
    assert single.value_share == pytest.approx(1.0)
    assert ways.value_share == pytest.approx(1.0)
    assert alone.value_share < 1.0
    for each in plan.values():
        assert (np.diff(each.progress) >= -1e-12).all()
        assert each.progress[-1] <= each.value_share + 1e-9
    assert (ways.progress >= single.progress - 1e-12).all()


@pytest.mark.parametrize("name", ["overestimation", "eligibility-traces"])
def test_a_seed_says_everything(name: str) -> None:
    experiment = load_experiment(name)
    once, twice, other = (experiment.run(seed, quick=True) for seed in (3, 3, 4))
    assert result_json(once, name=name, seed=3) == result_json(twice, name=name, seed=3)
    assert once.rows != other.rows
