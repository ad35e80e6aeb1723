"""Wrappers by name: Gymnasium's and the user's, in order, in processes too; what cannot be is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.environments.make import GymConfig, env_factory, runs_isolated
from hone.control.environments.world import inspect_world, open_world
from hone.core.errors import ConfigError, HoneError, UserCodeError

FILE = str(Path(__file__).parents[2] / "support" / "pixel_envs.py")
WRAPPER = """
import gymnasium


class Scaled(gymnasium.RewardWrapper):
    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by

    def reward(self, reward):
        return self.by * reward
"""


def config(*wrappers: Any, **more: Any) -> GymConfig:
    tables = {"id": f"{FILE}:LitCorner", "isolation": "none", "kwargs": {"side": 12}, "wrappers": list(wrappers)}
    return GymConfig.model_validate({**tables, **more})


def test_the_first_wrapper_is_the_innermost() -> None:
    stack = {"name": "FrameStackObservation", "kwargs": {"stack_size": 3}}
    one = env_factory(config(stack, {"name": "ReshapeObservation", "kwargs": {"shape": [3, 12, 12]}})).make_one()
    assert one.observation_space.shape == (3, 12, 12)
    assert type(one.unwrapped).__name__ == "LitCorner"
    with pytest.raises(UserCodeError, match="Reshape"):
        env_factory(config({"name": "ReshapeObservation", "kwargs": {"shape": [3, 12, 12]}}, stack)).make_one()


def test_a_wrapper_of_the_user_runs_in_a_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(WRAPPER)
    scaled = {"name": f"{file}:Scaled", "kwargs": {"by": 3.0}}
    assert runs_isolated(config(scaled, id="CartPole-v1", kwargs={}, isolation="auto"))
    assert not runs_isolated(config("FlattenObservation", id="CartPole-v1", kwargs={}, isolation="auto"))

    class Still:
        version = 0

        def noise(self, draws: Any, shape: tuple[int, ...]) -> Any:
            return np.zeros(shape, np.float32)

        def decide(self, seen: Any, noise: Any) -> Any:
            return np.zeros(len(seen), np.int64), noise

    rewards = []
    for wrappers, isolation in (([], "none"), ([scaled], "none"), ([scaled], "process")):
        world = open_world(config(*wrappers, num_envs=2, isolation=isolation, workers=1), steps=6, seed=4)
        rewards.append(world.rollout(Still()).reward)
        world.close()
    assert rewards[0].any()
    assert np.array_equal(3.0 * rewards[0], rewards[1])
    assert np.array_equal(rewards[1], rewards[2])


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("FrameStackObservations", "did you mean FrameStackObservation"),
        ("absent.py:Scaled", "no such file absent.py"),
        ({"name": "FrameStackObservation"}, "stack_size"),
    ],
)
def test_what_cannot_wrap_is_told(wrapper: Any, message: str) -> None:
    with pytest.raises(HoneError, match=message):
        inspect_world(config(wrapper), seed=0)


def test_a_name_is_a_wrapper_without_arguments() -> None:
    (wrapper,) = config("FlattenObservation").wrappers
    assert (wrapper.name, wrapper.kwargs) == ("FlattenObservation", {})
    with pytest.raises(ConfigError, match=r"env\.wrappers\[0\]"):
        env_factory(config("Nothing")).make_one()
