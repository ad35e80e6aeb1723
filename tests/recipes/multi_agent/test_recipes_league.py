"""Leagues: payoffs by hand, whom main meets, exploiters that begin anew, torn members, and resumes."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_runs import StepRecorder

from hone.control.seats.compiled_games import CompiledGame, game_tree
from hone.control.seats.exploitability import infoset_probabilities
from hone.control.seats.league import Exploiter, LeagueLearner, LeaguePool, PayoffTable, member_name
from hone.control.seats.league_page import write_league_page
from hone.control.seats.match_blocks import _open_player
from hone.control.seats.match_log import FILE, MatchLog
from hone.control.seats.match_source import MatchSource
from hone.control.seats.matches import SeatLayout
from hone.control.seats.opponents import EXPLOITER, Snapshot
from hone.control.seats.tree_play import TreePlay
from hone.core.errors import ConfigError
from hone.core.state import substate
from hone.recipes.registry import load_recipe
from hone.run.job import EvaluationRequest, TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

KUHN = {"id": "compiled:kuhn_poker", "num_envs": 8}
SMALL = {
    "env": KUHN, "network": {"hidden": [8]}, "learner": {"lr": 1e-2, "epochs": 2, "minibatches": 2},
    "league": {"every": 1, "reset_every": 2, "payoff_matches": 4, "latest": 0.3},
    "evaluation": {"episodes": 4, "sample": True, "nash_conv": True},
}  # fmt: skip


def job_of(folder: Path, steps: int = 5, **more: Any) -> TrainingJob[Any]:
    spec = load_recipe("league")
    tables = {"recipe": "league", "name": "x", "seed": 3, "steps": steps, **SMALL, **more}
    job = spec.build(spec.config.model_validate(tables))
    job.open_folder(folder)
    return job


def source_of(job: TrainingJob[Any]) -> MatchSource:
    assert isinstance(job.recipe.source, MatchSource)
    return job.recipe.source


def pool_of(job: TrainingJob[Any]) -> LeaguePool:
    assert isinstance(job.recipe.learner, LeagueLearner)
    return job.recipe.learner.pool


# ------------------------------------------------------------------------------------------------------------- payoffs


def cycle() -> PayoffTable:
    """Rock, paper, scissors; and a member that loses to all."""
    table = PayoffTable()
    for one, other in (("paper", "rock"), ("rock", "scissors"), ("scissors", "paper")):
        table.record(one, other, np.ones(3))
    for one in ("rock", "paper", "scissors"):
        table.record("clay", one, np.array([0.0, 0.5]))
    return table


def test_payoffs_and_their_equilibrium_by_hand() -> None:
    table, names = cycle(), ["rock", "paper", "scissors"]
    assert table.matrix(names).tolist() == [[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]]
    assert table.matrix(["clay", "rock"]).tolist() == [[0.5, 0.25], [0.75, 0.5]]
    assert table.mixture([*names, "clay"]).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert table.mixture(["paper", "rock"]).tolist() == [1.0, 0.0]


def test_a_rating_falls_with_losses_and_its_deviation_with_matches() -> None:
    table = cycle()
    rows = dict(zip(table.names, table.ratings()[:, :2].tolist(), strict=True))
    assert rows["clay"][0] < min(rows[name][0] for name in ("rock", "paper", "scissors"))
    assert all(deviation < 25 / 3 for _, deviation in rows.values())
    table.record("rock", "clay", np.ones(50))
    assert dict(zip(table.names, table.ratings()[:, 1].tolist(), strict=True))["clay"] < rows["clay"][1]


def test_a_table_is_restored() -> None:
    table, other = cycle(), PayoffTable()
    other.restore(table.state())
    assert other.names == table.names
    assert np.array_equal(other.matrix(other.names), table.matrix(table.names))


def test_an_equilibrium_of_returns_is_not_that_of_matches_won() -> None:
    """Rock, paper, scissors in which rock's win over scissors is paid twice: the equilibrium is 1/4, 1/2, 1/4."""
    table, names = PayoffTable(), ["rock", "paper", "scissors"]
    for one, other, paid in (("paper", "rock", 1.0), ("rock", "scissors", 2.0), ("scissors", "paper", 1.0)):
        table.record(one, other, np.ones(2), np.full(2, paid))
    assert table.mixture(names).tolist() == pytest.approx([1 / 3] * 3)
    assert table.mixture(names, by_score=False).tolist() == pytest.approx([1 / 4, 1 / 2, 1 / 4])
    assert table.mean_returns(["scissors", "rock"], table.returns).tolist() == [[0.0, -2.0], [2.0, 0.0]]
    again = PayoffTable()
    again.restore(table.state())
    assert again.mixture(names, by_score=False).tolist() == table.mixture(names, by_score=False).tolist()
    earlier = {name: value for name, value in table.state().items() if name != "returns"}
    again.restore(earlier)
    assert again.returns.tolist() == [1.0] * 6, "a state without returns: every match was for 1"


