"""An episode of a saved control policy, watched: frames from the environment's own renderer.

Belongs here: playing one episode with pictures. Writing them is `store.animation`'s.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium
import numpy as np
from gymnasium import spaces

from hone.core.errors import HoneError, UserCodeError
from hone.core.random import key
from hone.envs.gym.make import GymConfig, Single, isolated, maker, told
from hone.models.control.numpy_policies import Decides
from hone.store.animation import Episode, Frames, animated_png, shrunk, thinned

PICTURES = "rgb_array"
"""Gymnasium's name of the render mode that gives arrays."""
WIDTH = 240
"""Most pixels across."""
MOST_FRAMES = 60
MOST_STEPS = 2000
"""Of an episode that is watched."""
FRAMES_PER_S = 12.0
MOST_BYTES = 1_500_000
"""Of the file, which stands inside the report; fewer frames are kept until it fits."""


@dataclass
class Film:
    """Frames of an episode of unknown length: when there are twice as many as wanted, every other one goes."""

    render: Callable[[], object]
    every: int = 1
    frames: list[Frames] = field(default_factory=list[Frames])

    def see(self, step: int) -> None:
        if step % self.every == 0:
            self.keep()

    def keep(self) -> None:
        frame = self.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise UserCodeError(f"render() gave {type(frame).__name__}, expected an array [height, width, 3]")
        self.frames.append(shrunk(frame.astype(np.uint8), width=WIDTH))
        if len(self.frames) >= 2 * MOST_FRAMES:
            self.frames, self.every = self.frames[::2], 2 * self.every


def watch(policy: Decides, config: GymConfig, *, seed: int, step: int) -> tuple[Episode, bytes | None]:
    """One episode of the policy's mode: what it came to, and its animation; a note says why there is none."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else it complains that there is no screen
    if isolated(config):
        return _unseen(step, "the environment is run in a process of its own, which draws no pictures")
    try:
        if not draws(config):
            return _unseen(step, f"{config.id} draws nothing (rgb_array is none of its render modes)")
        env = maker(config.model_copy(update={"kwargs": {**config.kwargs, "render_mode": PICTURES}})).single()
    except UserCodeError as fault:
        return _unseen(step, f"it cannot be made with a renderer ({fault.messages[0].splitlines()[0]})")
    try:
        film = Film(env.render)
        score, steps = _played(env, policy, film, key(seed, "watch") & 0xFFFFFFFF)
    except gymnasium.error.DependencyNotInstalled as missing:
        return _unseen(step, f"its renderer is not installed ({missing})")
    except HoneError as fault:
        return _unseen(step, fault.messages[0].splitlines()[0])
    except Exception as fault:  # noqa: BLE001 - a renderer is code of anybody's; the run is over, and stays whole
        return _unseen(step, told(fault).splitlines()[0])
    finally:
        env.close()
    return Episode(step=step, score=score, steps=steps), _encoded(film.frames)


def draws(config: GymConfig) -> bool:
    """Whether the environment says that it draws pictures. Raises UserCodeError where it cannot be made."""
    env = maker(config).single()
    try:
        return PICTURES in env.metadata.get("render_modes", [])
    finally:
        env.close()


def _unseen(step: int, why: str) -> tuple[Episode, None]:
    return Episode(step=step, score=float("nan"), steps=0, note=why), None


def _played(env: Single, policy: Decides, film: Film, seed: int) -> tuple[float, int]:
    """Return and length of the episode."""
    best = policy.acting().best
    seen, _ = env.reset(seed=seed)
    score = 0.0
    film.see(0)
    for step in range(1, MOST_STEPS + 1):
        action = best(np.asarray(seen)[None])[0]
        if isinstance(env.action_space, spaces.Box):
            action = np.clip(action, env.action_space.low, env.action_space.high)
        seen, reward, terminated, truncated, _ = env.step(action)
        score += float(reward)
        if terminated or truncated:
            film.keep()
            return score, step
        film.see(step)
    return score, MOST_STEPS


def _encoded(frames: list[Frames]) -> bytes | None:
    """The animation, small enough."""
    most = MOST_FRAMES
    while most > 1:
        kept = thinned(frames, most)
        png = animated_png(np.stack(kept), frame_s=min(0.5, MOST_FRAMES / FRAMES_PER_S / len(kept)))
        if len(png) <= MOST_BYTES:
            return png
        most //= 2
    return None
