"""Numbers that are not finite, frames that change size and episodes without an end are faults of the environment's."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from hone.control.environments.make import sync_vector_env
from hone.control.environments.play import play_episodes
from hone.control.environments.world import GymConfig, GymWorld, open_world, world_from_envs
from hone.core.errors import DivergedError, UserCodeError

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
HERE = Path(__file__)


class Faulty(gymnasium.Env):
    """Episodes of `length` steps; in the step `at`, `what` is `bad`."""

    action_space = spaces.Discrete(2)

    def __init__(
        self, what: str = "", at: int = 3, bad: float = np.nan, length: int = 5, cut: bool = False, wide: bool = False
    ) -> None:
        self.what, self.at, self.bad, self.length, self.cut, self.time = what, at, bad, length, cut, 0
        self.kind = np.float64 if wide else np.float32
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), self.kind)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, self.kind), {}

    def step(self, action):
        self.time += 1
        now, over = self.time == self.at, self.time == self.length
        seen = np.full(2, self.time, self.kind)
        if now and self.what == "observation":
            seen[1] = self.bad
        if now and self.what == "shape":
            seen = np.zeros(3, self.kind)
        return seen, self.bad if now and self.what == "reward" else 1.0, over and not self.cut, over and self.cut, {}


class Upward:
    """Always action 1."""

    version = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(len(seen), np.int64), np.zeros(len(seen), np.float32)


def faulty(mode: AutoresetMode, *, steps: int = 12, **settings: object) -> GymWorld:
    """Environment 1 of two is faulty."""
    makers = [lambda: Faulty(wide=bool(settings.get("wide"))), lambda: Faulty(**settings)]
    return world_from_envs(sync_vector_env(makers, mode), steps=steps, seed=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("what", "at", "cut", "said"),
    [
        ("observation", 3, False, "observation of environment 1 at step 3 of rollout 1"),
        ("observation", 5, True, "last observation of environment 1 at step 4 of rollout 1"),
        ("reward", 2, False, "reward of environment 1 at step 1 of rollout 1"),
        ("reward", 5, False, "reward of environment 1 at step 4 of rollout 1"),
    ],
)
def test_numbers_that_are_not_finite_name_their_place(
    mode: AutoresetMode, bad: float, what: str, at: int, cut: bool, said: str
) -> None:
    world = faulty(mode, what=what, at=at, bad=bad, cut=cut)
    with pytest.raises(UserCodeError) as caught:
        world.rollout(Upward())
    assert said in str(caught.value)
    assert "last actions [1, 1" in str(caught.value)
    assert str(bad) in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_too_large_for_a_network_are_not_finite(mode: AutoresetMode) -> None:
    for what in ("observation", "reward"):
        with pytest.raises(UserCodeError, match=f"{what} of environment 1"):
            faulty(mode, what=what, bad=1e300, wide=True).rollout(Upward())


@pytest.mark.parametrize("mode", MODES)
def test_no_value_is_asked_of_a_terminal_observation(mode: AutoresetMode) -> None:
    """The observation before it stands in its place, and the user is told once."""
    world = faulty(mode, what="observation", at=5)
    sound = faulty(mode)
    for _ in range(2):
        found, other = world.rollout(Upward()), sound.rollout(Upward())
        assert found.final is not None
        assert other.final is not None
        assert np.isfinite(found.final).all()
        assert np.isfinite(found.observations).all()
        ended = found.terminated
        assert (found.final[ended, 0] >= 4).all()
        assert found.reward.tolist() == other.reward.tolist()
        assert found.observations.tolist() == other.observations.tolist()
    (notice,) = world.pop_notices()
    assert "last observation of environment 1 at step 4 of rollout 1 is not finite" in notice


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_names_environment_and_step(mode: AutoresetMode) -> None:
    for what in ("observation", "reward"):
        arena = sync_vector_env([Faulty, lambda what=what: Faulty(what=what)], mode)
        with pytest.raises(UserCodeError, match=f"{what} of environment 1 at step 3 of an evaluation .* actions"):
            play_episodes(arena, lambda seen: np.zeros(len(seen), np.int64), seed=0)
    arena = sync_vector_env([lambda: Faulty(what="observation", at=5)], mode)
    assert play_episodes(arena, lambda seen: np.zeros(len(seen), np.int64), seed=0).returns.tolist() == [5.0]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_frame_that_changes_its_size_names_the_environment(isolation: str) -> None:
    config = GymConfig(
        id=f"{HERE}:Faulty", num_envs=3, workers=2, check=False, isolation=isolation, kwargs={"what": "shape"}
    )  # pyright: ignore[reportArgumentType]
    world = open_world(config, steps=4, seed=0)
    try:
        with pytest.raises(UserCodeError, match=r"environment 0: the observation has shape \[3\].*has \[2\]"):
            world.rollout(Upward())
    finally:
        world.close()


class Continuous(Faulty):
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Broken(Upward):
    """A policy whose weights are not finite."""

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(seen), 1), np.nan, np.float32), np.zeros(len(seen), np.float32)


@pytest.mark.parametrize("clip", [True, False])
def test_a_policy_that_diverged_is_not_the_environments_fault(clip: bool) -> None:
    world = world_from_envs(sync_vector_env([Continuous]), steps=4, seed=0, clip=clip)
    with pytest.raises(DivergedError, match=r"action for environment 0 is not finite.*learner\.lr"):
        world.rollout(Broken())


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_an_episode_without_an_end_is_truncated_and_told_of(isolation: str) -> None:
    config = GymConfig(
        id=f"{HERE}:Faulty", num_envs=2, check=False, isolation=isolation, kwargs={"length": 10**9}, step_limit=7
    )  # pyright: ignore[reportArgumentType]
    world = open_world(config, steps=5, seed=0)
    try:
        lived = [world.rollout(Upward()) for _ in range(4)]
        assert [int(episodes.truncated.sum()) for episodes in lived] == [0, 2, 2, 0]
        assert lived[1].score[lived[1].truncated].tolist() == [7.0, 7.0]
        (notice,) = world.pop_notices()
        assert "truncated after 7 steps (env.step_limit)" in notice
        again = open_world(config, steps=5, seed=0)
        again.restore(world.state())
        assert again.rollout(Upward()).truncated.tolist() == world.rollout(Upward()).truncated.tolist()
        again.close()
        played = play_episodes(world.envs, lambda seen: np.zeros(len(seen), np.int64), seed=0, step_limit=7)
        assert played.truncated_episodes == 2
    finally:
        world.close()
