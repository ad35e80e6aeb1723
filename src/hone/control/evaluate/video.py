"""Recording of one episode of a saved control policy with the environment's own renderer.

Belongs here: playing the episode, here or in a child process, which is this module as a command. A renderer is native
code of anybody's that may end its process; in a child that costs the picture, and not the run. `store.animation` writes
the frames.
"""

import base64
import ctypes
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from hone.control.environments.make import (
    RECORDED_STEPS,
    GymConfig,
    GymEnv,
    describe_exception,
    env_factory,
    evaluation_limit,
    export_registration,
    find_spec,
    runs_isolated,
)
from hone.control.environments.masks import MASK, as_mask
from hone.control.environments.rollout import env_actions, not_finite
from hone.core.clock import SystemClock
from hone.core.errors import HoneError, UserCodeError
from hone.core.random import key
from hone.process.child import ChildLostError, RestartingChild
from hone.process.parent import connect_to_parent
from hone.run.store.animation import EpisodeRecording, Frames, animated_png, downscale, subsample_frames

if TYPE_CHECKING:  # loads torch
    from hone.control.networks.numpy_policies import HasNumpyPolicy

_RENDER_MODE = "rgb_array"
"""Gymnasium's render mode for arrays."""
_MAX_WIDTH = 240
"""Largest width in pixels."""
MAX_FRAMES = 60
_FRAMES_PER_S = 12.0
MAX_BYTES = 1_500_000
"""Largest size of the file, which is embedded in the report; frames are dropped until it fits."""
_DEADLINE_S = 300.0
"""Seconds that a child may take to record."""
_SAFE_RENDERERS = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.", "hone.control.")
"""Modules whose environments draw in software, so that no process of their own is worth its start."""

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def render_without_display() -> None:
    """Choose backends that need no screen where there is none: EGL for MuJoCo, a dummy video driver for pygame.

    Call it before the environment's package is imported, because both read the environment then. What the user has set
    stays. EGL is chosen only where its library can be loaded: without it, `import mujoco` itself would fail.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if any(os.environ.get(name) for name in _SCREENS):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" in os.environ:
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return
    os.environ["MUJOCO_GL"] = "egl"


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
    policy: "HasNumpyPolicy", config: GymConfig, *, seed: int, step: int
) -> tuple[EpisodeRecording, bytes | None]:
    """Record one episode of the policy's mode: its result and animation, or a note with the reason for no animation."""
    render_without_display()
    if why := _why_no_renderer(config):
        return _without_frames(step, why)
    try:
        env = env_factory(
            config.model_copy(update={"kwargs": {**config.kwargs, "render_mode": _RENDER_MODE}})
        ).make_one()
    except UserCodeError as fault:
        return _without_frames(step, f"it cannot be created with a renderer ({fault.messages[0].splitlines()[0]})")
    try:
        film = FrameRecorder(env.render)
        limit = min(RECORDED_STEPS, evaluation_limit(config))
        seed = key(seed, "watch") & 0xFFFFFFFF
        score, steps, ended = _play_episode(env, policy, film, seed=seed, limit=limit, masks=config.mask == "auto")
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


def record_saved_policy(
    folder: Path, config: GymConfig, *, seed: int, step: int
) -> tuple[EpisodeRecording, bytes | None]:
    """`record_episode` of the policy saved in `folder`, in a child process unless the environment draws in software.

    A child that ends or hangs leaves a note in place of the animation.
    """
    if _renders_here(config):
        return record_episode(_load_policy(folder), config, seed=seed, step=step)
    if not runs_isolated(config) and (
        why := _why_no_renderer(config)
    ):  # where its code runs anyway: no child is started
        return _without_frames(step, why)
    request = {
        "policy": str(folder.absolute()),
        "env": config.model_dump(mode="json"),
        "registration": export_registration(config),
        "seed": seed,
        "step": step,
    }
    child = RestartingChild("hone.control.evaluate.video", clock=SystemClock())
    try:
        reply: dict[str, Any] = json.loads(child.call(json.dumps(request).encode() + b"\n", deadline_s=_DEADLINE_S))
    except ChildLostError as lost:
        return _without_frames(step, f"its renderer ended its process: {str(lost).splitlines()[0]}")
    finally:
        child.close()
    if "fault" in reply:
        return _without_frames(step, str(reply["fault"]))
    score = float("nan") if reply["score"] is None else float(reply["score"])
    about = EpisodeRecording(step=step, score=score, steps=int(reply["steps"]), note=str(reply["note"]))
    return about, base64.b64decode(reply["png"]) or None


def _why_no_renderer(config: GymConfig) -> str:
    """Reason why the environment has no pictures, by its class; empty if it says that it draws."""
    try:
        probe = env_factory(config).make_one()
    except UserCodeError as fault:
        return f"it cannot be created with a renderer ({fault.messages[0].splitlines()[0]})"
    modes = probe.metadata.get("render_modes", [])
    probe.close()
    return "" if _RENDER_MODE in modes else f"{config.id} cannot render (rgb_array is not among its render modes)"


def _renders_here(config: GymConfig) -> bool:
    """True for environments that draw in software, and for classes that no other process can find."""
    if runs_isolated(config) or ":" in config.id:
        return False
    point = find_spec(config.id).entry_point
    return not isinstance(point, str) or point.startswith(_SAFE_RENDERERS)


def _without_frames(step: int, why: str) -> tuple[EpisodeRecording, None]:
    return EpisodeRecording(step=step, score=float("nan"), steps=0, note=why), None


def _play_episode(
    env: GymEnv, policy: "HasNumpyPolicy", film: FrameRecorder, *, seed: int, limit: int, masks: bool
) -> tuple[float, int, bool]:
    """Play the episode for at most `limit` steps; its return, its length, and whether it ended."""
    best = policy.numpy_policy().best
    seen, info = env.reset(seed=seed)
    score = 0.0
    film.observe(0)
    for step in range(1, limit + 1):
        mask = as_mask(info[MASK], env.action_space, where="the recording")[None] if masks and MASK in info else None
        action = env_actions(best(np.asarray(seen)[None], mask), env.action_space, clip=True)[0]
        seen, reward, terminated, truncated, info = env.step(action)
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


def _load_policy(folder: Path) -> "HasNumpyPolicy":
    from hone.control.evaluate.returns import load_control_policy  # noqa: PLC0415 - loads torch: not without a renderer

    return load_control_policy(folder)


def _run_recorder() -> None:
    """The child: one line of JSON in, one out."""
    channel = connect_to_parent()
    for line in channel.lines():
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            config = GymConfig.model_validate({**request["env"], "isolation": "none"})
            if request["registration"] is not None:
                spec = EnvSpec.from_json(request["registration"])
                gymnasium.registry.setdefault(spec.id, spec)
            if why := _why_no_renderer(config):
                about, png = _without_frames(request["step"], why)
            else:
                policy = _load_policy(Path(request["policy"]))
                about, png = record_episode(policy, config, seed=request["seed"], step=request["step"])
            score = about.score if np.isfinite(about.score) else None
            answer = {**asdict(about), "score": score, "png": base64.b64encode(png or b"").decode()}
        except HoneError as fault:
            answer = {"fault": fault.messages[0].splitlines()[0]}
        channel.reply(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _run_recorder()
