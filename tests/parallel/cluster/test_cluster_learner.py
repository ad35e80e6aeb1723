"""Ranks of the learner as processes of a Ray cluster: the run of child processes of this machine, bit for bit."""

import os
import signal
from pathlib import Path

import pytest
from test_cluster_driver import descendants, wait_until_gone
from tiny_runs import differences, hone, lay_out, start, steps_logged, wait_for

from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig
from hone.parallel.group import RankMeeting
from hone.parallel.ranked_job import rank_tasks
from hone.parallel.ray_launcher import RayLauncher

pytestmark = pytest.mark.slow  # each starts Ray on its own, in a process
pytest.importorskip("ray")

RANKS = ("run.ranks=2", "run.certify=false", "run.checkpoint_every=1")
ON_RAY = ("cluster.learner.cpus=0.5",)


@pytest.fixture
def local(tmp_path, monkeypatch) -> Path:
    """The run of two ranks that are child processes."""
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    assert hone("train", "grpo.toml", "name=local", *RANKS) == 0
    return tmp_path / "runs/local"


def test_a_run_with_a_rank_on_ray_is_that_of_child_processes_also_when_the_rank_is_killed(tmp_path, local) -> None:
    driver = start(tmp_path, "train", "grpo.toml", "name=remote", *RANKS, *ON_RAY)
    run = tmp_path / "runs/remote"
    wait_for(lambda: steps_logged(run) >= 2, driver, seconds=240)
    below = descendants(driver.pid)
    rank = [pid for pid, _ in below if b"hone.recipes.rank_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(rank) == 1
    os.kill(rank[0], signal.SIGKILL)
    printed, _ = driver.communicate(timeout=400)
    assert driver.returncode == 0, printed
    assert "rank 1: its process was killed by SIGKILL" in printed
    assert "all ranks start again, from the last checkpoint (1 of 3)" in printed
    wait_until_gone(below, seconds=120.0)
    assert differences(local, run, step=6) == []


def test_ranks_stand_beside_replicas(tmp_path, local) -> None:
    fleet = ("cluster.rollout.cpus=0.5", "cluster.rollout.replicas=1")
    driver = start(tmp_path, "train", "grpo.toml", "name=both", *RANKS, *ON_RAY, *fleet)
    printed, _ = driver.communicate(timeout=400)
    assert driver.returncode == 0, printed
    assert "fleet: replica 1" in printed
    assert differences(local, tmp_path / "runs/both", step=6) == []


@pytest.mark.usefixtures("two_nodes")
def test_ranks_without_room_say_what_there_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = ClusterConfig.model_validate({"address": "auto", "patience_s": 2.0, "learner": {"cpus": 64}})
    assert cluster.rollout.replicas == 0
    launcher = RayLauncher(module="hone.recipes.rank_process", threads=1, cluster=cluster)
    meeting = RankMeeting(rank=0, ranks=2, virtual=0, patience_s=5.0, device="cpu", address=launcher.address())
    with pytest.raises(ResourceError, match=r"cluster.learner: 1 ranks of 64 CPUs .* found no room within 2 s"):
        launcher.launch(rank_tasks(meeting, recipe="grpo", config="{}"))
