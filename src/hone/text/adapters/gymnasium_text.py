"""Environments of Gymnasium as dialogue worlds: an observation is text, and an action is a word in the policy's answer.

FrozenLake draws itself (`render_mode = "ansi"`); the observations of some environments are text; others need a function
that describes them, such as `minigrid_text`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
from gymnasium.spaces import Discrete

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError, ErrorCollector
from hone.process.user_files import load_module, load_reference

_COLOURS = re.compile(r"\x1b\[(\d+)m")
_MINIGRID_OBJECTS = "?.WFDKOBGLA"
"""Letters of MiniGrid's objects by number: unseen, empty, wall, floor, door, key, ball, box, goal, lava, agent."""


class GymnasiumTextWorld:
    """One episode of an environment: `{env = "FrozenLake-v1", actions = ["left", "down", "right", "up"]}`."""

    def __init__(
        self,
        env: str,
        *,
        actions: Sequence[str],
        kwargs: Mapping[str, Any] | None = None,
        describe: str = "",
        module: str = "",
        goal: str = "",
    ) -> None:
        """Describe an environment.

        `actions`: words for the actions 0, 1, ... `kwargs`: arguments of `gymnasium.make`. `describe`: reference of a
        function from an observation and the environment to its text; unset: the environment's own drawing, or the
        observation if that is text. `module`: a module to import first, which registers the environment. `goal`: text
        before the first observation.
        """
        self._id, self._actions, self._kwargs = env, tuple(actions), dict(kwargs or {})
        self._describe_name, self._module, self._goal = describe, module, goal
        self._env: gymnasium.Env[Any, Any] | None = None
        self._describe: Callable[[Any, Any], object] = _drawing

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin an episode; a column `seed` fixes its first state, for episodes that several samples are to share."""
        if self._module:
            load_module(f"{self._module}:", kind="environment")
        if self._describe_name:
            self._describe = cast("Callable[[Any, Any], object]", load_reference(self._describe_name, kind="describe"))
        self._env = gymnasium.make(self._id, **self._kwargs)
        if not self._describe_name and "ansi" in self._env.metadata.get("render_modes", ()):
            self._env.close()
            drawing: dict[str, Any] = {"render_mode": "ansi", **self._kwargs}
            self._env = gymnasium.make(self._id, **drawing)
        self._check(self._env)
        observation, _ = self._env.reset(seed=int(columns.get("seed", seed)) % 2**32)
        return WorldTurn(messages=[_said(f"{self._goal}{self._text(observation)}")])

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Take the action that the answer names last; an answer without one takes none, and is told so."""
        assert self._env is not None
        words = re.findall("|".join(map(re.escape, sorted(self._actions, key=len, reverse=True))), said.text)
        if not words:
            return WorldTurn(messages=[_said(f"No action was taken. Actions: {', '.join(self._actions)}\n")])
        observation, reward, terminated, truncated, _ = self._env.step(self._actions.index(words[-1]))
        done = terminated or truncated
        facts = {"terminated": float(terminated)} if done else {}
        return WorldTurn(messages=[_said(self._text(observation))], reward=float(reward), done=done, facts=facts)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    def _text(self, observation: object) -> str:
        text = self._describe(observation, self._env)
        if not isinstance(text, str):
            raise ConfigError(
                f"{self._id}: an observation is a {type(text).__name__}, not text; name a function that describes it: "
                "describe = 'file.py:name'"
            )
        return text

    def _check(self, env: "gymnasium.Env[Any, Any]") -> None:
        faults = ErrorCollector(ConfigError)
        space = env.action_space
        if not isinstance(space, Discrete):
            faults.add(f"{self._id} takes {space}; worlds of text take numbered actions")
        elif int(space.n) != len(self._actions) or int(space.start):
            first = int(space.start)
            numbers = f"{first} to {first + int(space.n) - 1}"
            faults.add(f"{self._id} has the actions {numbers}; actions names {len(self._actions)}, from 0 on")
        if len(set(self._actions)) < len(self._actions) or "" in self._actions:
            faults.add(f"actions = {list(self._actions)}: each needs a word of its own")
        faults.raise_if_any()


def minigrid_text(observation: Mapping[str, Any], _: object) -> str:
    """View of MiniGrid's agent as text: its mission, its direction, and a letter for each field in front of it.

    The agent `A` stands at the middle of the last row and looks up. `?` unseen, `.` empty, `W` wall, `F` floor, `D`
    door, `K` key, `O` ball, `B` box, `G` goal, `L` lava; a door has its state after it: `0` open, `1` closed, `2`
    locked.
    """
    image = observation["image"]
    rows = []
    for y in range(image.shape[1]):
        seen = [(int(image[x, y, 0]), int(image[x, y, 2])) for x in range(image.shape[0])]
        rows.append(" ".join(_MINIGRID_OBJECTS[kind] + (str(state) if kind == 4 else "") for kind, state in seen))
    fields = rows[-1].split(" ")
    fields[image.shape[0] // 2] = "A"
    rows[-1] = " ".join(fields)
    direction = ("right", "down", "left", "up")[int(observation["direction"])]
    return f"Mission: {observation['mission']}\nDirection: {direction}\n" + "\n".join(rows) + "\n"


def _drawing(observation: object, env: "gymnasium.Env[Any, Any]") -> object:
    """The observation if it is text, else what the environment draws; a field in colour stands in brackets."""
    if isinstance(observation, str):
        return observation
    drawn = env.render() if "ansi" in env.metadata.get("render_modes", ()) else None
    if not isinstance(drawn, str):
        return observation
    return _COLOURS.sub(lambda found: "]" if found[1] == "0" else "[", drawn)


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
