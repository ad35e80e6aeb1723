"""Dynamic difficulty: the distribution by hand, frequencies, saved policies, resumed sessions, served decisions."""

import math
from pathlib import Path

import numpy as np
import pytest

from hone.core.errors import ConfigError, DataError
from hone.core.random import key
from hone.decide.bandits.greedy import TargetRatePolicy
from hone.decide.bandits.policy import numbered_actions
from hone.decide.bandits.saving import load_policy, save_policy
from hone.decide.match.difficulty import Difficulty
from hone.decide.simulators.players import LevelWorld
from hone.estimators.ratings import Rating, WengLin

BETA = 1 / math.sqrt(2)


def test_the_distribution_by_hand() -> None:
    # A certain player at 0, levels at 0 and log 3: chances 1/2 and 1/4, the target is 1/2
    policy = TargetRatePolicy(np.array([[0.0, 0.0], [math.log(3), 0.0]]), target=0.5, spread=0.25, beta=BETA)
    logp = policy.logp(np.array([0.0, 0.0]), numbered_actions(2))
    odds = math.exp(-0.5)  # one spread away
    np.testing.assert_allclose(np.exp(logp), [1 / (1 + odds), odds / (1 + odds)], rtol=1e-12)
    _, scores = policy.distribution(np.array([0.0, 0.0]), numbered_actions(2))
    assert scores is not None
    np.testing.assert_allclose(scores, [0.5, 0.25], rtol=1e-12)
    # An uncertain player: c^2 = 3 + 0 + 1, so that log 3 counts half
    _, scores = policy.distribution(np.array([0.0, math.sqrt(3)]), numbered_actions(2))
    assert scores is not None
    np.testing.assert_allclose(scores[1], 1 / (1 + math.sqrt(3)), rtol=1e-12)


def test_rows_are_the_rows_and_extra_features_change_nothing() -> None:
    policy, actions = TargetRatePolicy(np.array([[0.0, 1.0], [5.0, 2.0], [30.0, 1.0]])), numbered_actions(3)
    contexts = np.array([[3.0, 1.0, 9.0], [-400.0, 0.1, 2.0], [4000.0, 0.1, 0.0]])
    rows = policy.logp_rows(contexts, actions)
    for context, row in zip(contexts, rows, strict=True):
        np.testing.assert_array_equal(policy.logp(context[:2], actions), row)
    np.testing.assert_allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-12)


def test_frequencies_are_the_probabilities_of_the_choices() -> None:
    game = Difficulty(levels=7, spread=0.1, floor=0.1)
    choices = [game.choose("a", round=number) for number in range(3000)]
    logp = game.policy.logp(game.context("a"), numbered_actions(7))
    assert all(choice.logp == pytest.approx(float(logp[choice.action]), abs=1e-12) for choice in choices)
    counts = np.bincount([choice.action for choice in choices], minlength=7) / 3000
    assert np.abs(counts - np.exp(logp)).max() < 4 * math.sqrt(0.25 / 3000)
    assert np.exp(logp).min() >= 0.1 / 7 - 1e-12


def test_a_saved_policy_is_the_same(tmp_path: Path) -> None:
    game = Difficulty(levels=5)
    game.record("a", 2, passed=True)
    save_policy(game.policy, tmp_path / "p")
    again = load_policy(tmp_path / "p")
    context, actions = game.context("a"), numbered_actions(5)
    for number in range(20):
        assert again.act(context, actions, key(0, "k", number)) is not None
        np.testing.assert_array_equal(again.logp(context, actions), game.policy.logp(context, actions))


def test_a_pass_and_a_failure_move_player_and_level_as_a_game_does() -> None:
    system = WengLin(damped=False)
    game = Difficulty(levels=[Rating(20, 3), Rating(30, 3)], system=system)
    game.record("a", 1, passed=True)
    (player,), (level,) = system.rate([[system.initial], [Rating(30, 3)]], [0, 1])
    assert game.players == {"a": player}
    assert game.chance("a", 1) == system.expected_score([player], [level])
    game.record("a", 0, passed=False)
    assert game.players["a"].mean < player.mean
    with pytest.raises(DataError, match="level 2 of 2; the round of player 'a' was not counted"):
        game.record("a", 2, passed=True)


def session(game: Difficulty, rounds: range, world: LevelWorld) -> list[int]:
    levels: list[int] = []
    for number in rounds:
        levels.append(game.choose("p", round=number).action)
        game.record("p", levels[-1], passed=world.plays(3, levels[-1], number)[0])
    return levels


def test_a_resumed_session_is_the_uninterrupted_one() -> None:
    world = LevelWorld(levels=9, seed=1)
    whole, first = Difficulty(levels=9, seed=4), Difficulty(levels=9, seed=4)
    expected = session(whole, range(40), world)
    begun = session(first, range(17), world)
    resumed = Difficulty(levels=9, seed=4)
    resumed.restore(first.state())
    assert begun + session(resumed, range(17, 40), world) == expected
    assert resumed.state().keys() == whole.state().keys() and resumed.players == whole.players


def test_levels_come_nearer_to_the_target_than_the_middle_level() -> None:
    world, game = LevelWorld(levels=21, seed=5), Difficulty()
    errors: list[float] = []
    fixed: list[float] = []
    for player in range(4):
        for number in range(50):
            level = game.choose(str(player), round=number).action
            game.record(str(player), level, passed=world.plays(player, level, number)[0])
            if number >= 20:
                errors.append(abs(world.chance(player, level, number) - 0.65))
                fixed.append(abs(world.chance(player, 10, number) - 0.65))
    assert np.mean(errors) < 0.6 * np.mean(fixed)


def test_settings_that_are_none_are_refused() -> None:
    for levels in (np.zeros(3), np.zeros((0, 2)), np.array([[math.nan, 1.0]])):
        with pytest.raises(ConfigError, match="levels must be"):
            TargetRatePolicy(levels)
    for target, spread, beta in ((0.0, 1, 1), (1.0, 1, 1), (0.5, 0.0, 1), (0.5, 1, 0.0)):
        with pytest.raises(ConfigError, match="target must be between 0 and 1"):
            TargetRatePolicy(np.zeros((1, 2)), target=target, spread=spread, beta=beta)
    policy = TargetRatePolicy(np.zeros((2, 2)))
    with pytest.raises(DataError, match="3 actions and 2 features; this policy has 2 levels"):
        policy.logp(np.zeros(2), numbered_actions(3))
    with pytest.raises(DataError, match="2 actions and 1 features"):
        policy.logp(np.zeros(1), numbered_actions(2))
