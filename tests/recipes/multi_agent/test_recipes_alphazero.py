"""AlphaZero: it learns, workers and resumes change no bit, and every match is in the record once."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder

from hone.control.networks.seats import PolicyValueNetwork
from hone.control.seats.compiled_games import CompiledGame
from hone.control.seats.evaluation import open_arena
from hone.control.seats.game import SeatsConfig
from hone.control.seats.match_blocks import (
    BlockLedger,
    BlockPlayer,
    BlockResult,
    MatchBlock,
    ProcessBlocks,
)
from hone.control.seats.match_log import FILE, MatchLog
from hone.control.seats.match_source import MatchSource
from hone.control.seats.matches import SeatLayout
from hone.control.seats.players import MctsPlayer, RandomPlayer, SearchPlayer, TreeSearchConfig
from hone.control.seats.search_training import RecentMatches, SearchRows, search_rows
from hone.control.seats.whole_matches import MatchTable, MatchTicket, PlayedMatch
from hone.core.credit import NO_VALUES
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.state import substate
from hone.credit.returns import discounted_returns
from hone.process.child import ChildProcess
from hone.recipes.registry import load_recipe
from hone.run.job import EvaluationRequest, TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

ENV = {"id": "compiled:connect_four", "num_envs": 8}
SMALL = {
    "rollout_steps": 2, "algorithm": {"window": 2}, "network": {"hidden": [16]},
    "search": {"simulations": 6, "evaluation_simulations": 6},
    "learner": {"lr": 1e-3, "minibatches": 4}, "evaluation": {"episodes": 4, "against": ["random"]},
}  # fmt: skip


def job_of(folder: Path, steps: int = 4, **more: Any) -> TrainingJob[Any]:
    spec = load_recipe("alphazero")
    tables = {"recipe": "alphazero", "name": "x", "seed": 3, "steps": steps, "env": ENV, **SMALL, **more}
    job = spec.build(spec.config.model_validate(tables))
    job.open_folder(folder)
    return job


def source_of(job: TrainingJob[Any]) -> MatchSource:
    assert isinstance(job.recipe.source, RecentMatches)
    assert isinstance(job.recipe.source.source, MatchSource)
    return job.recipe.source.source


def test_a_resumed_run_is_the_uninterrupted_one_and_forgets_what_it_plays_again(tmp_path: Path) -> None:
    straight, whole = job_of(tmp_path / "straight"), StepRecorder()
    train(straight.recipe, steps=4, callback=whole)
    first, begun = job_of(tmp_path / "cut"), StepRecorder()
    train(first.recipe, steps=2, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")
    train(first.recipe, steps=3, callback=StepRecorder(), first_step=3)  # lost with the process
    first.close()
    second, state = job_of(tmp_path / "cut"), read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=4, callback=begun, first_step=3)
    assert begun.lines == whole.lines
    logs = [MatchLog(path=tmp_path / name / FILE) for name in ("straight", "cut")]
    assert logs[0].rows("matches") == logs[1].rows("matches")
    assert logs[0].count() == 4 * 16
    for job in (straight, second):
        job.close()


@pytest.mark.slow  # each worker imports torch
def test_two_of_four_killed_workers_lose_no_match_and_change_no_bit(tmp_path: Path) -> None:
    alone, told = job_of(tmp_path / "alone", steps=2, workers={"count": 0}), StepRecorder()
    train(alone.recipe, steps=2, callback=told)
    many, heard = (
        job_of(tmp_path / "many", steps=2, workers={"count": 4}, rollout_steps=8, env={**ENV, "num_envs": 2}),
        StepRecorder(),
    )
    runner = source_of(many).runner
    assert isinstance(runner, ProcessBlocks)
    killed: list[int] = []
    send = ChildProcess.send

    def send_and_kill(child: ChildProcess[Any], data: bytes) -> None:
        send(child, data)
        if b'"tickets"' in data and len(killed) < 2 and child.pid not in killed:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChildProcess, "send", send_and_kill)
        train(many.recipe, steps=2, callback=heard)
    assert (len(killed), runner.losses) == (2, 2)
    assert "its matches are begun again" in runner.notices[0]
    logs = [MatchLog(path=tmp_path / name / FILE) for name in ("alone", "many")]
    numbers = [[row[0] for row in log.rows("matches")] for log in logs]
    assert numbers == [list(range(32))] * 2
    assert source_of(many).begun == logs[1].count() == 32
    many.close()
    alone.close()


@pytest.mark.slow  # the worker imports torch
def test_blocks_are_the_same_wherever_they_are_played(tmp_path: Path) -> None:
    """In this process, and in a child that is told nothing but the message."""
    job = job_of(tmp_path)
    job.recipe.source.publish(job.recipe.learner.policy)
    source = source_of(job)
    block = source._block([MatchTicket(number=number, players=(-1, -1)) for number in (5, 6)])
    here = BlockPlayer(env=SeatsConfig.model_validate(ENV), seed=3).play(block)
    ledger, runner = BlockLedger(blocks=[block]), ProcessBlocks(env=source.runner.player.env, seed=3, count=1)
    runner.run(ledger)
    runner.close()
    (there,) = ledger.in_order()
    assert there.played == here.played
    assert here.episodes is not None
    assert there.episodes is not None
    columns = there.episodes.columns()
    for name, values in here.episodes.columns().items():
        assert np.array_equal(values, columns[name]), name
    assert set(np.unique(here.episodes.match)) == {5, 6}
    assert (here.episodes.score[0], here.episodes.score[1]) == here.played[0].returns
    assert np.allclose(here.episodes.search_policy.sum(axis=1), 1)


@pytest.mark.slow  # starts a cluster
def test_tasks_of_a_ray_cluster_play_the_same_matches(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    alone, here = job_of(tmp_path / "alone", steps=2), StepRecorder()
    train(alone.recipe, steps=2, callback=here)
    many, there = job_of(tmp_path / "many", steps=2, workers={"count": 2, "on_ray": True}), StepRecorder()
    train(many.recipe, steps=2, callback=there)
    assert there.lines == here.lines
    assert source_of(many).log.count() == 32
    many.close()
    alone.close()


def blocks(count: int) -> list[MatchBlock]:
    ticket = MatchTicket(number=0, players=(-1, -1))
    return [MatchBlock(number=number, tickets=[ticket], players={}, learners={-1: 7}) for number in range(count)]


def test_a_result_counts_once_and_only_with_the_version_that_was_asked_for() -> None:
    ledger = BlockLedger(blocks=blocks(2))
    first = ledger.waiting.popleft()
    assert not ledger.accept(BlockResult(number=0, learners={-1: 6}))  # a worker with an old policy
    assert ledger.waiting[0] is first
    assert ledger.accept(BlockResult(number=0, learners={-1: 7}))
    assert not ledger.accept(BlockResult(number=0, learners={-1: 7}))
    assert not ledger.accept(BlockResult(number=9, learners={-1: 7}))
    assert (ledger.refused, ledger.duplicates, ledger.done) == (1, 2, False)
    ledger.lose(ledger.blocks[1])
    assert ledger.accept(BlockResult(number=1, learners={-1: 7}))
    assert (ledger.done, ledger.lost, [one.number for one in ledger.in_order()]) == (True, 1, [0, 1])


def test_workers_that_die_without_end_stop_the_run(tmp_path: Path) -> None:
    runner = ProcessBlocks(env=SeatsConfig.model_validate(ENV), seed=0, count=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ResourceError, match="11 workers of matches were lost"):
        patch.setattr("hone.control.seats.match_blocks._MODULE", "hone.no_such_module")
        runner.run(BlockLedger(blocks=blocks(1)))
    runner.close()


def test_torn_weights_of_the_learner_are_told_by_their_file(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    job.recipe.source.publish(job.recipe.learner.policy)
    weights = tmp_path / "versions" / "00000000" / "1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"versions/00000000/1/model.safetensors"):
        job.recipe.source.collect()
    job.close()


def test_a_match_is_written_once(tmp_path: Path) -> None:
    log = MatchLog(path=tmp_path / FILE)
    match = PlayedMatch(number=4, players=(-1, 3), returns=(1.0, -1.0), steps=9)
    log.add_matches(1, [match])
    log.add_matches(2, [match, PlayedMatch(number=5, players=(3, -1), returns=(0.0, 0.0), steps=42)])
    assert (log.duplicates, log.count()) == (1, 2)
    assert log.rows("matches")[0] == (4, 1, "[-1, 3]", "[1.0, -1.0]", 9)
    log.add("figures", [(1, "nash_conv", 0.5), (2, "nash_conv", 0.4)])
    log.forget_after(1, first_match=5)
    assert (log.count(), log.rows("figures")) == (1, [(1, "nash_conv", 0.5)])
    log.close()
    (tmp_path / FILE).write_bytes(b"x" * 4096)
    with pytest.raises(ResourceError, match=r"cannot open .*league.db: file is not a database"):
        log.count()


def test_a_mirrored_batch_has_every_position_twice() -> None:
    game = CompiledGame("connect_four")
    game.reset(0)
    layout = SeatLayout.from_game(game, "x")
    policy = PolicyValueNetwork(
        layout.policy_spaces, load_recipe("alphazero").config.model_fields["network"].default, seed=0
    )
    player = SearchPlayer(
        policy=policy.numpy_policy(), search=TreeSearchConfig(simulations=5, drawn_plies=4), explores=True
    )
    table = MatchTable(name="x", games=[game], layout=layout, max_steps=100, seed=1)
    episodes, (match,) = table.play([MatchTicket(number=0, players=(-1, -1))], {-1: player}, {-1: 0})
    assert episodes is not None
    assert episodes.decisions == match.steps
    credits = discounted_returns(episodes, NO_VALUES, discount=1.0)
    rows = search_rows(episodes, credits, mirror=game.mirror, device="cpu")
    count = episodes.decisions
    assert len(rows) == 2 * count
    assert torch.equal(rows.search_policy[:count], rows.search_policy[count:].flip(1))
    assert torch.equal(rows.target[:count], rows.target[count:])
    assert {float(value) for value in rows.target} <= {-1.0, 0.0, 1.0}
    assert np.array_equal(credits.target[: episodes.offsets[1]], np.full(episodes.lengths[0], match.returns[0]))


def test_the_loss_has_its_value_by_hand() -> None:
    """Two actions legal, logits equal: KL = log 2 - H; value tanh(0) = 0 against 1 gives 1/2."""
    job_config = load_recipe("alphazero").config.model_validate(
        {"recipe": "alphazero", "name": "x", "steps": 1, "env": ENV, **SMALL, "algorithm": {"value_weight": 3.0}}
    )
    game = CompiledGame("connect_four")
    game.reset(0)
    layout = SeatLayout.from_game(game, "x")
    policy = PolicyValueNetwork(layout.policy_spaces, job_config.network, seed=0)
    for parameter in policy.parameters():
        parameter.data.zero_()
    shares, mask = torch.zeros(1, 7), torch.zeros(1, 7, dtype=torch.bool)
    shares[0, :2], mask[0, :2] = torch.tensor([0.25, 0.75]), True
    rows = SearchRows(
        weight=torch.ones(1),
        seen=torch.zeros(1, layout.row_size),
        search_policy=shares,
        target=torch.ones(1),
        mask=mask,
    )
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    loss = job_config.method().objective(policy, rows).loss
    assert float(loss[0].detach()) == pytest.approx(np.log(2) - entropy + 3.0 / 2, rel=1e-5)


def test_a_policy_is_evaluated_with_its_search_and_plays_as_a_folder(tmp_path: Path) -> None:
    job = job_of(tmp_path, steps=1)
    train(job.recipe, steps=1, callback=StepRecorder())
    job.save_policy(tmp_path / "policy")
    job.close()
    spec = load_recipe("alphazero")
    assert spec.evaluate is not None
    tables = {"recipe": "alphazero", "name": "x", "steps": 1, "env": ENV, **SMALL}
    for players in (["random"], [str(tmp_path / "policy"), "mcts:5"]):
        tables["evaluation"] = {"episodes": 4, "against": players}
        found = spec.evaluate(
            spec.config.model_validate(tables), EvaluationRequest(policy=tmp_path / "policy", episodes=4, seed=1)
        )
        assert 0 <= found["eval/score"] <= 1


def test_poker_is_not_searched() -> None:
    with pytest.raises(ConfigError, match="tree search with a network is for"):
        load_recipe("alphazero").check(
            load_recipe("alphazero").config.model_validate(
                {"recipe": "alphazero", "name": "x", "steps": 1, "env": {"id": "compiled:kuhn_poker"}}
            )
        )


def test_more_playouts_play_better() -> None:
    game = CompiledGame("connect_four")
    game.reset(0)
    layout = SeatLayout.from_game(game, "x")
    arena = open_arena(lambda: CompiledGame("connect_four"), layout, matches=40, max_steps=100)
    strong, weak = MctsPlayer(60), MctsPlayer(4)
    returns = arena.play([[strong, weak], [weak, strong]] * 20, seed=1)
    assert returns[::2, 0].sum() + returns[1::2, 1].sum() >= 20
    returns = arena.play([[weak, RandomPlayer(layout)]] * 40, seed=1)
    assert returns[:, 0].sum() >= 10


def test_a_run_gets_better_within_seconds(tmp_path: Path) -> None:
    settings = {
        "rollout_steps": 1,
        "env": {**ENV, "num_envs": 48},
        "evaluation": {"episodes": 40, "against": ["random"]},
    }
    job = job_of(tmp_path, steps=5, **settings, search={"simulations": 16, "evaluation_simulations": 0})
    before = job.evaluate().metrics["eval/score"]
    train(job.recipe, steps=5, callback=StepRecorder())
    assert job.evaluate().metrics["eval/score"] >= max(0.75, before)
    job.close()
