"""A recording of an episode: frames of any size, a limit that is told, numbers that are not finite."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.make import GymConfig
from hone.control.evaluate import video
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.run.report.policy_map import _episode_animation

SPACES = PolicySpaces(inputs=ObservationInputs(size=1), actions=DiscreteActions(count=2))
POLICY = ActorCritic(SPACES, MlpConfig(hidden=[4]), seed=0)


class Growing(gymnasium.Env):
    """Its frames change their size; it never ends unless `length` says so."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, length: int = 0, broken: str = "") -> None:
        self.render_mode, self.length, self.broken, self.time = render_mode, length, broken, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        seen = np.full(1, np.nan if self.broken == "observation" and self.time == 3 else 0.0, np.float32)
        paid = np.nan if self.broken == "reward" and self.time == 3 else 1.0
        return seen, paid, self.time == self.length, False, {}

    def render(self):
        return np.full((20 + 7 * (self.time % 3), 30 + 5 * (self.time % 4), 3), 10 * self.time % 250, np.uint8)


gymnasium.register("GrowingFrames-v0", Growing)


def recorded(**settings: Any) -> tuple[video.EpisodeRecording, bytes | None]:
    return video.record_episode(POLICY, GymConfig(id="GrowingFrames-v0", **settings), seed=0, step=4)


def test_frames_that_change_their_size_are_filled_up() -> None:
    about, png = recorded(kwargs={"length": 12})
    assert (about.steps, about.score, about.note) == (12, 12.0, "")
    assert png is not None


@given(sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5))
def test_each_frame_keeps_its_pixels(sizes: list[tuple[int, int]]) -> None:
    frames = [np.full((*size, 3), number + 1, np.uint8) for number, size in enumerate(sizes)]
    stacked = video._stacked(frames)
    assert stacked.shape[1:3] == (max(size[0] for size in sizes), max(size[1] for size in sizes))
    for number, (frame, size) in enumerate(zip(stacked, sizes, strict=True)):
        assert (frame == number + 1).sum() == 3 * size[0] * size[1]


def test_a_recording_that_stops_says_so() -> None:
    about, png = recorded(step_limit=9)
    assert about.steps == 9
    assert "stops there" in about.note
    assert "stops there" in str(_episode_animation(about, png))


@pytest.mark.parametrize("broken", ["observation", "reward"])
def test_numbers_that_are_not_finite_are_the_reason_for_no_recording(broken: str) -> None:
    about, png = recorded(kwargs={"length": 12, "broken": broken})
    assert png is None
    assert broken in about.note
    assert "step 3" in about.note
