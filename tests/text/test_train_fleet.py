"""Training with a fleet: the embedded engine's run, file by file and bit by bit, whatever happens to replicas."""

import os

import pytest
from inline_fleet import FaultRates, ThreadedTransport, inline_engine
from tiny_runs import differences, files_of, hone, lay_out, lines_of

from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.parallel import config as placing
from hone.parallel.config import ClusterConfig
from hone.run.store.interleaving import read_interleaving
from hone.text import fleet as opening

STEPS = ("steps=4", "run.certify=false")
AHEAD = ("state/state.json", "state/state.safetensors")
"""Files with the batch that was collected ahead."""
CHAOS = FaultRates(lost=0.1, hung=0.1, twice=0.2, flutter=0.1)


@pytest.fixture
def inline(monkeypatch):
    """Fleets of training runs stand in this process; returns them as they are made."""
    made = []

    def open_inline(config: ClusterConfig, decoder, settings):
        replicas, spares = config.rollout.replicas, config.rollout.spares
        engine, transport = inline_engine(decoder, settings, replicas=replicas, spares=spares, faults=CHAOS)
        made.append((engine, transport))
        return engine

    monkeypatch.setattr(opening, "open_fleet", open_inline)
    return made


GAME = """
recipe = "grpo"
[model]
compute = "float32"
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 64
alphabet = "0123456789-<>=? "
[task]
source = "dialogue:hone.text.games.guess:GuessingGame"
turns = 3
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 4
stop = [" "]
max_concurrent = 8
[learner]
lr = 1e-2
[run]
threads = 1
certify = false
"""


def test_dialogues_with_stop_strings_are_those_without_replicas(tmp_path, monkeypatch, inline) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.toml").write_text(GAME, encoding="utf-8")
    assert hone("train", "game.toml", "steps=2", "name=embedded") == 0
    assert (
        hone("train", "game.toml", "steps=2", "name=fleet", "cluster.rollout.cpus=0", "cluster.rollout.replicas=2") == 0
    )
    assert differences(tmp_path / "runs/embedded", tmp_path / "runs/fleet", step=2) == []
    ((_, transport),) = inline
    assert len(transport.asked) > 8


@pytest.mark.parametrize(("ahead", "replicas"), [pytest.param(0, 1, marks=pytest.mark.slow), (1, 3)])
def test_a_run_with_replicas_is_the_run_without(tmp_path, monkeypatch, capsys, inline, ahead, replicas) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    given = (*STEPS, f"rollout.max_staleness={ahead}")
    assert hone("train", "grpo.toml", *given, "name=embedded") == 0
    table = ("cluster.rollout.cpus=0", f"cluster.rollout.replicas={replicas}", "cluster.rollout.spares=1")
    assert hone("train", "grpo.toml", *given, "name=fleet", *table) == 0
    # A batch that was collected ahead is saved with its metrics, and some of these are times.
    but = ("state/state.json",) if ahead else ()
    assert differences(tmp_path / "runs/embedded", tmp_path / "runs/fleet", step=4, but=but) == []
    ((engine, transport),) = inline
    assert engine.report.losses
    assert not transport.is_open
    printed = capsys.readouterr().out
    assert "fleet: replica" in printed
    assert "replicas were lost" in printed


@pytest.mark.slow  # three runs
def test_a_resume_may_leave_the_cluster_and_join_another(tmp_path, monkeypatch, inline) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    assert hone("train", "grpo.toml", *STEPS, "name=whole") == 0
    assert hone("train", "grpo.toml", "steps=2", STEPS[1], "name=moved", "cluster.rollout.cpus=0") == 0
    assert hone("train", "grpo.toml", *STEPS, "name=moved", "--resume") == 0
    whole, moved = tmp_path / "runs/whole", tmp_path / "runs/moved"
    assert lines_of(whole) == lines_of(moved)
    assert files_of(whole, 4) == files_of(moved, 4)


TABLE = ("cluster.rollout.cpus=0", "cluster.rollout.replicas=2")
LONGER = (
    "steps=3", "rollout.runner=torch", "rollout.max_tokens=16", "rollout.max_concurrent=3", "learner.epochs=1",
    "learner.minibatches=1", "learner.lr=0.1", "run.certify=false", "run.checkpoint_every=99",
)  # fmt: skip


@pytest.mark.parametrize(
    "on_publish", ["keep", *(pytest.param(one, marks=pytest.mark.slow) for one in ("recompute", "finish"))]
)
def test_what_replicas_drew_while_weights_changed_is_replayed_to_the_bit(tmp_path, monkeypatch, on_publish) -> None:
    made = []

    def open_threaded(config: ClusterConfig, decoder, settings):
        replicas, kind = config.rollout.replicas, ThreadedTransport
        engine, transport = inline_engine(decoder, settings, replicas=replicas, clock=SystemClock(), transport=kind)
        made.append(transport)
        return engine

    monkeypatch.setattr(opening, "open_fleet", open_threaded)
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    table = f'rollout.max_staleness={{steps=1, on_publish="{on_publish}", '
    assert hone("train", "grpo.toml", table + "interleaving='record'}", *LONGER, *TABLE, "name=first") == 0
    record = read_interleaving(tmp_path / "runs/first/interleaving.jsonl")
    told = [one for batch in range(1, record.batches + 1) for one in record.read_batch(batch).versions.values()]
    assert any(len(one.versions) > 1 for one in told) == (on_publish != "finish")
    assert len(made) == 1
    assert len({replica for replica, _ in made[0].asked}) == 3  # one of two was lost
    cluster = TABLE if on_publish == "keep" else ()
    assert hone("train", "grpo.toml", table + 'interleaving="runs/first"}', *LONGER, *cluster, "name=again") == 0
    found = differences(tmp_path / "runs/first", tmp_path / "runs/again", step=3, but=AHEAD)
    assert [one for one in found if not one.startswith("metrics")] == []  # metrics count replicas and passes
    assert len(made) == 1  # a replay starts no replica


def test_the_plan_says_who_stands_where(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    lay_out(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    assert hone("train", "grpo.toml", "--dry-run", "cluster.rollout.replicas=2", "cluster.rollout.spares=1") == 0
    printed = capsys.readouterr().out
    assert "2 and 1 spares on this machine, each 1 CPUs, 1 threads = 3 CPUs" in printed
    assert "this process: learner, rewards, evaluation, checkpoints" in printed


def test_impossible_placements_and_a_missing_ray_are_told_before_the_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    monkeypatch.setattr(placing, "find_spec", lambda name: None)
    assert hone("train", "grpo.toml", "cluster.rollout.replicas=4", "cluster.rollout.gpus=1") == 5
    told = capsys.readouterr().err
    assert "pip install 'hone-rl[ray]'" in told
    assert "4 replicas of 1 CPUs and 1 GPUs each have no room; there is room for 0 (this machine: 2 CPUs" in told
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ResourceError, match=r"hone-rl\[ray\]"):
        placing.require_ray()


def test_a_server_and_replicas_exclude_each_other(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    runner = 'rollout.runner={ kind = "vllm", url = "http://localhost:8000" }'
    assert hone("train", "grpo.toml", runner, "cluster.rollout.cpus=0") == 2
    assert "leave out one of them" in capsys.readouterr().err
