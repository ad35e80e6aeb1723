"""Environments and commands on a Ray cluster: the same trajectories, losses that are made up for, runs that save."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hone.control.environments.make import GymConfig
from hone.control.environments.ray_blocks import RayBlockHandle, block_transport
from hone.control.environments.remote_block import RemoteProcess
from hone.control.environments.subprocess_env import ProcessVectorEnv
from hone.control.environments.world import GymWorld, open_world
from hone.core.episodes import Episodes
from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig
from hone.parallel.connect import NO_FOLDER, RayCommands
from hone.parallel.doctor import inspect_cluster
from hone.process.commands import HoneCommand, run_commands
from hone.run.store.checkpoints import CheckpointFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_nodes"), pytest.mark.filterwarnings("ignore")]
WORLDS: list[GymWorld] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while WORLDS:
        WORLDS.pop().close()


class Uniform:
    """Actions of a discrete space, from the given noise."""

    version = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random(shape)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (noise * 2).astype(np.int64), np.zeros(len(seen))


def world(**settings: object) -> GymWorld:
    config = GymConfig.model_validate({"id": "FrozenLake-v1", "num_envs": 4, "check": False, **settings})
    WORLDS.append(open_world(config, steps=20, seed=1, transport=block_transport(config)))
    return WORLDS[-1]


def handles(opened: GymWorld) -> list[RayBlockHandle]:
    assert isinstance(opened.envs, ProcessVectorEnv)
    found = [block.process.handle for block in opened.envs._blocks if isinstance(block.process, RemoteProcess)]
    return [one for one in found if isinstance(one, RayBlockHandle)]


def columns(episodes: Episodes) -> bytes:
    return b"".join(one.tobytes() for one in (episodes.observations, episodes.reward, episodes.offsets))


def test_trajectories_are_the_same_for_any_number_of_actors() -> None:
    expected = [columns(world(isolation="none").rollout(Uniform())) for _ in range(1)]
    for workers in (1, 2):
        assert [columns(world(isolation="ray", workers=workers).rollout(Uniform()))] == expected


def test_more_actors_than_cores_are_refused() -> None:
    with pytest.raises(ResourceError, match=r"5 actors need a CPU core each, and the Ray cluster has 4"):
        world(isolation="ray", workers=5, num_envs=5)


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_lost_process_actor_or_a_hang_costs_one_block(victim: int, number: int) -> None:
    """`victim` 0 is the actor, 1 the process of its environments."""
    import ray

    opened = world(isolation="ray", workers=2, step_timeout_s=3.0)
    opened.rollout(Uniform())
    second = handles(opened)[1]
    pid = ray.get(second.actor.pids.remote())[victim]
    os.kill(pid, number)
    episodes = opened.rollout(Uniform())
    assert (~episodes.scored).sum() == 2
    (note,) = opened.pop_notices()
    assert "They restart with other seeds" in note, note
    assert opened.rollout(Uniform()).scored.all()


def test_commands_run_on_the_cluster_and_save_when_they_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('recipe = "ppo"\nsteps = 100000\n[env]\nid = "CartPole-v1"\n')
    runner = RayCommands(2, address="local", folder=tmp_path)
    quick = [HoneCommand(name="good", arguments=("--version",)), HoneCommand(name="bad", arguments=("trian",))]
    ends = run_commands(quick, runner)
    assert (ends["good"].code, ends["bad"].code) == (0, 2) and "did you mean train" in ends["bad"].lines[0]
    checkpoints = CheckpointFolder(folder=tmp_path / "runs/long/checkpoints")
    long = HoneCommand(name="long", arguments=("train", "run.toml", "name=long", "run.checkpoint_every=2"))
    end = run_commands([long], runner, stopping=lambda: bool(checkpoints.steps()))["long"]
    assert end.code == 143 and "saved in runs/long/checkpoints" in end.lines[-1]
    elsewhere = RayCommands(1, address="local", folder=tmp_path / "nowhere")
    assert run_commands(quick[:1], elsewhere)["good"].code == NO_FOLDER


def test_nothing_is_left_of_a_killed_task(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('recipe = "ppo"\nsteps = 100000\n[env]\nid = "CartPole-v1"\n')
    runner = RayCommands(1, address="local", folder=tmp_path)
    runner.start(HoneCommand(name="long", arguments=("train", "run.toml", f"--runs={tmp_path}/runs")))
    while not list(tmp_path.glob("runs/*/manifest.json")):
        runner.wait(0.2)
    runner.close()
    limit = time.monotonic() + 300
    while time.monotonic() < limit and any(str(tmp_path) in words for words in _commands()):
        time.sleep(0.2)
    assert [words for words in _commands() if str(tmp_path) in words] == []


def _commands() -> list[str]:
    found: list[str] = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(one.read_text(errors="replace"))
        except OSError:
            continue
    return found


def test_the_doctor_asks_both_nodes(tmp_path: Path) -> None:
    found = inspect_cluster("local", tmp_path)
    told = [f"{one.subject}: {one.observed}" for one in found]
    assert sum("reads and writes" in text for text in told) == 2 and sum("2 CPUs" in text for text in told) == 2, told
    assert all(one.verdict == "ok" for one in found), found
    assert list(tmp_path.iterdir()) == []
    config = ClusterConfig.model_validate({"rollout": {"replicas": 9}})
    (full, store, *_) = [one for one in inspect_cluster("local", tmp_path, config=config, weights_bytes=10**9)
                         if one.verdict == "fail"]  # fmt: skip
    assert "9 replicas of 1 CPUs" in full.observed and "there is room for 4" in full.fix
    assert "holds 128 MiB" in store.observed and "--object-store-memory" in store.fix
