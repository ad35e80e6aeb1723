"""Environments of Gymnasium as text: FrozenLake of the package itself, described observations, and faults."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError
from hone.text.adapters.gymnasium_text import GymnasiumTextWorld, minigrid_text

LAKE = ("left", "down", "right", "up")


def content(turn: WorldTurn) -> str:
    (message,) = turn.messages
    return str(message["content"])


def lake(**kwargs) -> GymnasiumTextWorld:
    return GymnasiumTextWorld("FrozenLake-v1", actions=LAKE, kwargs={"is_slippery": False, **kwargs}, goal="Reach G.\n")


def test_frozen_lake_is_walked_in_words() -> None:
    world = lake()
    assert content(world.begin({}, 3)) == "Reach G.\n\n[S]FFF\nFHFH\nFFFH\nHFFG\n"
    assert content(world.answer(PolicyTurn(text="I go left, no: right"))) == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG\n"
    lost = content(world.answer(PolicyTurn(text="north")))
    assert lost == "No action was taken. Actions: left, down, right, up\n"
    turns = [
        world.answer(PolicyTurn(text=word)) for word in ("left", "down", "down", "right", "down", "right", "right")
    ]
    assert [turn.reward for turn in turns] == [0, 0, 0, 0, 0, 0, 1]
    assert turns[-1].done
    assert turns[-1].facts == {"terminated": 1.0}
    world.close()


def test_an_episode_that_gymnasium_truncates_ends() -> None:
    world = lake(max_episode_steps=2)
    world.begin({}, 0)
    assert not world.answer(PolicyTurn(text="left")).done
    last = world.answer(PolicyTurn(text="left"))
    assert last.done
    assert last.facts == {"terminated": 0.0}


def test_samples_of_a_row_share_its_first_state() -> None:
    def first(columns: dict[str, object], seed: int) -> str:
        world = GymnasiumTextWorld("Taxi-v4", actions=["s", "n", "e", "w", "pick", "drop"])
        return content(world.begin(columns, seed))

    assert first({"seed": 5}, 1) == first({"seed": 5}, 2)
    assert first({}, 1) == first({}, 1)
    assert len({first({}, seed) for seed in range(6)}) > 1


class NumberEnv(gymnasium.Env):
    """Has no drawing; its action space is continuous or its actions are too few, by its arguments."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, continuous: bool = False) -> None:
        if continuous:
            self.action_space = gymnasium.spaces.Box(0, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


@pytest.fixture
def number_env():
    gymnasium.register("hone-test/Number-v0", NumberEnv)
    yield "hone-test/Number-v0"
    gymnasium.registry.pop("hone-test/Number-v0")


def test_faults_name_the_remedy(number_env: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a function that describes it"):
        GymnasiumTextWorld(number_env, actions=["a", "b"]).begin({}, 0)
    with pytest.raises(ConfigError) as refused:
        GymnasiumTextWorld(number_env, actions=["a", "a", "b"]).begin({}, 0)
    assert len(refused.value.messages) == 2
    assert "has the actions 0 to 1; actions names 3" in refused.value.messages[0]
    with pytest.raises(ConfigError, match="takes Box"):
        GymnasiumTextWorld(number_env, actions=["a"], kwargs={"continuous": True}).begin({}, 0)
    (tmp_path / "seen.py").write_text("def describe(observation, env):\n    return f'{len(observation)} numbers'\n")
    world = GymnasiumTextWorld(number_env, actions=["a", "b"], describe=f"{tmp_path / 'seen.py'}:describe")
    assert content(world.begin({}, 0)) == "2 numbers"


def test_what_minigrids_agent_sees_as_letters() -> None:
    image = np.zeros((3, 3, 3), np.uint8)
    image[..., 0] = [[2, 1, 1], [4, 1, 1], [2, 8, 9]]
    image[1, 0, 2] = 2
    seen = minigrid_text({"image": image, "mission": "get to the goal", "direction": 3}, None)
    assert seen == "Mission: get to the goal\nDirection: up\nW D2 W\n. . G\n. A L\n"
