"""Spaces of observations and actions: advice about those that hone does not support, and goals in dicts.

Belongs here: the advice in words and in Gymnasium's wrappers, and goal-conditioned observations, a dict with the
achieved and the desired goal, as Gymnasium-Robotics has them. The checks are `check.py`.
"""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

_LARGEST_PRODUCT = 1000
"""Number of combined actions up to which they are numbered."""
_GUIDE = "docs/howto/environments.md shows how to wrap a class"


def observation_fault(space: spaces.Space[Any]) -> str | None:
    """Why observations of this space are refused, with the wrapper to use; None where they are supported."""
    if isinstance(space, spaces.Box | spaces.Discrete):
        return None
    if space.is_np_flattenable:
        remedy = "wrap the environment in gymnasium.wrappers.FlattenObservation, which makes one row of numbers of it"
    else:
        remedy = (
            "it has no fixed size; make a row of numbers of it with "
            "gymnasium.wrappers.TransformObservation(env, function, Box(...))"
        )
    return f"observation space {_one_line(space)} is not supported; {remedy} ({_GUIDE})"


def action_fault(space: spaces.Space[Any]) -> str | None:
    """Why actions of this space are refused, with the wrapper to use; None where they are supported."""
    if isinstance(space, spaces.Box | spaces.Discrete):
        return None
    refused = f"action space {_one_line(space)} is not supported; hone acts on Discrete and Box"
    return f"{refused}: {_action_remedy(space)} ({_GUIDE})"


def _one_line(space: spaces.Space[Any]) -> str:
    """A space in words, on one line."""
    return " ".join(str(space).split())


def _action_remedy(space: spaces.Space[Any]) -> str:
    """A wrapper that gives the environment a supported action space, as an expression of `env`, `np` and Gymnasium."""
    transform, wrap = "gymnasium.wrappers.TransformAction", "wrap the environment in "
    match space:
        case spaces.MultiDiscrete() if np.prod(space.nvec, dtype=np.float64) <= _LARGEST_PRODUCT:
            shape, first, kind = space.nvec.ravel().tolist(), space.start.tolist(), space.dtype
            taken = f"np.reshape(np.unravel_index(n, {shape}), {list(space.shape)}) + np.array({first}, np.{kind})"
            return f"{wrap}{transform}(env, lambda n: {taken}, gymnasium.spaces.Discrete({int(np.prod(shape))}))"
        case spaces.MultiDiscrete():
            high = (space.nvec - 1 + space.start).tolist()
            box = f"gymnasium.spaces.Box(np.array({space.start.tolist()}), np.array({high}), dtype=np.{space.dtype})"
            return f"{wrap}{transform}(env, lambda box: box, {box})"
        case spaces.MultiBinary():
            box = f"gymnasium.spaces.Box(0, 1, {space.shape}, dtype=np.int8)"
            return f"{wrap}{transform}(env, lambda box: box, {box})"
        case spaces.Dict() | spaces.Tuple() if _holds_boxes(space):
            flat = "gymnasium.spaces.flatten_space(env.action_space)"
            return f"{wrap}{transform}(env, lambda row: gymnasium.spaces.unflatten(env.action_space, row), {flat})"
        case _:
            return "write a gymnasium.ActionWrapper that makes such an action of a number or of a row of numbers"


def _holds_boxes(space: spaces.Space[Any]) -> bool:
    """True if the space is a box, or made of boxes only."""
    match space:
        case spaces.Dict():
            return all(_holds_boxes(part) for part in space.spaces.values())
        case spaces.Tuple():
            return all(_holds_boxes(part) for part in space.spaces)
        case _:
            return isinstance(space, spaces.Box)


# ---------------------------------------------------------------------------------------------------------------- goals


Floats: TypeAlias = NDArray[np.float32]


GoalObservation: TypeAlias = dict[str, Floats]


ACHIEVED, DESIRED, OBSERVATION = "achieved_goal", "desired_goal", "observation"


@runtime_checkable
class GoalEnv(Protocol):
    """The methods of an environment with goals, for one goal `[g]` or many `[n, g]`."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - theirs
        """The reward `[]` or `[n]` of a step that reached the achieved goal, given the desired goal."""
        ...

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - theirs
        """True if such a step ends the episode, `[]` or `[n]`."""
        ...


def goal_space(observation: NDArray[np.floating], goal: NDArray[np.floating]) -> spaces.Dict:
    """Boxes of -bounds .. bounds for the observation and for both goals."""
    bounds = {OBSERVATION: observation, ACHIEVED: goal, DESIRED: goal}
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(-high.astype(np.float32), high.astype(np.float32)) for name, high in bounds.items()
    }
    return spaces.Dict(boxes)


def has_goals(space: spaces.Space[Any]) -> bool:
    """True if observations are dicts of boxes with an achieved and a desired goal."""
    return (
        isinstance(space, spaces.Dict)
        and set(space.spaces) == {OBSERVATION, ACHIEVED, DESIRED}
        and all(isinstance(part, spaces.Box) for part in space.spaces.values())
    )


def goal_columns(space: spaces.Dict) -> tuple[slice, slice]:
    """Columns of the achieved and of the desired goal, once an observation is flattened."""
    places: dict[str, slice] = {}
    first = 0
    for name, part in space.spaces.items():
        size = int(np.prod(part.shape or ()))
        places[name] = slice(first, first + size)
        first += size
    return places[ACHIEVED], places[DESIRED]
