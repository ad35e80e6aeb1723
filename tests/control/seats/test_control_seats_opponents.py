"""The pool of opponents, players, the gate and evaluation by matches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import MlpConfig
from hone.control.seats.adapters import game_maker
from hone.control.seats.evaluation import Arena, SeatsEvaluationConfig, evaluate_policy, gate_evidence, open_arena
from hone.control.seats.game import SeatsConfig
from hone.control.seats.matches import SeatLayout, Turn
from hone.control.seats.opponents import (
    FixedOpponents,
    GateConfig,
    OpponentPool,
    PastOpponents,
    PfspOpponents,
    match_scores,
    pfsp_weights,
)
from hone.control.seats.players import Player, RandomPlayer, open_player
from hone.control.seats.world import LEARNER
from hone.core.errors import ConfigError, DataError
from hone.decide.estimators.sequential import mixture_paths

PENNIES = SeatsConfig(id="hone.control.seats.matrix_games:MatchingPenniesGame")


def laid_out(config: SeatsConfig = PENNIES) -> tuple[SeatLayout, object]:
    game = game_maker(config)()
    game.reset(0)
    return SeatLayout.from_game(game, config.id), game


def a_policy(seed: int = 0) -> ActorCritic:
    return ActorCritic(laid_out()[0].policy_spaces, MlpConfig(hidden=[4]), seed=seed)


def a_pool(tmp_path: Path, config: PastOpponents | FixedOpponents, **changes) -> OpponentPool:
    return OpponentPool(seats=2, seed=1, config=config, folder=tmp_path / "opponents", **changes)


def test_scores_of_a_match_by_hand() -> None:
    assert [match_scores(np.array(returns), 0) for returns in ([1, -1], [0, 0], [-1, 1])] == [1.0, 0.5, 0.0]
    assert [match_scores(np.array([2.0, 2.0, 1.0]), seat) for seat in range(3)] == [0.5, 0.5, 0.0]


def test_weights_of_prioritised_opponents_by_hand() -> None:
    chances = np.array([0.5, 0.9, 0.0])
    np.testing.assert_allclose(pfsp_weights(chances, "hard"), np.array([0.25, 0.01, 1.0]) / 1.26)
    np.testing.assert_allclose(pfsp_weights(chances, "even"), np.array([0.25, 0.09, 0.0]) / 0.34)
    np.testing.assert_allclose(pfsp_weights(np.array([1.0, 1.0]), "hard"), [0.5, 0.5])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_prioritised_weights_are_probabilities_and_fall_with_the_chance_to_win(chances: list[float]) -> None:
    weights = pfsp_weights(np.array(chances), "hard")
    assert weights.sum() == pytest.approx(1)
    order = np.argsort(chances, kind="stable")
    assert (np.diff(weights[order]) <= 1e-12).all()


def test_a_full_pool_stays_spread_over_the_run(tmp_path: Path) -> None:
    pool = a_pool(tmp_path, PastOpponents(kind="past", every=2, size=4))
    for version in range(41):
        pool.consider(a_policy(version), version)
        pool.consider(a_policy(version), version)  # published again: nothing new
    versions = [one.version for one in pool.snapshots]
    assert versions == [16, 32]
    assert pool.every == 16
    assert len(pool.policies()) == 2


def test_opponents_are_drawn_by_match_with_the_learner_in_every_seat(tmp_path: Path) -> None:
    pool = a_pool(tmp_path, PastOpponents(kind="past", latest=0.25, every=1))
    assert pool.draw(0) == (LEARNER, LEARNER)  # nobody else is there yet
    pool.consider(a_policy(1), 1)
    pool.consider(a_policy(2), 2)
    drawn = [tuple(pool.draw(match)) for match in range(2000)]
    assert drawn == [tuple(pool.draw(match)) for match in range(2000)], "a draw is a function of the match"
    own = [match for match in range(2000) if drawn[match] == (LEARNER, LEARNER)]
    assert 430 < len(own) < 570  # 500 expected, sd 19
    others = [max(players) for players in drawn if players != (LEARNER, LEARNER)]
    assert 650 < others.count(1) < 850
    assert all(drawn[match].index(LEARNER) == match % 2 for match in range(2000) if match not in set(own))


def test_results_change_whom_prioritised_self_play_draws(tmp_path: Path) -> None:
    pool = a_pool(tmp_path, PfspOpponents(kind="pfsp", latest=0.0, every=1))
    pool.consider(a_policy(1), 1)
    pool.consider(a_policy(2), 2)
    for _ in range(60):
        pool.record([LEARNER, 1], np.array([1.0, -1.0]))  # the learner beats the first
        pool.record([2, LEARNER], np.array([1.0, -1.0]))  # and loses to the second
    others = [max(pool.draw(match)) for match in range(400)]
    assert others.count(2) > 390
    assert pool.metrics()["opponents/score"] == 0.5
    again = a_pool(tmp_path, PfspOpponents(kind="pfsp", latest=0.0, every=1))
    again.restore(pool.state())
    assert [max(again.draw(match)) for match in range(400)] == others
    assert again.metrics() == {"opponents/pool": 2.0}


def test_a_snapshot_that_was_changed_is_refused(tmp_path: Path) -> None:
    pool = a_pool(tmp_path, PastOpponents(kind="past", every=1))
    pool.consider(a_policy(1), 1)
    again = a_pool(tmp_path, PastOpponents(kind="past", every=1))
    again.restore(pool.state())
    save_policy(a_policy(2), tmp_path / "opponents" / "00000001")
    with pytest.raises(DataError, match="not those that the run saved"):
        again.player(1)


# ----------------------------------------------------------------------------------------------------------------- gate


class Always(Player):
    """Plays one side, or the other with a probability."""

    def __init__(self, side: int, other: float = 0.0) -> None:
        self.side, self.other = side, other

    def choose(self, turn: Turn, draws: np.random.Generator) -> np.ndarray:
        return np.where(draws.random(len(turn.seats)) < self.other, 1 - self.side, self.side)


def arena(matches: int = 64) -> Arena:
    layout, _ = laid_out()
    return open_arena(game_maker(PENNIES), layout, matches=matches, max_steps=10)


class Better(Always):
    """Sees through `Always(0)`: equal in the first seat, different in the second."""

    def choose(self, turn: Turn, draws: np.random.Generator) -> np.ndarray:
        return np.where(draws.random(len(turn.seats)) < self.other, 1 - turn.seats, turn.seats)


def test_the_gate_passes_the_better_player_early_and_hardly_ever_an_equal_one() -> None:
    gate = GateConfig(matches=200, alpha=0.05)
    evidence = gate_evidence(arena(), Better(0, 0.1), Always(0), gate, mixture_paths, seed=1)
    assert evidence >= 20
    equal = [gate_evidence(arena(), Always(0, 0.5), Always(0, 0.5), gate, mixture_paths, seed=s) for s in range(40)]
    assert sum(value >= 20 for value in equal) <= 4  # 2 expected at most
    assert gate_evidence(arena(), Always(0), Better(0), gate, mixture_paths, seed=2) < 1.5  # the worse one


def test_a_pool_with_a_gate_keeps_out_what_is_no_better(tmp_path: Path) -> None:
    config = PastOpponents(kind="past", every=1, gate=GateConfig())
    verdicts = iter([30.0, 1.0])
    pool = a_pool(tmp_path, config, gate=lambda new, champion, number: next(verdicts))
    for version in (1, 2, 3):  # the first joins an empty pool
        pool.consider(a_policy(version), version)
    assert [one.version for one in pool.snapshots] == [1, 2]
    assert pool.metrics()["opponents/accepted"] == 0.0


# ----------------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_scores_every_seat_with_intervals() -> None:
    layout, _ = laid_out()
    policy = a_policy()
    with_bias = policy.actor.layer_parameters[-1][1]
    with_bias.data[:] = with_bias.new_tensor([9.0, -9.0])  # always shows side 0
    config = SeatsEvaluationConfig(episodes=80)
    _, metrics = evaluate_policy(
        policy.numpy_policy(), arena(), {"zero": Always(0), "random": RandomPlayer(layout)}, config, seed=3
    )
    assert metrics["eval/zero/seat0/score"] == 1.0  # equal sides win in the first seat
    assert metrics["eval/zero/seat1/score"] == 0.0
    assert metrics["eval/score"] == metrics["eval/zero/score"] == 0.5
    assert metrics["eval/zero/return"] == 0.0
    assert metrics["eval/random/low"] < 0.5 < metrics["eval/random/high"]
    _, alone = evaluate_policy(policy.numpy_policy(), arena(), {}, config, seed=3)
    assert (alone["eval/seat0/return"], alone["eval/seat1/return"], alone["eval/score"]) == (1.0, -1.0, 0.0)


def test_players_by_name(tmp_path: Path) -> None:
    layout, game = laid_out()
    (tmp_path / "odd.py").write_text("def play(seen, mask, seat, draws):\n    return seat\n", encoding="utf-8")
    turn = Turn(games=[game, game], seats=np.array([0, 1]), seen=np.zeros((2, 3), np.float32), mask=None)
    draws = np.random.default_rng(0)
    assert open_player(f"{tmp_path / 'odd.py'}:play", layout, game).choose(turn, draws).tolist() == [0, 1]
    save_policy(a_policy(), tmp_path / "saved")
    assert open_player(str(tmp_path / "saved"), layout, game).choose(turn, draws).shape == (2,)
    assert open_player("random", layout, game).choose(turn, draws).shape == (2,)
    for name, message in (
        ("mcts:10", "needs a game of OpenSpiel"),
        ("mcts:some", "the number of simulations"),
        ("nobody", "write random, mcts:SIMULATIONS"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_player(name, layout, game)
    spaces = replace(layout.policy_spaces, inputs=replace(layout.policy_spaces.inputs, size=9))
    other = ActorCritic(spaces, MlpConfig(hidden=[4]), seed=0)
    save_policy(other, tmp_path / "wide")
    with pytest.raises(DataError, match="this policy reads 9 numbers"):
        open_player(str(tmp_path / "wide"), layout, game)


def test_tree_search_beats_random_players() -> None:
    pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    config = SeatsConfig(id="openspiel:tic_tac_toe")
    layout, game = laid_out(config)
    made = open_arena(game_maker(config), layout, matches=20, max_steps=20)
    search, random = open_player("mcts:30", layout, game), RandomPlayer(layout)
    returns = made.play([[search, random], [random, search]] * 10, seed=1)
    assert np.where(np.arange(20) % 2 == 0, returns[:, 0], returns[:, 1]).mean() > 0.5


def test_policies_of_seats_are_saved_and_loaded(tmp_path: Path) -> None:
    from hone.control.networks.seats import CentralActorCritic, SeatPolicies
    from hone.control.networks.team import TeamValues

    spaces, network = laid_out()[0].policy_spaces, MlpConfig(hidden=[4])
    seen = np.concatenate([np.zeros((2, 1)), np.eye(2)], axis=1).astype(np.float32)
    for policy in (
        CentralActorCritic(spaces, network, seed=1, state_size=5),
        SeatPolicies(spaces, network, seed=1, groups=(1, 0)),
        SeatPolicies(spaces, network, seed=1, groups=(0, 1), state_size=5),
        TeamValues(spaces, network, seed=1, seats=2, state_size=3, mixer_units=4),
    ):
        save_policy(policy, tmp_path / "policy")
        again = load_policy(tmp_path / "policy")
        assert type(again) is type(policy)
        assert again.extras() == policy.extras()
        assert again.numpy_policy().best(seen).tolist() == policy.numpy_policy().best(seen).tolist()
