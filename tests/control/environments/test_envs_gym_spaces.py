"""Spaces that are not supported are refused before a run, with a wrapper that works; images are warned of."""

import re

import gymnasium
import numpy as np
import odd_spaces
import pytest
from gymnasium import spaces
from odd_spaces import ACTIONS, BOX, IMAGES, OBSERVATIONS, SPACES, Odd

from hone.control.environments.check import check_spaces
from hone.control.environments.layout import ActionRowSpace, RowSpace
from hone.control.environments.space_advice import action_fault, observation_fault
from hone.control.environments.world import GymConfig, inspect_world, open_world
from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.mlp import EncodedMlpConfig
from hone.control.spaces import image_warnings, network_spaces
from hone.core.errors import ConfigError


def config(kind: str, name: str, *, isolation: str = "none", check: bool = True) -> GymConfig:
    kwargs = {"kind": kind, "name": name}
    return GymConfig.model_validate(
        {"id": f"{odd_spaces.__file__}:Odd", "isolation": isolation, "check": check, "kwargs": kwargs, "num_envs": 2}
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
