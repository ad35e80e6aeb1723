"""Plans and faults of `run.ranks` before any process is started, and the restarts of a run that lost a rank."""

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.support import tiny_runs

from hone.core.errors import LostRankError, ResourceError
from hone.parallel import group as rank_group
from hone.parallel.group import RankMeeting, open_meeting
from hone.parallel.ranked_job import LocalLauncher, RankTask, _driver_meeting, rank_tasks
from hone.recipes.ranked_run import over_ranks
from hone.run import run as runner
from hone.run.job import RunConfig, RunSettings
from hone.run.resume import ranks_note

MEETING = RankMeeting(rank=0, ranks=3, virtual=0, patience_s=5.0, device="cpu")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_runs.lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.toml").write_text('recipe = "q_learning"\nsteps = 2\nfinite = { world = { kind = "grid" } }\n')
    return tmp_path


def test_the_plan_says_who_stands_where(place, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert tiny_runs.hone("plan", "sft.toml", "run.ranks=2", "run.virtual_ranks=4") == 0
    said = capsys.readouterr().out
    assert "rank 0: this process, on cpu, with rollouts; rank 1: child process on cpu" in said
    assert "4 shares of each batch: equal bits on 1 to 4 ranks" in said


def test_ranks_in_a_cluster_stand_in_the_plan_and_the_driver_generates(place, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert tiny_runs.hone("plan", "grpo.toml", "run.ranks=2", "cluster.learner.cpus=0.5") == 0
    said = capsys.readouterr().out
    assert "rank 0: this process, on cpu, with rollouts; rank 1: in Ray (local), 0.5 CPUs" in said
    assert "replicas" not in said
    assert tiny_runs.hone("plan", "grpo.toml", "run.ranks=2", "cluster.learner.cpus=0.5", "cluster.rollout.cpus=0") == 0
    assert "replicas" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sft.toml", "run.ranks=2", "run.virtual_ranks=3"), "virtual_ranks = 3 with ranks = 2: it must be a power"),
        (("sft.toml", "run.ranks=3", "run.virtual_ranks=4"), "virtual_ranks = 4 with ranks = 3: it must be a power"),
        (("sft.toml", "run.ranks=0"), "run.ranks"),
        (("sft.toml", "run.ranks=6"), "run.ranks = 6: an optimizer step has 5 sequences, fewer than 6 shares"),
        (("sft.toml", "run.virtual_ranks=8"), "run.virtual_ranks = 8: an optimizer step has 5 sequences"),
        (("grpo.toml", "cluster.learner.cpus=1"), "cluster.learner places the ranks of the learner, and run.ranks = 1"),
        (("table.toml", "run.ranks=2"), "q_learning has no steps along a gradient that ranks"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_the_start(place, capsys, words, says):
    assert tiny_runs.hone("train", *words) == 2
    assert says in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"rank 0 cannot listen on 127.0.0.1, port {port}.*nothing was started"):
            open_meeting(replace(MEETING, port=port))


def test_the_system_chooses_a_free_port():
    one, first = open_meeting(MEETING)
    other, second = open_meeting(MEETING)
    assert first != second
    del one, other


def test_a_torch_without_process_groups_is_refused(monkeypatch):
    monkeypatch.setattr(rank_group.dist, "is_available", lambda: False)
    with pytest.raises(ResourceError, match=r"this build of torch has no torch\.distributed"):
        open_meeting(MEETING)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = RunConfig(recipe="x", name="x", steps=1, run=RunSettings(ranks=2, device="cuda"))
    with pytest.raises(ResourceError, match=r"run\.ranks = 2: a rank needs a GPU of its own, and there are 1"):
        _driver_meeting(config, LocalLauncher(module="x", threads=1))


def test_each_rank_is_told_its_number_and_gpu():
    tasks = rank_tasks(replace(MEETING, device="cuda:0", port=7), recipe="r", config="{}")
    assert [(task.meeting.rank, task.meeting.device, task.meeting.port) for task in tasks] == [
        (1, "cuda:1", 7),
        (2, "cuda:2", 7),
    ]
    assert [RankTask.from_json(task.to_json().encode()) for task in tasks] == tasks


def test_a_rank_that_cannot_start_is_told_of_with_its_output():
    launcher = LocalLauncher(module="hone.no_such_module", threads=1)
    ranks = launcher.launch(rank_tasks(replace(MEETING, ranks=2), recipe="r", config="{}"))
    try:
        with pytest.raises(ResourceError, match=r"rank 1: its process exited with code 1.*no_such_module"):
            ranks.wait_ready("started")
    finally:
        ranks.close()


def test_one_process_builds_as_ever():
    def build(config):
        raise AssertionError

    config = RunConfig(recipe="x", name="x", steps=1)
    assert over_ranks(SimpleNamespace(build=build), build, config) is build


def restarted(monkeypatch, tmp_path: Path, losses: int, *, saved: bool = True) -> tuple[list[bool], list[str]]:
    """`resume` of each start of a run that loses a rank so often, and what the user is told."""
    starts: list[bool] = []
    told: list[str] = []

    def start(request, progress, clock):
        starts.append(request.resume)
        if len(starts) <= losses:
            if saved:
                (tmp_path / "x").mkdir(exist_ok=True)
                (tmp_path / "x" / "manifest.json").touch()
            raise LostRankError("rank 1: gone")
        assert len(request.notes) == losses
        return "done"

    monkeypatch.setattr(runner, "_run_once", start)
    config = RunConfig(recipe="x", name="x", steps=1)
    request = runner.RunRequest(config=config, settings={}, build=lambda config: None, root=tmp_path)
    assert runner.run(request, progress=SimpleNamespace(note=told.append)) == "done"
    return starts, told


def test_a_lost_rank_starts_the_run_again_from_its_checkpoint(monkeypatch, tmp_path):
    starts, told = restarted(monkeypatch, tmp_path, 2)
    assert starts == [False, True, True]
    assert told[1] == "rank 1: gone; all ranks start again, from the last checkpoint (2 of 3)"


def test_a_rank_lost_before_the_run_was_begun_begins_it_again(monkeypatch, tmp_path):
    assert restarted(monkeypatch, tmp_path, 1, saved=False)[0] == [False, False]


def test_the_fourth_loss_ends_the_run(monkeypatch, tmp_path):
    with pytest.raises(LostRankError) as error:
        restarted(monkeypatch, tmp_path, 4)
    assert error.value.exit_code == 5


def test_a_resume_on_other_ranks_says_what_it_keeps():
    config = RunConfig(recipe="x", name="x", steps=1)
    exact = config.model_copy(update={"run": RunSettings(virtual_ranks=4)})
    assert "to rounding, not to the bit" in ranks_note(["run.ranks: 2 -> 1"], config)[0]
    assert ranks_note(["run.ranks: 2 -> 1"], exact) == ranks_note(["steps: 2 -> 1"], config) == []
