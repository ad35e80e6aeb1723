"""The stitching task: its log, its table and its environment say the same, and no episode of the log is the best."""

import gymnasium
import numpy as np
import pytest

from hone.control.environments.registration import register_builtin_envs
from hone.control.finite.build import mdp_from_log
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.stitching import FORWARD, PAYING, state_count, stitching_log, stitching_mdp, stitching_step
from hone.core.errors import ConfigError


@pytest.mark.parametrize("length", [1, 3, 5])
def test_the_best_is_worth_what_is_worked_out_by_hand(length: int) -> None:
    mdp = stitching_mdp(length=length, discount=0.9)
    best = start_value(mdp, policy_iteration(mdp).value)
    assert best == pytest.approx(0.9**length + 0.9 ** (2 * length + 1))


def test_no_logged_episode_is_the_best_and_the_log_is_enough_for_it() -> None:
    log = stitching_log(length=3, episodes=50)
    episodes = log.episodes
    assert set(episodes.score.tolist()) == {1.0}
    assert start_value(stitching_mdp(discount=1.0), policy_iteration(stitching_mdp(discount=1.0)).value) == 2.0
    known = mdp_from_log(episodes, states=state_count(3), actions=2, discount=0.99)
    assert start_value(known, policy_iteration(known).value) == pytest.approx(0.99**3 + 0.99**7)


def test_imitating_the_likeliest_actions_is_not_enough() -> None:
    episodes = stitching_log(length=3, episodes=50).episodes
    count = np.zeros((state_count(3), 2))
    np.add.at(count, (episodes.observations.astype(np.int64), episodes.chosen.astype(np.int64)), 1)
    mdp = stitching_mdp(discount=1.0)
    assert start_value(mdp, evaluate_policy(mdp, count.argmax(axis=1))) == 1.0
    assert count[0].tolist() == [20, 30]  # 0.6 of 50 take the first half's paying lane
    assert count[7].tolist() == [20, 30]  # and then the other one


def test_the_environment_is_the_table() -> None:
    register_builtin_envs()
    env = gymnasium.make("hone/Stitching-v0", length=2)
    mdp = stitching_mdp(length=2)
    for draw in range(20):
        seen, _ = env.reset(seed=draw)
        over = False
        while not over:
            action = int(np.random.default_rng(draw + seen).integers(2))
            pair = seen * 2 + action
            outcome = int(mdp.offsets[pair])
            seen, reward, over, truncated, _ = env.step(action)
            assert (reward, over, truncated) == (mdp.reward[outcome], mdp.terminates[outcome], False)
            assert over or seen == mdp.next_state[outcome]


def test_the_log_is_what_the_environment_would_have_said() -> None:
    log = stitching_log(length=2, episodes=10, seed=3)
    steps = log.episodes.transitions()
    assert steps.final is not None
    for seen, chosen, reward, after, ended in zip(
        steps.observations, steps.chosen, steps.reward, steps.final, steps.terminated, strict=True
    ):
        assert stitching_step(int(seen), int(chosen), 2) == (after, reward, ended)
    density = log.episodes.logp.reshape(10, -1)
    first = steps.chosen.reshape(10, -1)[:, 0]
    np.testing.assert_allclose(density[:, 0], np.log(np.where(first == PAYING[0], 0.6, 0.4)), rtol=1e-6)
    assert (density[:, 1:] == 0).all()
    assert FORWARD == 1


def test_a_share_that_would_give_it_away_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"share = 0.5"):
        stitching_log(first_half_share=0.5)
    with pytest.raises(ConfigError, match="length 0"):
        stitching_mdp(length=0)
