"""Goal-conditioned observations: a dict with the achieved and the desired goal, as Gymnasium-Robotics has them."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

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
