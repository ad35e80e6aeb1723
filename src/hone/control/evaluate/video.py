"""Recording of one episode of a saved control policy with the environment's own renderer.

Belongs here: playing the episode. `store.animation` writes the frames.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium
import numpy as np

from hone.control.environments.make import (
    RECORDED_STEPS,
    GymConfig,
    GymEnv,
    describe_exception,
    env_factory,
    evaluation_limit,
    runs_isolated,
)
from hone.control.environments.rollout import env_actions, not_finite
from hone.control.networks.numpy_policies import HasNumpyPolicy
from hone.core.errors import HoneError, UserCodeError
from hone.core.random import key
from hone.run.store.animation import EpisodeRecording, Frames, animated_png, downscale, subsample_frames

_RENDER_MODE = "rgb_array"
"""Gymnasium's render mode for arrays."""
_MAX_WIDTH = 240
"""Largest width in pixels."""
MAX_FRAMES = 60
_FRAMES_PER_S = 12.0
MAX_BYTES = 1_500_000
"""Largest size of the file, which is embedded in the report; frames are dropped until it fits."""


@dataclass
class FrameRecorder:
    """Frames of an episode of unknown length: at twice the wanted number, every other frame is dropped."""

    render: Callable[[], object]
    stride: int = 1
    frames: list[Frames] = field(default_factory=list[Frames])

    def observe(self, step: int) -> None:
        """Capture a frame at the chosen interval of steps."""
        if step % self.stride == 0:
            self.capture()

    def capture(self) -> None:
        """Render and add a frame."""
        frame = self.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise UserCodeError(f"render() returned {type(frame).__name__}, expected an array [height, width, 3]")
        self.frames.append(downscale(frame.astype(np.uint8), width=_MAX_WIDTH))
        if len(self.frames) >= 2 * MAX_FRAMES:
            self.frames, self.stride = self.frames[::2], 2 * self.stride


def record_episode(
    policy: HasNumpyPolicy, config: GymConfig, *, seed: int, step: int
) -> tuple[EpisodeRecording, bytes | None]:
    """Record one episode of the policy's mode: its result and animation, or a note with the reason for no animation."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # without it, pygame fails on a machine without a screen
    if runs_isolated(config):
        return _without_frames(step, "the environment runs in a separate process, which cannot render")
    try:
        probe = env_factory(config).make_one()
        modes = probe.metadata.get("render_modes", [])
        probe.close()
        if _RENDER_MODE not in modes:
            return _without_frames(step, f"{config.id} cannot render (rgb_array is not among its render modes)")
        env = env_factory(
            config.model_copy(update={"kwargs": {**config.kwargs, "render_mode": _RENDER_MODE}})
        ).make_one()
    except UserCodeError as fault:
        return _without_frames(step, f"it cannot be created with a renderer ({fault.messages[0].splitlines()[0]})")
    try:
        film = FrameRecorder(env.render)
        limit = min(RECORDED_STEPS, evaluation_limit(config))
        score, steps, ended = _play_episode(env, policy, film, seed=key(seed, "watch") & 0xFFFFFFFF, limit=limit)
    except gymnasium.error.DependencyNotInstalled as missing:
        return _without_frames(step, f"its renderer is not installed ({missing})")
    except HoneError as fault:
        return _without_frames(step, fault.messages[0].splitlines()[0])
    except Exception as fault:  # noqa: BLE001 - a renderer is code of anybody's; the run is over, and stays whole
        return _without_frames(step, describe_exception(fault).splitlines()[0])
    finally:
        env.close()
    note = "" if ended else "the recording stops there, before the episode ended"
    return EpisodeRecording(step=step, score=score, steps=steps, note=note), _encoded(film.frames)


def _without_frames(step: int, why: str) -> tuple[EpisodeRecording, None]:
    return EpisodeRecording(step=step, score=float("nan"), steps=0, note=why), None


def _play_episode(
    env: GymEnv, policy: HasNumpyPolicy, film: FrameRecorder, *, seed: int, limit: int
) -> tuple[float, int, bool]:
    """Play the episode for at most `limit` steps; its return, its length, and whether it ended."""
    best = policy.numpy_policy().best
    seen, _ = env.reset(seed=seed)
    score = 0.0
    film.observe(0)
    for step in range(1, limit + 1):
        action = env_actions(best(np.asarray(seen)[None]), env.action_space, clip=True)[0]
        seen, reward, terminated, truncated, _ = env.step(action)
        score += float(reward)
        if not np.isfinite(float(reward)):
            raise UserCodeError(f"reward {reward} at step {step} of a recorded episode is not finite")
        if terminated or truncated:
            film.capture()
            return score, step, True
        if not_finite(np.asarray(seen)).any():
            raise UserCodeError(f"the observation at step {step} of a recorded episode is not finite")
        film.observe(step)
    return score, limit, False


def _stacked(frames: list[Frames]) -> Frames:
    """Frames `[F, height, width, 3]` of the largest height and width; smaller ones are filled up with black."""
    height, width = (max(frame.shape[side] for frame in frames) for side in (0, 1))
    stacked = np.zeros((len(frames), height, width, 3), np.uint8)
    for into, frame in zip(stacked, frames, strict=True):
        into[: frame.shape[0], : frame.shape[1]] = frame
    return stacked


def _encoded(frames: list[Frames]) -> bytes | None:
    """Encode the animation within the size limit."""
    most = MAX_FRAMES
    while most > 1:
        kept = subsample_frames(frames, most)
        png = animated_png(_stacked(kept), frame_s=min(0.5, MAX_FRAMES / _FRAMES_PER_S / len(kept)))
        if len(png) <= MAX_BYTES:
            return png
        most //= 2
    return None
