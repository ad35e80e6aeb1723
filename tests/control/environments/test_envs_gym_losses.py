"""Environments lost again and again: a budget, what is saved when it is spent, and nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended_processes import gone
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from process_worlds import WALK, Chance, end_worlds, lived, opened, pids_of, processes, worlds

from hone.control.environments.make import env_seeds
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.environments.subprocess_env import LOST_KEY
from hone.control.environments.world import GymConfig, world_from_envs
from hone.core.episodes import ScoreStatus
from hone.core.errors import ResourceError


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    end_worlds()


# ------------------------------------------------------------------------------------------ again and again


def test_dying_at_every_step_stops_the_run_past_the_budget() -> None:
    world = opened(kwargs={"act": "_exit", "at": 1}, faults_allowed=3)
    with pytest.raises(ResourceError) as caught:
        lived(world, 1)
    assert caught.value.exit_code == 5
    for word in ["lost 4 times within 10000 steps", "allowed are 3 (env.faults_allowed)", "licence server", "--resume"]:
        assert word in str(caught.value)


def test_dying_in_each_reset_stops_the_run_past_the_budget() -> None:
    world = opened(kwargs={"act": "_exit", "where": "reset"}, faults_allowed=2, steps=200)
    with pytest.raises(ResourceError, match=r"lost 3 times .* allowed are 2"):
        lived(world, 5)


def test_losses_far_apart_are_borne() -> None:
    """Every environment dies in its 10th step: the process of each block is lost every 10 steps."""
    world = opened(kwargs={"act": "_exit", "at": 10}, num_envs=1, workers=1, faults_allowed=1, fault_window=10)
    assert sum(int((~episodes.scored).sum()) for episodes in lived(world, 2)) == 5
    assert world.metrics() == {"env/faults": 5.0}
    strict = opened(kwargs={"act": "_exit", "at": 10}, num_envs=1, workers=1, faults_allowed=1, fault_window=11)
    with pytest.raises(ResourceError, match="lost 2 times within 11 steps"):
        lived(strict, 2)


def test_what_is_saved_when_the_budget_is_spent_can_be_resumed() -> None:
    world = opened(kwargs={"act": "_exit", "at": 30}, faults_allowed=0)
    lived(world, 1)
    with pytest.raises(ResourceError):
        lived(world, 1)
    state = world.state()
    assert state["rollouts"] == 1
    mended = opened(faults_allowed=0)
    mended.restore(state)
    assert all(episodes.scored.all() for episodes in lived(mended, 2))
    assert mended.rollouts == 3


def test_a_judgement_leaves_out_what_was_lost() -> None:
    target = env_seeds(11, 6)[4]
    config = GymConfig(id=WALK, workers=3, kwargs={"act": "_exit", "at": 1, "seed": target})
    arena = open_evaluation_envs(config, episodes=6)
    played = play_episodes(arena, lambda seen: np.zeros(len(seen), np.int64), seed=11)
    arena.close()
    fine = open_evaluation_envs(GymConfig(id=WALK, isolation="none"), episodes=6)
    expected = play_episodes(fine, lambda seen: np.zeros(len(seen), np.int64), seed=11).returns
    assert (played.lost_episodes, played.truncated_episodes) == (2, 0), "environments 4 and 5 share a process"
    assert played.returns.tolist() == expected[:4].tolist()


# ------------------------------------------------------------------------------------------ nothing is left behind


def test_closing_ends_every_process() -> None:
    world = opened()
    pids = pids_of(world)
    assert len(pids) == 2
    world.close()
    assert all(gone(pid) for pid in pids)


def test_forgetting_to_close_ends_them_too() -> None:
    world = opened()
    pids = pids_of(world)
    worlds.clear()
    del world
    gc.collect()
    assert all(gone(pid) for pid in pids)


def test_what_an_environment_started_goes_with_it() -> None:
    world = opened(kwargs={"act": "breed", "at": 4}, faults_allowed=0)
    with pytest.raises(ResourceError):
        lived(world, 1)
    token = "import time; time.sleep(1001)"  # nobody else's
    assert all(gone(pid) for pid in processes(token))


def test_a_killed_trainer_leaves_nothing_even_while_an_environment_hangs(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(f"""
        import numpy as np
        from hone.control.environments.world import GymConfig, open_world
        config = GymConfig(id={WALK!r}, num_envs=2, workers=2, check=False, kwargs={{"act": "loop", "at": 1}})
        world = open_world(config, steps=4, seed=3)
        print(*[block.process.pid for block in world.envs._blocks], flush=True)
        world.envs.step(np.zeros(2, np.int64))
        """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pids = [int(word) for word in trainer.stdout.readline().split()]
        time.sleep(0.2)
        assert len(pids) == 2
        assert not any(gone(pid, within_s=0.05) for pid in pids)
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
    assert all(gone(pid) for pid in pids)


# ------------------------------------------------------------------------------------------ other ways of resetting


def test_a_native_form_that_was_lost_begins_with_a_decision() -> None:
    """CartPole resets in the step after an end; a process that begins anew has done so already."""
    world = opened("CartPole-v1", num_envs=4)
    lived(world, 1)
    (pid,) = pids_of(world)
    running = int((~world.ended).sum())
    os.kill(pid, signal.SIGKILL)
    (found,) = lived(world, 1)
    lost = ~found.scored
    assert lost.sum() == running > 0, "an environment that waited for its reset had no episode to lose"
    assert (found.lengths[lost] == 1).all(), "the step that never came back"
    fresh = found.offsets[1:][lost]
    assert (np.abs(found.observations[fresh]) <= 0.05).all(), "the next decision is on a state as CartPole begins"
    ended = int(found.terminated.sum()) + 4 - running
    resets = ended - int(world.ended.sum())
    assert found.decisions == 4 * 25 - resets, "a reset is a row for each episode that ended by itself"


def test_a_process_that_is_lost_while_it_is_saved_is_found_by_the_next_step() -> None:
    world = opened(check=True)
    lived(world, 1)
    os.kill(pids_of(world)[1], signal.SIGKILL)
    state = world.state()
    assert state["inexact"] == "a process of environments was lost"
    (found,) = lived(world, 1)
    assert found.status[~found.scored].tolist() == [ScoreStatus.ERROR] * 2
    assert "its process was killed by SIGKILL" in world.pop_notices()[0]
    again = opened(check=True)
    again.restore(state)
    assert lived(again, 1)[0].scored.all()


class Scripted(VectorEnv[Any, Any, Any]):
    """Two environments that wait for a reset. 0 ends in the second step, and 1 is lost while 0 is reset."""

    num_envs = 2
    single_observation_space = spaces.Box(0, 100, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    time = 0

    def reset(self, *, seed=None, options=None):
        if options is None:
            return np.zeros((2, 1), np.float32), {}
        assert options["reset_mask"].tolist() == [True, False]
        return np.full((2, 1), 50, np.float32), {LOST_KEY: np.array([0, ScoreStatus.ERROR], np.uint8)}

    def step(self, actions):
        self.time += 1
        ends = np.array([self.time == 2, False])
        return np.full((2, 1), self.time, np.float32), np.ones(2), ends, np.zeros(2, np.bool_), {}


def test_what_is_lost_while_a_neighbour_is_reset_keeps_its_last_observation() -> None:
    found = world_from_envs(Scripted(), steps=3, seed=0).rollout(Chance(spaces.Discrete(2)))
    assert found.lengths.tolist() == [2, 1, 2, 1]
    assert found.terminated.tolist() == [True, False, False, False]
    assert found.truncated.tolist() == [False, False, True, False]
    assert found.status.tolist() == [0, 0, ScoreStatus.ERROR, 0]
    assert found.final is not None
    assert found.final[:, 0].tolist() == [2, 3, 2, 3]
    assert found.observations[:, 0].tolist() == [0, 1, 50, 0, 1, 50]
    assert found.reward.tolist() == [1, 1, 1, 0, 0, 1]