def test_members_have_names() -> None:
    assert (member_name(40), member_name(2 * EXPLOITER + 60)) == ("main 40", "exploiter2 60")


# ---------------------------------------------------------------------------------------------------------- opponents


@pytest.mark.parametrize(
    ("matchmaking", "expected"),
    [("latest", [0, 0, 1]), ("uniform", [1 / 3] * 3), ("pfsp", [0.09, 0.49, 0.81]), ("nash", [0, 1, 0])],
)
def test_whom_main_meets(matchmaking: str, expected: list[float], tmp_path: Path) -> None:
    job = job_of(tmp_path, league={**SMALL["league"], "matchmaking": matchmaking, "exploiters": 0, "latest": 0.0})
    pool = pool_of(job)
    pool.snapshots = [Snapshot(1, won=6, played=8), Snapshot(2, won=2, played=8), Snapshot(3, won=0, played=8)]
    pool.snapshots = [Snapshot(version, won=10 * p - 1, played=8) for version, p in ((1, 0.7), (2, 0.3), (3, 0.1))]
    for one, other in (("main 2", "main 1"), ("main 2", "main 3"), ("main 1", "main 3")):
        pool.table.record(one, other, np.ones(2))
    drawn = np.array([next(player for player in pool.draw(match) if player >= 0) for match in range(4000)])
    shares = [float((drawn == version).mean()) for version in (1, 2, 3)]
    assert shares == pytest.approx((np.array(expected) / sum(expected)).tolist(), abs=0.03)
    job.close()


def test_exploiters_meet_main_alone_and_in_both_seats(tmp_path: Path) -> None:
    job = job_of(tmp_path, league={**SMALL["league"], "exploiters": 2})
    pool = pool_of(job)
    pool.snapshots = [Snapshot(1)]
    drawn = [tuple(pool.draw(match)) for match in range(120)]
    assert set(drawn[1::3]) == {(-2, -1), (-1, -2)}
    assert set(drawn[2::3]) == {(-3, -1), (-1, -3)}
    assert set(drawn[::3]) == {(-1, -1), (-1, 1), (1, -1)}
    pool.record((-2, -1), np.array([2.0, -2.0]))
    pool.record((-1, 1), np.array([2.0, -2.0]))
    assert pool.metrics()["league/exploiter_score"] == 1.0
    assert (pool.snapshots[0].won, pool.snapshots[0].played) == (1.0, 1.0)
    job.close()


def test_exploiters_meet_the_equilibrium_of_the_population(tmp_path: Path) -> None:
    job = job_of(tmp_path, league={**SMALL["league"], "exploiters": 1, "exploiters_meet": "nash", "latest": 1.0})
    pool = pool_of(job)
    assert [tuple(pool.draw(match)) for match in (1, 3)] == [(-2, -1), (-1, -2)], "nobody has joined: main"
    pool.snapshots = [Snapshot(1), Snapshot(2)]
    pool.table.record("main 2", "main 1", np.ones(2))  # the equilibrium is the second alone
    drawn = {tuple(pool.draw(match)) for match in range(1, 100, 2)}
    assert drawn == {(-2, 2), (2, -2)}
    assert {tuple(pool.draw(match)) for match in range(0, 100, 2)} == {(-1, -1)}
    pool.record((2, -2), np.array([2.0, -2.0]))
    assert pool.metrics()["league/exploiter_score"] == 0.0
    assert (pool.snapshots[1].won, pool.snapshots[1].played) == (0.0, 0.0), "not a match of main"
    job.close()


def test_exact_payoffs_are_expected_returns_of_the_tree(tmp_path: Path) -> None:
    job = job_of(tmp_path, league={**SMALL["league"], "payoffs": "exact", "payoff_matches": 2}, steps=2)
    train(job.recipe, steps=2, callback=StepRecorder())
    pool, play = pool_of(job), TreePlay(tree=game_tree("kuhn_poker"))
    names = [member_name(snapshot.version) for snapshot in pool.snapshots]
    arrays = infoset_probabilities(play, _kuhn_layout(), [policy.numpy_policy() for policy in pool.policies()])
    expected = np.array([[slow_return(play, one, other) for other in arrays] for one in arrays])
    np.testing.assert_allclose(pool.table.mean_returns(names, pool.table.returns), expected, atol=1e-9)
    np.testing.assert_allclose(expected, -expected.T, atol=1e-9)
    assert len(names) == 3
    job.close()


def _kuhn_layout() -> SeatLayout:
    game = CompiledGame("kuhn_poker")
    game.reset(0)
    return SeatLayout.from_game(game, "compiled:kuhn_poker")


