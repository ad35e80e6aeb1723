"""Environments in processes of their own: the same run bit for bit, and only the culprit pays when one fails."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from process_worlds import HOSTILE, WALK, end_worlds, lived, opened, same, seed_of

from hone.control.environments.make import describe_placement, runs_isolated
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.environments.world import GymConfig, inspect_world
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, ResourceError, UserCodeError


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    end_worlds()


# ------------------------------------------------------------------------------------------ nothing fails

CASES = [(WALK, 1), (WALK, 2), (WALK, 5), ("CartPole-v1", 3), ("Pendulum-v1", 2), ("FrozenLake-v1", 2)]


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_a_run_is_the_same_wherever_its_environments_run(name: str, workers: int) -> None:
    here = lived(opened(name, isolation="none"), 3)
    there = lived(opened(name, workers=workers), 3)
    assert all(same(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize("name", [WALK, "CartPole-v1"])
def test_a_resume_is_bitwise_across_processes(name: str) -> None:
    world = opened(name, check=True)
    assert world.resume_exactness == "exact", world.inexact_reason
    lived(world, 3)
    state = world.state()
    again = opened(name, check=True)
    again.restore(state)
    assert all(same(one, other) for one, other in zip(lived(world, 3), lived(again, 3), strict=True))


@pytest.mark.parametrize("name", [WALK, "CartPole-v1", "Pendulum-v1"])
def test_a_judgement_is_the_same_wherever_its_environments_run(name: str) -> None:
    scores = []
    for isolation in ("none", "process"):
        arena = open_evaluation_envs(GymConfig(id=name, isolation=isolation), episodes=7)
        action = np.zeros((7, *(arena.single_action_space.shape or ())), arena.single_action_space.dtype)
        scores.append(play_episodes(arena, lambda seen, action=action: action, seed=11).returns.tolist())
        arena.close()
    assert scores[0] == scores[1]


# ------------------------------------------------------------------------------------------ one fails

DEADLY = [
    ("segfault", ScoreStatus.ERROR, ["killed by SIGSEGV", "Segmentation fault", "hostile_envs.py"]),
    ("_exit", ScoreStatus.ERROR, ["exited with code 7", "licence server gone"]),
    ("exit", ScoreStatus.ERROR, ["exited with code 3"]),
    ("term", ScoreStatus.ERROR, ["killed by SIGTERM"]),
    ("loop", ScoreStatus.TIMEOUT, ["no answer within 0.5 s", "env.step_timeout_s"]),
    ("gil", ScoreStatus.TIMEOUT, ["no answer within 0.5 s"]),
    ("sleep", ScoreStatus.TIMEOUT, ["no answer within 0.5 s"]),
]


@pytest.mark.parametrize(("act", "status", "words"), DEADLY, ids=[act for act, _, _ in DEADLY])
def test_only_the_block_of_the_culprit_is_lost(act: str, status: ScoreStatus, words: list[str]) -> None:
    """Environments 0-2 are in one process, 3 and 4 in the other; 4 acts in the 31st step, which is in rollout 2."""
    fine = lived(opened(isolation="none"), 3)
    world = opened(kwargs={"act": act, "at": 31, "seed": seed_of(4)})
    found = lived(world, 3)
    assert same(found[0], fine[0])
    lost = ~found[1].scored
    assert found[1].status[lost].tolist() == [status] * 2
    assert found[1].truncated[lost].all()
    assert not found[1].terminated[lost].any()
    assert np.isnan(found[1].score[lost]).all()
    assert not found[1].reward[np.isin(found[1].owner, np.flatnonzero(lost))].any(), "no reward without a score"
    assert (found[1].decisions, found[2].decisions) == (125, 125), "the step is a decision of everybody"
    for one, other in zip(found, fine, strict=True):  # environments 0-2 live on as if nothing had happened
        rows = 75
        assert one.observations[:rows].tobytes() == other.observations[:rows].tobytes()
        assert one.reward[:rows].tobytes() == other.reward[:rows].tobytes()
    (note,) = world.pop_notices()
    for word in [f"environment 4 (seed {seed_of(4)}, step 31", "episodes of 2 environments", *words]:
        assert word in note
    assert world.pop_notices() == []
    assert world.metrics() == {"env/faults": 1.0}
    assert world.metrics() == {"env/faults": 0.0}


def test_what_is_cut_by_a_loss_ends_with_what_was_seen_before_it() -> None:
    world = opened(kwargs={"act": "_exit", "at": 31, "seed": seed_of(4), "longest": 1000})
    _, second, third = lived(world, 3)
    assert second.final is not None
    (piece,) = np.flatnonzero(~second.scored)[1:]
    last = second.offsets[piece + 1] - 1
    assert second.final[piece].tobytes() == second.observations[last].tobytes()
    assert second.lengths[piece] == 6, "five steps of this rollout, and the one that never came back"
    fresh = second.observations[second.offsets[piece + 1]]
    assert fresh[:2].tolist() == [1, 0], "the next decision is the first of a first episode"
    assert third.scored.all()
    assert len(np.unique(second.group)) == len(second), "what begins after the loss is another episode"


def test_a_run_with_a_loss_is_reproducible() -> None:
    kwargs = {"act": "_exit", "at": 11, "seed": seed_of(1)}
    first, second = (lived(opened(kwargs=kwargs, workers=1, steps=15), 2) for _ in range(2))
    assert not first[0].scored.all()
    assert all(same(one, other) for one, other in zip(first, second, strict=True))


def test_a_resume_after_a_loss_is_bitwise() -> None:
    settings = {"kwargs": {"act": "_exit", "at": 31, "seed": seed_of(4)}, "check": True}
    world = opened(**settings)
    lived(world, 3)
    again = opened(**settings)
    again.restore(world.state())
    assert all(same(one, other) for one, other in zip(lived(world, 2), lived(again, 2), strict=True))
    assert again.metrics() == world.metrics() == {"env/faults": 1.0}, "neither was told of before"


def test_slow_is_no_fault_while_each_environment_comes_back_in_time() -> None:
    world = opened(kwargs={"act": "slow", "at": 3}, num_envs=4, workers=1, steps=4, step_timeout_s=2.0)
    (episodes,) = lived(world, 1)  # four times 0.6 s in one step
    assert episodes.scored.all()


def test_printing_without_end_neither_blocks_nor_is_lost_on_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    world = opened(kwargs={"act": "flood", "at": 5}, step_timeout_s=5.0)
    assert lived(world, 1)[0].scored.all()
    assert "zzz" not in capfd.readouterr().out


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_an_exception_is_the_users_to_mend(isolation: str) -> None:
    world = opened(isolation=isolation, kwargs={"act": "raise", "at": 8, "seed": seed_of(3)})
    with pytest.raises(UserCodeError, match="the gripper is stuck") as caught:
        lived(world, 1)
    assert caught.value.exit_code == 4
    assert "hostile_envs.py" in str(caught.value)
    assert "step 7 of rollout 1" in str(caught.value)
    assert isolation == "none" or "environment 3 failed" in str(caught.value)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_shape_that_changes_later_is_the_users_to_mend(isolation: str) -> None:
    world = opened(isolation=isolation, kwargs={"act": "shape", "at": 8, "seed": seed_of(3)})
    with pytest.raises(UserCodeError, match="step 7 of rollout 1 failed in the environment"):
        lived(world, 1)


def test_a_type_that_changes_later_is_converted_as_it_always_was() -> None:
    kwargs = {"act": "type", "at": 8}
    here, there = (lived(opened(isolation=name, kwargs=kwargs), 1)[0] for name in ("none", "process"))
    assert same(here, there)


# ------------------------------------------------------------------------------------------ before the run


@pytest.mark.parametrize("name", ["DiesWhenMade", "DiesAtReset"])
def test_what_takes_its_process_down_at_once_is_refused_at_the_door(name: str) -> None:
    with pytest.raises(ResourceError, match=rf"{name}: the environment cannot be used: .* exited with code 9"):
        inspect_world(GymConfig(id=f"{HOSTILE}:{name}"), seed=0)


def test_without_a_check_dying_at_the_first_reset_falls_to_the_budget() -> None:
    with pytest.raises(ResourceError, match=r"lost 1 time .*exited with code 9"):
        opened(f"{HOSTILE}:DiesAtReset", num_envs=1, faults_allowed=0)


def test_a_file_that_hangs_while_it_is_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.control.environments.subprocess_env.START_S", 1.0)
    (tmp_path / "stuck.py").write_text("while True: pass")
    with pytest.raises(ResourceError, match=r"cannot be used: no answer within 1 s"):
        inspect_world(GymConfig(id=f"{tmp_path / 'stuck.py'}:Env"), seed=0)


def test_what_comes_with_gymnasium_runs_here_and_everything_else_does_not() -> None:
    assert not runs_isolated(GymConfig(id="CartPole-v1"))
    assert runs_isolated(GymConfig(id=WALK))
    assert runs_isolated(GymConfig(id="some_package:Thing-v0"))
    assert runs_isolated(GymConfig(id="CartPole-v1", isolation="process"))
    assert not runs_isolated(GymConfig(id=WALK, isolation="none"))
    assert describe_placement(GymConfig(id="CartPole-v1")) == "in the trainer's process"
    assert describe_placement(GymConfig(id=WALK, num_envs=3)) == "in 2 processes of their own"
    assert describe_placement(GymConfig(id=WALK)) == "in a process of their own"


def test_an_id_registered_in_this_program_is_known_in_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    monkeypatch.syspath_prepend(str(HOSTILE.parent))
    gymnasium.register("HoneWalk-v0", "hostile_envs:Walk", max_episode_steps=7)
    gymnasium.register("HoneClass-v0", type("Local", (gymnasium.Env,), {}))
    try:
        assert runs_isolated(GymConfig(id="HoneWalk-v0"))
        (episodes,) = lived(opened("HoneWalk-v0"), 1)
        assert episodes.lengths.max() <= 7
        assert not runs_isolated(GymConfig(id="HoneClass-v0")), "nobody else could find a class without a name"
        with pytest.raises(ConfigError, match="registered with a class"):
            opened("HoneClass-v0")
    finally:
        del gymnasium.registry["HoneWalk-v0"], gymnasium.registry["HoneClass-v0"]
