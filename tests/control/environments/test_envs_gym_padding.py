"""Sequences in observations, filled up to a length: by hand, against a slow version, in worlds, processes and games."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from control_runs import StepRecorder
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.make import GymConfig
from hone.control.environments.padding import padded_space, padded_value, sequence_paths
from hone.control.environments.world import open_world
from hone.control.seats.adapters import PettingZooParallel, as_seat_game, game_maker
from hone.control.seats.game import SeatGame, SeatsConfig, SeatStep, SeatView
from hone.control.seats.matches import SeatLayout
from hone.control.seats.world import open_seat_world
from hone.core.errors import ConfigError, UserCodeError
from hone.recipes.on_policy import ppo
from hone.recipes.registry import load_recipe
from hone.run.loop import train

HERE = str(Path(__file__))
CAR = spaces.Dict({"kind": spaces.Discrete(3, start=1), "lights": spaces.MultiBinary(2), "speed": spaces.Box(1, 9, ())})
SEEN = spaces.Dict({"cars": spaces.Sequence(CAR), "own": spaces.Box(0, 1, (1,), np.float32)})


class Road(gymnasium.Env[Any, Any]):
    """Cars come and go; the action that is paid is the number of cars."""

    def __init__(self, most: int = 3) -> None:
        self.observation_space, self.action_space, self.most = SEEN, spaces.Discrete(4), most

    def _see(self) -> dict[str, Any]:
        self.held = int(self.np_random.integers(0, self.most + 1))
        cars = tuple(
            {"kind": np.int64(1 + number % 3), "lights": np.ones(2, np.int8), "speed": np.float32(2 + number)}
            for number in range(self.held)
        )
        return {"cars": cars, "own": np.ones(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self._see(), {}

    def step(self, action):
        paid, self.clock = float(action == self.held), self.clock + 1
        return self._see(), paid, self.clock == 8, False, {}


def test_a_sequence_by_hand() -> None:
    """Two cars where three fit: the third is nothing, of the first kind and without a bit."""
    lengths = {"cars": 3}
    space = padded_space(SEEN, lengths)
    cars = (
        {"kind": np.int64(3), "lights": np.array([1, 0], np.int8), "speed": np.float32(2.5)},
        {"kind": np.int64(2), "lights": np.array([0, 1], np.int8), "speed": np.float32(9.0)},
    )
    value = padded_value(SEEN, lengths, {"cars": cars, "own": np.ones(1, np.float32)})
    assert space.contains(value)
    items = value["cars"]["items"]
    assert items["kind"].tolist() == [3, 2, 1]
    assert items["lights"].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert items["speed"].tolist() == [2.5, 9.0, 0.0]
    assert value["cars"]["present"].tolist() == [1, 1, 0]
    full = padded_value(SEEN, {"cars": 2}, {"cars": cars, "own": np.ones(1, np.float32)})
    assert full["cars"]["present"].tolist() == [1, 1]  # exactly as many as fit
    with pytest.raises(UserCodeError, match=r"'cars' of the observation has 2 items, and env.pad holds 1: set env.pad"):
        padded_value(SEEN, {"cars": 1}, {"cars": cars, "own": np.ones(1, np.float32)})


ITEMS = [
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 255, (2, 2), np.uint8))),
]


@given(kind=st.sampled_from(ITEMS), stack=st.booleans(), seed=st.integers(0, 1000))
def test_any_sample_is_an_element_of_the_padded_space_and_can_be_read_back(kind: Any, stack: bool, seed: int) -> None:
    """Against a slow walk that reads the present items one by one."""
    space = spaces.Sequence(kind, stack=stack, seed=seed)
    value = space.sample()
    count = len(value[0]) if stack and isinstance(kind, spaces.Tuple) else len(value)
    most = max(count, 1) + seed % 3
    padded = padded_value(space, {"": most}, value)
    assert padded_space(space, {"": most}).contains(padded)
    assert padded["present"].sum() == count and (np.diff(padded["present"]) <= 0).all()
    parts = padded["items"] if isinstance(kind, spaces.Tuple) else (padded["items"],)
    for number in range(count):
        for place, part in enumerate(parts):
            item = (
                (value[place][number] if stack else value[number][place])
                if isinstance(kind, spaces.Tuple)
                else value[number]
            )
            np.testing.assert_array_equal(part[number], item)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_worlds_see_the_items_and_who_is_there(isolation: Any) -> None:
    config = GymConfig(
        id=f"{HERE}:Road", num_envs=2, isolation=isolation, pad={"cars": 3}, ignore=["cars.items.lights"]
    )
    world = open_world(config, steps=20, seed=1, parts="all")
    layout = world.envs.single_observation_space.layout  # pyright: ignore[reportAttributeAccessIssue]
    assert [leaf.path for leaf in layout.leaves] == ["cars.items.kind", "cars.items.speed", "cars.present", "own"]
    present = layout.view(world.seen, layout.leaf("cars.present"))
    speed = layout.view(world.seen, layout.leaf("cars.items.speed"))
    np.testing.assert_array_equal(present == 1, speed > 0)
    world.close()


def test_a_policy_learns_to_count() -> None:
    given: dict[str, Any] = {
        "recipe": "ppo", "name": "x", "steps": 30, "env": {"id": f"{HERE}:Road", "num_envs": 16, "isolation": "none",
        "pad": {"cars": 3}}, "evaluation": {"episodes": 4}, "learner": {"lr": 0.01}, "rollout_steps": 16,
    }  # fmt: skip
    config = load_recipe("ppo").config.model_validate(given)
    assert isinstance(config, ppo.PpoConfig)
    job = config.open().build(config)
    train(job.recipe, steps=30, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] >= 7.0  # chance: 2
    job.close()


def test_faults_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'leaf \'cars\' of the .*env.pad = \{"cars" = n\}'):
        open_world(GymConfig(id=f"{HERE}:Road", isolation="none"), steps=1, seed=0, parts="all")
    with pytest.raises(ConfigError, match=r"env.pad.car: .* no sequence 'car'.*'cars'"):
        open_world(GymConfig(id=f"{HERE}:Road", isolation="none", pad={"car": 3}), steps=1, seed=0, parts="all")
    with pytest.raises(UserCodeError, match=r"'cars' of the observation has 3 items, and env.pad holds 2"):
        open_world(
            GymConfig(id=f"{HERE}:Road", num_envs=8, isolation="none", pad={"cars": 2}), steps=1, seed=0, parts="all"
        )
    with pytest.raises(ConfigError, match="items of the kind Text have no fixed size"):
        padded_space(spaces.Sequence(spaces.Text(3)), {"": 2})
    with pytest.raises(UserCodeError, match="does not hold items of"):
        padded_value(spaces.Sequence(spaces.Box(0, 1, (2,))), {"": 2}, ([1.0, 2.0, 3.0],))
    with pytest.raises(ValueError, match="greater than 0"):
        GymConfig(id="x", pad={"cars": 0})
    assert list(sequence_paths(spaces.Tuple((SEEN, spaces.Sequence(CAR))))) == ["0.cars", "1"]


# --------------------------------------------------------------------------------------------------------------- seats


class Convoy(SeatGame):
    """A driver of two pedals and a wheel, a navigator of one number who sees the cars ahead."""

    seats = ("driver", "navigator")
    observation_spaces = (spaces.Box(0, 9, (1,), np.float32), spaces.Sequence(spaces.Box(0, 1, (2,), np.float32)))
    action_spaces = (spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 10, (1,), np.float32))

    def reset(self, seed: int) -> None:
        self.clock = 0
        self.taken: list[Any] = []

    def to_move(self):
        return (0, 1) if self.clock < 3 else ()

    def observe(self, seat: int) -> SeatView:
        cars = tuple(np.full(2, 0.5, np.float32) for _ in range(self.clock))
        return SeatView(seen=cars if seat else np.array([self.clock], np.float32))

    def step(self, actions) -> SeatStep:
        self.clock += 1
        self.taken.append(actions)
        return SeatStep(rewards={0: 1.0, 1: 1.0})


def test_seats_of_different_sizes_have_one_policy() -> None:
    config = SeatsConfig(id=f"{HERE}:Convoy", num_envs=2, pad={"": 3})
    world = open_seat_world(config, decisions=4, seed=0)
    assert world.layout.width == 3 * 2 + 3 and world.layout.policy_spaces.box.size == 3
    game = world.matches[0].game
    game.reset(0)
    game.step({})
    assert world.layout.row(1, game.observe(1).seen).tolist() == [0.5, 0.5, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert world.layout.row(0, game.observe(0).seen).tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    driven = world.layout.to_game(0, np.array([0.5, -2.0, 1.0], np.float32))
    assert driven.tolist() == [0.5, -1.0, 1.0]
    pointed = world.layout.to_game(1, np.array([0.5, -2.0, 1.0], np.float32))  # 3/4 of the way from 0 to 10
    assert pointed.tolist() == [7.5]
    back = world.layout.to_policy(1, pointed)
    assert back.tolist() == [0.5, 0.0, 0.0]
    assert world.layout.to_policy(0, driven).tolist() == driven.tolist()
    with pytest.raises(ConfigError, match="no sequence 'cars'"):
        game_maker(config.model_copy(update={"pad": {"cars": 3}}))()
    with pytest.raises(ConfigError, match="Sequence"):
        open_seat_world(SeatsConfig(id=f"{HERE}:Convoy"), decisions=4, seed=0)


def test_boxes_without_bounds_cannot_be_moved() -> None:
    game = Convoy()
    game.observation_spaces = (game.observation_spaces[0],) * 2
    game.action_spaces = (game.action_spaces[0], spaces.Box(-np.inf, np.inf, (1,), np.float32))
    with pytest.raises(ConfigError, match="the actions of the seats differ"):
        SeatLayout.from_game(game, "convoy")


def test_agents_of_pettingzoo_with_boxes_and_sequences_of_their_own() -> None:
    """A parallel environment whose agents see and act in spaces of different sizes, trained by one policy."""
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")
    config = SeatsConfig(id=f"{HERE}:make_convoy", num_envs=2, pad={"": 3})
    assert isinstance(as_seat_game(make_convoy(), "x"), PettingZooParallel)
    given: dict[str, Any] = {
        "recipe": "ippo", "name": "x", "steps": 2, "env": config.model_dump(), "rollout_steps": 4,
        "evaluation": {"episodes": 2},
    }  # fmt: skip
    entry = load_recipe("ippo")
    job = entry.build(entry.config.model_validate(given))
    train(job.recipe, steps=2, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == pytest.approx(3.0)
    job.close()


def make_convoy() -> Any:
    """The convoy as an environment of PettingZoo."""
    from pettingzoo import ParallelEnv

    class Both(ParallelEnv):
        metadata = {"name": "convoy"}
        possible_agents = ["driver", "navigator"]

        def __init__(self) -> None:
            self.game, self.agents = Convoy(), []

        def observation_space(self, agent):
            return Convoy.observation_spaces[self.possible_agents.index(agent)]

        def action_space(self, agent):
            return Convoy.action_spaces[self.possible_agents.index(agent)]

        def _views(self):
            return {name: self.game.observe(seat).seen for seat, name in enumerate(self.possible_agents)}

        def reset(self, seed=None, options=None):
            self.game.reset(seed or 0)
            self.agents = list(self.possible_agents)
            return self._views(), {name: {} for name in self.agents}

        def step(self, actions):
            for seat, name in enumerate(self.possible_agents):
                assert Convoy.action_spaces[seat].contains(actions[name])
            self.game.step(actions)
            over = not self.game.to_move()
            self.agents = [] if over else list(self.possible_agents)
            every = dict.fromkeys(self.possible_agents)
            return self._views(), dict.fromkeys(every, 1.0), dict.fromkeys(every, over), dict.fromkeys(every, False), {}

    return Both()