def slow_return(play: TreePlay, one: np.ndarray, other: np.ndarray) -> float:
    """Payments to `one`, history by history, with `one` in either seat."""
    tree, total = play.tree, 0.0
    leaves = sorted(set(range(len(tree.parent))) - set(tree.parent.tolist()))
    for seat in range(2):
        for leaf in leaves:
            chance, at = 1.0, leaf
            while tree.parent[at] >= 0:
                above = int(tree.parent[at])
                mover = int(tree.mover[above])
                policy = one if mover == seat else other
                edge = tree.chance[at] if mover < 0 else policy[tree.infoset[above], tree.action[at]]
                chance, at = chance * float(edge), above
            total += chance * float(tree.paid[leaf, seat])
    return total / 2


def test_an_exploiter_of_the_equilibrium_joins_nearly_as_its_mode(tmp_path: Path) -> None:
    job = job_of(tmp_path, league={**SMALL["league"], "exploiters_meet": "nash"}, steps=2)
    train(job.recipe, steps=2, callback=StepRecorder())
    play, layout = TreePlay(tree=game_tree("kuhn_poker")), _kuhn_layout()
    (joined,) = [
        policy for policy, snapshot in zip(pool_of(job).policies(), pool_of(job).snapshots, strict=True)
        if snapshot.version >= EXPLOITER
    ]  # fmt: skip
    exploiter = Exploiter(job.recipe.learner.learners[-2])
    soft, sharp, arrived = infoset_probabilities(
        play, layout, [exploiter.policy.numpy_policy(), exploiter.sharpened(50.0).numpy_policy(), joined.numpy_policy()]
    )
    legal = play.tree.legal
    logits = np.where(legal, 50.0 * np.log(np.where(legal, soft, 1.0)), -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(sharp, weights / weights.sum(axis=1, keepdims=True), atol=1e-4)
    assert arrived.max(axis=1).mean() > soft.max(axis=1).mean()
    job.close()


# --------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_is_the_uninterrupted_one(staleness: int, tmp_path: Path) -> None:
    more: dict[str, Any] = {"algorithm": {"max_staleness": staleness}}
    straight, whole = job_of(tmp_path / "straight", **more), StepRecorder()
    train(straight.recipe, steps=5, callback=whole)
    first, begun = job_of(tmp_path / "cut", **more), StepRecorder()
    train(first.recipe, steps=3, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")
    train(first.recipe, steps=4, callback=StepRecorder(), first_step=4)  # lost with the process
    first.close()
    second, state = job_of(tmp_path / "cut", **more), read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=5, callback=begun, first_step=4)
    assert begun.lines == whole.lines
    assert straight.evaluate is not None
    assert second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    straight.close()
    second.close()
    logs = [MatchLog(path=tmp_path / name / FILE) for name in ("straight", "cut")]
    for table in ("matches", "members", "payoffs", "weights", "ratings"):
        assert logs[0].rows(table) == logs[1].rows(table), table


def test_an_exploiter_joins_the_population_and_begins_anew(tmp_path: Path) -> None:
    job = job_of(tmp_path, steps=2)
    exploiter = job.recipe.learner.learners[-2].policy
    before = {name: value.clone() for name, value in exploiter.state_dict().items()}
    train(job.recipe, steps=1, callback=StepRecorder())
    assert any(not value.equal(before[name]) for name, value in exploiter.state_dict().items())
    job = job_of(tmp_path, steps=2)
    train(job.recipe, steps=2, callback=StepRecorder())
    assert all(value.equal(before[name]) for name, value in job.recipe.learner.learners[-2].policy.state_dict().items())
    names = {row[0] for row in MatchLog(path=tmp_path / FILE).rows("members")}
    assert names == {"main 1", "main 2", "exploiter1 2"}
    assert job.recipe.learner.learners[-2].updates == 0
    job.close()


def test_only_main_s_and_the_exploiters_decisions_are_learned_from(tmp_path: Path) -> None:
    job, seen = job_of(tmp_path), list[Any]()
    train(job.recipe, steps=4, callback=lambda step, episodes, credits, metrics: seen.append((episodes, credits)))
    assert all(set(np.unique(episodes.played_by)) == {-2, -1} for episodes, _ in seen)
    for episodes, credits in seen:  # standardised within each learner
        for player in (-1, -2):
            own = credits.advantage[episodes.played_by[episodes.owner] == player]
            assert abs(own.mean()) < 1e-4
            assert own.std() == pytest.approx(1, abs=1e-3)
    job.close()


@pytest.mark.parametrize("met", [True, False])
def test_a_torn_member_is_met_no_more_and_the_run_goes_on(met: bool, tmp_path: Path) -> None:
    """Whoever reads it first: a worker that plays against it, or the payoffs of a new member."""
    job = job_of(tmp_path, steps=6, league={**SMALL["league"], "latest": 0.0, "exploiters": 0})
    train(job.recipe, steps=3, callback=StepRecorder())
    weights = tmp_path / "opponents" / "00000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7] + b"torn it")
    if met:
        _open_player.cache_clear()
        source_of(job).collect()
        source_of(job).begun -= 16
        source_of(job).log.forget_after(9, first_match=3 * 16)
    pool_of(job).loaded.clear()
    train(job.recipe, steps=4, callback=StepRecorder(), first_step=4)
    assert [snapshot.version for snapshot in pool_of(job).snapshots] == [1, 3, 4, 5]
    (line,) = [line for line in job.pop_notices() if "drawn no more" in line]
    assert line.startswith("opponent 2 is drawn no more:")
    assert "00000002" in line
    assert "weights are not those that the run saved" in line
    assert source_of(job).log.count() == source_of(job).begun == 4 * 16
    job.close()


@pytest.mark.parametrize("recipe", ["ippo", "ia2c", "league"])
def test_a_gate_keeps_a_snapshot_out_that_is_no_better(recipe: str, tmp_path: Path) -> None:
    """Two matches cannot reach the evidence that is needed: only the first snapshot joins."""
    spec, gate = load_recipe(recipe), {"matches": 2}
    opponents = {"league": {**SMALL["league"], "gate": gate, "exploiters": 0}}
    if recipe != "league":
        opponents = {"opponents": {"kind": "past", "every": 1, "gate": gate}}
    tables = {key: value for key, value in SMALL.items() if key != "league"} | opponents
    job = spec.build(
        spec.config.model_validate({"recipe": recipe, "name": "x", "steps": 3, "rollout_steps": 4, **tables})
    )
    job.open_folder(tmp_path)
    train(job.recipe, steps=3, callback=StepRecorder())
    assert [place.name for place in (tmp_path / "opponents").iterdir()] == ["00000001"]
    assert job.recipe.source.metrics()["opponents/accepted"] == 0.0
    job.close()


def test_the_page_and_the_record_agree(tmp_path: Path) -> None:
    job = job_of(tmp_path, steps=4)
    train(job.recipe, steps=4, callback=StepRecorder())
    assert job.evaluate is not None
    found = job.evaluate().metrics
    (line,) = job.closing_lines()
    job.close()
    assert line == f"league: {tmp_path / 'league.html'}"
    page = (tmp_path / "league.html").read_text()
    for words in ("Who beats whom", "The equilibrium of the population", "Ladder", "Exploitability", "exploiter1 2"):
        assert words in page
    with sqlite3.connect(tmp_path / FILE) as database:
        ((value,),) = database.execute("select value from figures where name = 'nash_conv'")
        ((total,),) = database.execute("select sum(weight) from weights where step = 4")
    assert value == found["eval/nash_conv"]
    assert total == pytest.approx(1)


def test_an_empty_record_has_a_page(tmp_path: Path) -> None:
    assert "0 matches" in write_league_page(tmp_path).read_text()


def test_a_member_plays_elsewhere(tmp_path: Path) -> None:
    job = job_of(tmp_path, steps=1)
    train(job.recipe, steps=1, callback=StepRecorder())
    job.close()
    spec = load_recipe("league")
    assert spec.evaluate is not None
    tables = {"recipe": "league", "name": "x", "steps": 1, **SMALL}
    member = str(tmp_path / "opponents" / "00000001")
    tables["evaluation"] = {"against": [member, "random"], "nash_conv": True}
    config = spec.config.model_validate(tables)
    metrics = spec.evaluate(config, EvaluationRequest(policy=Path(member), episodes=4, seed=1))
    assert {"eval/random/score", "eval/00000001/score", "eval/nash_conv"} <= metrics.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"id": "seat_games:UnevenGame", "num_envs": 4}}, "has 3 seats: payoffs of a league are of two"),
        ({"opponents": {"kind": "self"}}, "a league has its own"),
        ({"env": {**KUHN, "sharing": "independent"}}, "a league needs one policy for every seat"),
        (
            {"env": {"id": "compiled:connect_four", "num_envs": 4}, "league": {"payoffs": "exact"}},
            "needs the whole tree of a game",
        ),
        ({"algorithm": {"normalise": {"rewards": True}}}, "algorithm.normalise: members of a league"),
        ({"league": {"anchors": ["mcts:5"]}}, "tree search with a network is for"),
    ],
)
def test_what_does_not_go_together_is_told_before_the_run(changes: dict[str, Any], message: str) -> None:
    spec = load_recipe("league")
    with pytest.raises(ConfigError, match=message):
        spec.check(spec.config.model_validate({"recipe": "league", "name": "x", "steps": 1, **SMALL, **changes}))
