"""Rendering on a machine without a screen: the one place where the backends of OpenGL and SDL are chosen."""

import ctypes
import os

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
