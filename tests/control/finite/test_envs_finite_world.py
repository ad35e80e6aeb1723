"""The world over a table: what is drawn, how episodes are cut, and that a resumed run is the same run."""

import numpy as np
import pytest

from hone.control.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_table
from hone.control.finite.solve import evaluate_policy, occupancy, start_value
from hone.control.finite.world import FiniteWorld
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError, DataError
from hone.core.ragged import row_sums
from hone.sources.live import LiveSource, RolloutEnvironment


class Follows:
    """Draws from a policy `[S, A]`."""

    def __init__(self, policy: np.ndarray, version: int = 0) -> None:
        self.policy, self.version = policy, version

    def publish(self, policy: np.ndarray, version: int) -> None:
        self.policy, self.version = policy, version

    def noise(self, draws, shape):
        return draws.random(shape)

    def decide(self, seen, noise):
        chosen = (self.policy[seen].cumsum(axis=1) < noise[:, None]).sum(axis=1).clip(max=self.policy.shape[1] - 1)
        return chosen, np.log(self.policy[seen, chosen]).astype(np.float32)


def random_case(ending: float = 0.2):
    mdp = garnet_mdp(states=6, actions=3, branching=3, seed=3, discount=0.9, ending=ending)
    return mdp, np.random.default_rng(0).dirichlet(np.ones(3), 6)


def test_what_is_paid_and_visited_is_what_the_table_says() -> None:
    mdp, policy = random_case()
    undiscounted = mdp.with_discount(1.0)
    world: RolloutEnvironment = FiniteWorld(mdp=mdp, steps=2000, copies=20, seed=1)
    episodes = world.rollout(Follows(policy))
    ended = episodes.take(np.flatnonzero(episodes.terminated))
    value, visits = start_value(undiscounted, evaluate_policy(undiscounted, policy)), occupancy(undiscounted, policy)
    assert abs(ended.score.mean() - value) < 4 * ended.score.std() / np.sqrt(len(ended))
    counts = np.zeros((6, 3))
    np.add.at(counts, (episodes.observations, episodes.chosen), 1 / episodes.decisions)
    np.testing.assert_allclose(counts, visits / visits.sum(), atol=0.008)
    outcome = np.zeros((6, 3, 6))
    steps = episodes.transitions()
    goes_on = ~steps.terminated
    np.add.at(outcome, (steps.observations[goes_on], steps.chosen[goes_on], steps.final[goes_on]), 1)
    tried = np.zeros((6, 3))
    np.add.at(tried, (steps.observations, steps.chosen), 1)
    expected, often = mdp.dense()[0], tried[:, :, None]
    error = np.sqrt(expected * (1 - expected) / often)
    assert (np.abs(outcome / often - expected) < 4.5 * error + 1e-12).all()


def test_pieces_join_to_the_episodes_of_one_long_rollout() -> None:
    """The limit, the numbers of episodes and their scores do not depend on where a rollout is cut."""
    mdp, policy = random_case(ending=0.1)
    walk = grid_mdp(["S...G"], discount=1.0, slip=0.3, limit=6)
    for table, chances in ((mdp, policy), (walk, np.full((5, 4), 0.25))):
        world = FiniteWorld(mdp=table, steps=7, copies=3, seed=5)
        every = concatenate([world.rollout(Follows(chances)) for _ in range(30)])
        count = int(every.group.max()) + 1
        lengths = np.bincount(every.group, weights=every.lengths, minlength=count)
        paid = np.bincount(every.group, weights=row_sums(every.reward, every.offsets), minlength=count)
        over = every.terminated | every.truncated
        np.testing.assert_allclose(every.score[over], paid[every.group[over]], atol=1e-5)
        assert not (every.terminated & every.truncated).any()
        assert (lengths > 0).sum() >= count - 3  # the last of a copy may not have begun
        assert np.bincount(every.group[over]).max() == 1
        if table.step_limit is not None:
            assert (lengths[every.group[every.truncated]] == table.step_limit).all()
            assert every.truncated.any()
            assert lengths.max() == table.step_limit


def test_what_follows_is_what_is_seen_next() -> None:
    """Inside an episode the next state seen is the one before the next decision; a reset is never in between."""
    walk = grid_mdp(["S...G"], discount=1.0, slip=0.3, limit=4)
    episodes = FiniteWorld(mdp=walk, steps=200, copies=2, seed=0).rollout(Follows(np.full((5, 4), 0.25)))
    steps = episodes.transitions()
    assert (np.abs(steps.final - steps.observations) <= 1).all()  # a reset from afar would jump
    begins, ended = episodes.observations[episodes.offsets[:-1]], episodes.terminated | episodes.truncated
    assert (begins[1:][ended[:-1]] == 0).all()
    assert (episodes.final[episodes.terminated] == 4).all()
    assert episodes.truncated.any()


def test_a_resumed_world_is_the_same_world() -> None:
    mdp, policy = random_case()
    world, again = (FiniteWorld(mdp=mdp, steps=5, copies=4, seed=9) for _ in range(2))
    source, resumed = LiveSource(world, Follows(policy)), LiveSource(again, Follows(policy))
    for _ in range(3):
        source.publish(policy)
        source.collect()
    resumed.restore(source.state())
    resumed.publish(policy)  # the loop publishes what was restored before its first step
    for _ in range(3):
        here, there = source.collect(), resumed.collect()
        for name in Episodes.__dataclass_fields__:
            np.testing.assert_array_equal(object.__getattribute__(here, name), object.__getattribute__(there, name))
    with pytest.raises(DataError, match="has 4 copies, this one 2"):
        FiniteWorld(mdp=mdp, steps=5, copies=2, seed=9).restore(world.state())


def test_seeds_differ_and_copies_do_not_share_luck() -> None:
    mdp, policy = random_case()
    one, other = (FiniteWorld(mdp=mdp, steps=50, copies=2, seed=seed).rollout(Follows(policy)) for seed in (0, 1))
    assert not np.array_equal(one.observations, other.observations)
    seen = one.observations.reshape(2, 50)
    assert not np.array_equal(seen[0], seen[1])


def test_actions_that_cannot_be_taken_are_refused() -> None:
    table = {0: {0: [(1.0, 0, 0.0, False)], 2: [(1.0, 0, 1.0, True)]}}
    world = FiniteWorld(mdp=mdp_from_table(table, start=np.ones(1), discount=0.9), steps=1, seed=0)
    with pytest.raises(ConfigError, match=r"action 1 in state 0: the table allows \[0, 2\]"):
        world.rollout(Follows(np.array([[0.0, 1.0, 0.0]])))
    with pytest.raises(ConfigError, match=r"action 2 in state 2: the table allows \[0, 1\]"):
        FiniteWorld(mdp=chain_mdp(5, discount=0.9), steps=1, seed=0).rollout(Follows(np.tile([0.0, 0.0, 1.0], (5, 1))))
