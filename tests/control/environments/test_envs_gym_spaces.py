"""Spaces that are not supported are refused before a run, with a wrapper that works; images are warned of."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hone.control.environments.check import check_spaces
from hone.control.environments.layout import ActionRowSpace, RowSpace
from hone.control.environments.space_advice import action_fault, observation_fault
from hone.control.environments.world import GymConfig, inspect_world, open_world
from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.mlp import EncodedMlpConfig
from hone.control.spaces import image_warnings, network_spaces
from hone.core.errors import ConfigError

HERE = Path(__file__)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
BYTES = spaces.Box(0, 255, (3, 4), np.uint8)
OBSERVATIONS = {
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}),
    "nested": spaces.Dict({"a": spaces.Tuple([BOX, spaces.MultiBinary(2)])}),
    "tuple": spaces.Tuple([spaces.Discrete(2), BOX]),
    "text": spaces.Text(5),
}
ACTIONS = {
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "shifted": spaces.MultiDiscrete([2, 3], start=[4, 0]),
    "square": spaces.MultiDiscrete([[2, 3], [2, 2]]),
    "large": spaces.MultiDiscrete([50, 60, 70]),
    "multi_binary": spaces.MultiBinary(4),
    "binary_square": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Box(0.0, 1.0, (2, 2), np.float32)}),
    "tuple": spaces.Tuple([BOX, BOX]),
}
IMAGES = {
    "colour": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "grey": spaces.Box(0, 255, (16, 16), np.uint8),
    "stacked": spaces.Box(0.0, 1.0, (4, 16, 16), np.float32),
}
SPACES: dict[str, dict[str, spaces.Space[Any]]] = {"observation": OBSERVATIONS, "action": ACTIONS, "image": IMAGES}


class Odd(gymnasium.Env):
    """Three steps; its spaces are named by its arguments. It asserts that actions are of its space."""

    def __init__(self, kind: str = "", name: str = "") -> None:
        self.observation_space, self.action_space = BOX, spaces.Discrete(2)
        if kind == "action":
            self.action_space = ACTIONS[name]
        elif kind:
            self.observation_space = SPACES[kind][name]
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}


def config(kind: str, name: str, *, isolation: str = "none", check: bool = True) -> GymConfig:
    kwargs = {"kind": kind, "name": name}
    return GymConfig.model_validate(
        {"id": f"{HERE}:Odd", "isolation": isolation, "check": check, "kwargs": kwargs, "num_envs": 2}
    )


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("observation", "action") for name in SPACES[kind]]
)
def test_recipes_that_read_one_leaf_refuse_others_before_the_run(kind: str, name: str, check: bool) -> None:
    with pytest.raises(ConfigError, match=rf"({kind}s have several|{kind} space, .* is not supported).*gymnasium\."):
        open_world(config(kind, name, check=check), steps=2, seed=0)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("observation", "action") for name in SPACES[kind] if name != "text"]
)
def test_recipes_that_read_parts_step_them(kind: str, name: str) -> None:
    world = open_world(config(kind, name), steps=2, seed=0, parts="all")
    space = world.envs.single_observation_space if kind == "observation" else world.envs.single_action_space
    assert isinstance(space, RowSpace if kind == "observation" else ActionRowSpace)
    world.close()


def test_processes_refuse_them_too() -> None:
    for kind in ("observation", "action"):
        with pytest.raises(ConfigError, match=rf"{kind}s have several"):
            open_world(config(kind, "dict", isolation="process"), steps=2, seed=0)
    with pytest.raises(ConfigError, match=r"observation space, Text.* is not supported"):
        inspect_world(config("observation", "text", isolation="process"), seed=0)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_the_wrapper_of_an_observation_works(name: str) -> None:
    fault = observation_fault(OBSERVATIONS[name])
    assert fault is not None
    assert "gymnasium.wrappers.FlattenObservation" in fault
    env = gymnasium.wrappers.FlattenObservation(Odd("observation", name))
    check_spaces("flat", env.observation_space, env.action_space)
    assert env.observation_space.contains(env.reset(seed=0)[0])


def test_an_observation_without_a_size_has_another_remedy() -> None:
    assert "TransformObservation" in str(observation_fault(spaces.Sequence(BOX)))
    assert "ActionWrapper" in str(action_fault(spaces.Dict({"a": spaces.Discrete(2), "b": BOX})))


@pytest.mark.parametrize("name", ACTIONS)
def test_the_wrapper_of_an_action_works_as_it_is_written(name: str) -> None:
    """The expression of the message, with the environment as `env`."""
    fault = action_fault(ACTIONS[name])
    assert fault is not None
    found = re.search(r"wrap the environment in (gymnasium\.wrappers\..*) \(docs/", fault)
    assert found is not None
    env = eval(found[1], {"gymnasium": gymnasium, "np": np, "env": Odd("action", name)})
    check_spaces("wrapped", env.observation_space, env.action_space)
    env.reset(seed=0)
    env.action_space.seed(0)
    space, every = env.action_space, set()
    for _ in range(200):
        if env.unwrapped.time == 3:
            env.reset()
        action = space.sample()
        every.add(str(action))
        env.step(action)
    if isinstance(space, spaces.Discrete):
        assert len(every) == int(space.n), "each combination has a number"


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_without_an_encoder_is_a_warning(name: str) -> None:
    space = IMAGES[name]
    plain = network_spaces(space, spaces.Discrete(2))
    (told,) = image_warnings(plain)
    assert str(int(np.prod(space.shape or ()))) in told
    assert "has no encoder" in told
    assert image_warnings(encoded_spaces(plain, EncodedMlpConfig())) == []
    assert inspect_world(config("image", name), seed=0)[1] == []
