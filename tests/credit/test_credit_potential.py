"""Shaping: no best policy changes by a potential, for any potential; one does by a bonus. By hand and by DP."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.control.finite.build import chain_mdp, garnet_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import policy_iteration
from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.potential import (
    DistancePotential,
    LinearPotential,
    TablePotential,
    build_potential,
    potential_shaped,
    state_bonus_shaped,
    with_shaped_rewards,
)
from hone.credit.returns import discounted_returns, gae


def lived(seen: list[int], final: list[int], lengths: list[int], *, terminated: list[bool]) -> Episodes:
    ends = np.array(terminated)
    return plain_episodes(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        seen=np.array(seen),
        reward=np.ones(len(seen), np.float32),
        terminated=ends,
        truncated=~ends,
        final=np.array(final),
        score=np.array(lengths, np.float64),
    )


TABLE = build_potential(TablePotential(kind="table", values=[1.0, 10.0, 100.0]))


def test_by_hand() -> None:
    episodes = lived([0, 1, 0], [2, 2], [2, 1], terminated=[True, False])
    shaped = potential_shaped(episodes, potential=TABLE, discount=0.5)
    # 1 + 0.5 * 10 - 1; 1 + 0 - 10, for the world ended; 1 + 0.5 * 100 - 1, for a limit is no end
    assert shaped.reward.tolist() == [5.0, -9.0, 50.0]
    assert shaped.score is episodes.score
    assert state_bonus_shaped(episodes, potential=TABLE).reward.tolist() == [11.0, 1.0, 101.0]


def test_returns_move_by_the_potential_of_the_begin_alone() -> None:
    episodes = lived([0, 1, 2, 0], [0], [4], terminated=[True])
    credit = partial(discounted_returns, discount=0.9)
    plain = credit(episodes, NO_VALUES).advantage
    shaped = with_shaped_rewards(
        episodes, NO_VALUES, credit=credit, shaping=partial(potential_shaped, potential=TABLE, discount=0.9)
    )
    np.testing.assert_allclose(shaped.advantage, plain - TABLE(episodes.observations), rtol=1e-5)
    assert shaped.metrics["reward/shaping_mean"] != 0


def test_a_critic_that_knows_the_potential_gives_the_same_advantages() -> None:
    """V - Phi is the value of the shaped world: advantages do not change (Wiewiora, 2003)."""
    episodes = lived([0, 1, 2, 0, 1], [2, 1], [3, 2], terminated=[True, False])
    value, final = np.array([0.1, 0.5, 0.2, 0.7, 0.3], np.float32), np.array([0.4, 0.9], np.float32)
    plain = gae(episodes, Values(value=value, final=final), discount=0.9, gae_lambda=0.8)
    known = Values(
        value=value - TABLE(episodes.observations).astype(np.float32),
        final=final - TABLE(np.array([2, 1])).astype(np.float32),
    )
    shaped = gae(potential_shaped(episodes, potential=TABLE, discount=0.9), known, discount=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(shaped.advantage, plain.advantage, atol=1e-4)


def shaped_world(mdp: FiniteMdp, potential: np.ndarray) -> FiniteMdp:
    beyond = np.where(mdp.terminates, 0.0, mdp.discount * potential[mdp.next_state])
    return replace(mdp, reward=mdp.reward + beyond - potential[mdp.pair_of_outcome // mdp.actions])


@examples(25)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 100))
def test_no_potential_changes_the_best_policy(seed: int, scale: float) -> None:
    mdp = garnet_mdp(states=6, actions=3, branching=2, seed=seed, discount=0.9, ending=0.1)
    potential = scale * np.random.default_rng(seed).standard_normal(6)
    plain, shaped = policy_iteration(mdp), policy_iteration(shaped_world(mdp, potential))
    np.testing.assert_allclose(shaped.q, plain.q - potential[:, None], atol=1e-8 * max(1.0, scale))
    # every action that is best stays best, within what rounding leaves
    gap = plain.q.max(axis=1, keepdims=True) - plain.q
    assert (gap[shaped.q >= shaped.q.max(axis=1, keepdims=True) - 1e-7 * scale] <= 1e-6 * max(1.0, scale)).all()


def test_a_bonus_for_being_there_changes_the_best_policy() -> None:
    """In a chain that pays at its right end, a bonus for the middle makes it best to stay about the middle."""
    mdp = chain_mdp(7, discount=0.9)
    bonus = np.zeros(7)
    bonus[3] = 1.0
    naive = replace(mdp, reward=mdp.reward + np.where(mdp.terminates, 0.0, bonus[mdp.next_state]))
    assert policy_iteration(mdp).policy.tolist() == [1] * 7
    assert policy_iteration(naive).policy.tolist() != [1] * 7
    assert policy_iteration(naive).policy[4] == 0  # back to the bonus, away from the goal
    assert policy_iteration(shaped_world(mdp, bonus)).policy.tolist() == [1] * 7


def test_the_other_potentials_by_hand() -> None:
    seen = np.array([[3.0, 4.0, 9.0], [0.0, 0.0, 1.0]])
    linear = build_potential(LinearPotential(kind="linear", weights=[1.0, 0.0, -2.0]))
    assert linear(seen).tolist() == [-15.0, -2.0]
    distance = build_potential(DistancePotential(kind="distance", columns=[0, 1], target=[0.0, 0.0], weight=2.0))
    assert distance(seen).tolist() == [-10.0, 0.0]


@pytest.mark.parametrize(
    ("config", "seen", "says"),
    [
        (TablePotential(kind="table", values=[1.0]), np.array([0, 1]), "1 states"),
        (TablePotential(kind="table", values=[1.0]), np.zeros((2, 3)), "float64"),
        (LinearPotential(kind="linear", weights=[1.0]), np.zeros((2, 3)), "1 weights, and 3 numbers"),
        (DistancePotential(kind="distance", columns=[5], target=[0.0]), np.zeros((2, 3)), "3 numbers"),
    ],
)
def test_a_potential_that_does_not_fit_is_refused(config, seen, says) -> None:
    with pytest.raises(DataError, match=says):
        build_potential(config)(seen)
