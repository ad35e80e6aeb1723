"""A recording of an episode: frames of any size, a limit that is told, numbers that are not finite."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.make import GymConfig
from hone.control.evaluate import video
from hone.control.evaluate.video import render_without_display
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import save_policy
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


ABORTING = """
import os
import gymnasium, numpy as np
from gymnasium import spaces

class Screen(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None, abort_at=0):
        self.render_mode, self.abort_at, self.time = render_mode, abort_at, 0

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == 5, False, {}

    def render(self):
        if self.abort_at and self.time == self.abort_at:
            os.abort()
        return np.full((8, 8, 3), self.time, np.uint8)
"""


@pytest.fixture
def screen(tmp_path: Path) -> tuple[Path, str]:
    """Folder of a policy, and the id of an environment in a file."""
    (tmp_path / "screen.py").write_text(ABORTING)
    save_policy(POLICY, tmp_path / "policy")
    return tmp_path / "policy", f"{tmp_path}/screen.py:Screen"


def test_an_environment_of_the_users_is_drawn_in_a_child(screen: tuple[Path, str]) -> None:
    folder, name = screen
    about, png = video.record_saved_policy(folder, GymConfig(id=name), seed=0, step=4)
    assert (about.score, about.steps, about.step, about.note) == (5.0, 5, 4, "")
    assert png is not None and png.startswith(b"\x89PNG")


def test_a_renderer_that_aborts_costs_the_picture_only(screen: tuple[Path, str]) -> None:
    folder, name = screen
    about, png = video.record_saved_policy(folder, GymConfig(id=name, kwargs={"abort_at": 2}), seed=0, step=4)
    assert png is None
    assert about.note.startswith("its renderer ended its process: its process was killed by SIGABRT")


def test_only_what_draws_in_software_is_drawn_here(screen: tuple[Path, str]) -> None:
    here = {"CartPole-v1": True, "FrozenLake-v1": True, "hone/Maze-v0": True, "HalfCheetah-v5": False, screen[1]: False}
    assert {name: video._renders_here(GymConfig(id=name)) for name in here} == here
    assert not video._renders_here(GymConfig(id="CartPole-v1", isolation="process"))
    assert video._renders_here(GymConfig(id="GrowingFrames-v0"))  # a class, which no other process can find


def test_backends_without_a_screen_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL")
    loaded: list[str] = []
    monkeypatch.setattr("ctypes.CDLL", loaded.append)

    def chosen(**given: str) -> tuple[str | None, str | None]:
        for name in names:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        render_without_display()
        return os.environ.get("SDL_VIDEODRIVER"), os.environ.get("MUJOCO_GL")

    assert chosen() == ("dummy", "egl")
    assert chosen(DISPLAY="") == ("dummy", "egl")
    assert chosen(DISPLAY=":0") == (None, None)
    assert chosen(WAYLAND_DISPLAY="wayland-0") == (None, None)
    assert chosen(MUJOCO_GL="osmesa", SDL_VIDEODRIVER="x11") == ("x11", "osmesa")
    assert loaded == ["libEGL.so.1"] * 2

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert chosen() == ("dummy", None)  # with "egl" but without its library, mujoco cannot even be imported


class Masked(Growing):
    """Its second action is never legal."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action):
        assert action == 0
        return *super().step(action)[:4], {"action_mask": np.array([1, 0], np.int8)}


gymnasium.register("MaskedFrames-v0", Masked)


def test_a_policy_of_legal_actions_is_recorded_with_its_masks() -> None:
    actions = DiscreteActions(count=2, masked=True)
    policy = ActorCritic(PolicySpaces(inputs=ObservationInputs(size=1), actions=actions), MlpConfig(hidden=[4]), seed=0)
    config = GymConfig(id="MaskedFrames-v0", kwargs={"length": 6})
    about, png = video.record_episode(policy, config, seed=0, step=1)
    assert (about.steps, about.note) == (6, "") and png is not None
