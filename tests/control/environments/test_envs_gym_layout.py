"""Spaces of several parts: rows hold every leaf exactly, and travel through worlds as they are."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from parts_envs import ACTIONS, SEEN, Parts

from hone.control.environments.layout import ActionRowSpace, RowSpace, action_leaves, action_reader, layout_of
from hone.control.environments.make import env_factory
from hone.control.environments.protocol import space_from_json, space_to_json
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.control.networks.mlp import ObservationInputs
from hone.control.spaces import world_spaces
from hone.core.errors import ConfigError, UserCodeError

HERE = Path(__file__).with_name("parts_envs.py")
worlds: list[GymWorld] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while worlds:
        worlds.pop().close()


def opened(name: str = "Parts", **settings: object) -> GymWorld:
    given = {"id": f"{HERE}:{name}", "num_envs": 3, "isolation": "none", **settings}
    worlds.append(open_world(GymConfig.model_validate(given), steps=9, seed=3, masks=True, parts="all"))
    return worlds[-1]


leaf_spaces = st.one_of(
    st.tuples(st.sampled_from(["u1", "f4", "f8", "i2", "?"]), st.lists(st.integers(1, 3), max_size=3)).map(
        lambda given: spaces.Box(0, 1, tuple(given[1]), np.dtype(given[0]).type)
    ),
    st.tuples(st.integers(1, 5), st.integers(-3, 3)).map(lambda given: spaces.Discrete(given[0], start=given[1])),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
nested = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
).filter(lambda space: isinstance(space, spaces.Dict | spaces.Tuple))


@examples(60)
@given(nested, st.integers(0, 99))
def test_rows_hold_every_leaf_and_equal_observations_are_equal_rows(space: spaces.Space, seed: int) -> None:
    layout = layout_of(space)
    assert layout is not None and layout.row_bytes % 8 == 0
    space.seed(seed)
    rows = np.zeros((3, layout.row_bytes), np.uint8)
    values = [space.sample() for _ in range(3)]
    for number, value in enumerate(values):
        layout.write(rows[number : number + 1], value)
    again = np.zeros_like(rows)
    layout.write(again[:1], values[0])
    assert again[0].tobytes() == rows[0].tobytes()
    for leaf in layout.leaves:
        assert leaf.offset % np.dtype(leaf.dtype).itemsize == 0
        for number, value in enumerate(values):
            part = value
            for name in leaf.path.split("."):
                part = part[int(name) if isinstance(part, tuple) else name]
            np.testing.assert_array_equal(layout.view(rows, leaf)[number], np.asarray(part))


@examples(40)
@given(nested, st.integers(0, 99))
def test_numbers_of_rows_are_the_same_in_torch_and_numpy_and_gymnasium_s(space: spaces.Space, seed: int) -> None:
    """Beside `gymnasium.spaces.flatten`, which divides no image by 255 and so is compared without."""
    layout = layout_of(space)
    assert layout is not None
    space.seed(seed)
    value, rows = space.sample(), np.zeros((1, layout.row_bytes), np.uint8)
    layout.write(rows, value)
    size = sum(leaf.features for leaf in layout.leaves)
    inputs = ObservationInputs(size=size, leaves=layout.leaves)
    numbers = inputs.array(rows)
    np.testing.assert_array_equal(numbers, inputs.tensor(torch.from_numpy(rows)).numpy())
    np.testing.assert_allclose(numbers[0], spaces.flatten(space, value).astype(np.float32))


def test_images_are_bytes_in_rows_and_at_most_1_for_networks() -> None:
    layout = layout_of(spaces.Dict(SEEN))
    assert layout is not None
    assert [(leaf.path, leaf.bytes) for leaf in layout.leaves] == [
        ("hint.0", 8), ("hint.1", 2), ("image", 9), ("level", 16), ("pair", 16)
    ]  # fmt: skip
    inputs = ObservationInputs(size=sum(leaf.features for leaf in layout.leaves), leaves=layout.leaves)
    rows = np.zeros((1, layout.row_bytes), np.uint8)
    layout.write(rows, Parts().reset(seed=1)[0])
    assert inputs.array(rows)[:, 5:14].max() == 1.0  # three choices and two bits stand before the image
    shifted = inputs.with_moments(np.full(inputs.size, 5.0), np.full(inputs.size, 2.0), 10.0)
    changed = np.flatnonzero(shifted.array(rows)[0] != inputs.array(rows)[0])
    assert changed.tolist() == [14, 15]  # the two numbers of `level` alone are normalised


@pytest.mark.parametrize("kind", [name for name in ACTIONS if name != "discrete"])
def test_actions_come_back_in_the_structure_of_their_space(kind: str) -> None:
    space = ACTIONS[kind]
    leaves = action_leaves(space)
    assert leaves is not None
    rows, read = ActionRowSpace(leaves), action_reader(space, leaves)
    rows.seed(3)
    for _ in range(50):
        assert space.contains(read(rows.sample()))
    assert np.dtype(rows.dtype) == (np.float32 if kind == "dict" else np.int64)


def test_spaces_of_rows_pass_between_processes() -> None:
    layout, leaves = layout_of(spaces.Dict(SEEN)), action_leaves(ACTIONS["dict"])
    assert layout is not None and leaves is not None
    for space in (RowSpace(layout), ActionRowSpace(leaves)):
        assert space_to_json(space_from_json(space_to_json(space))) == space_to_json(space)


class Best:
    """Plays what the observation's row says, as a row of numbers."""

    version = 0

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        assert seen.dtype == np.uint8
        layout = layout_of(spaces.Dict(SEEN))
        assert layout is not None
        want = layout.view(seen, layout.leaf("hint.0")) - 1
        return np.stack([want + 1, want % 2], axis=1), np.zeros(len(seen), np.float32)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_rows_travel_through_worlds_and_processes(isolation: str) -> None:
    world = opened(kwargs={"action": "multi_discrete"}, isolation=isolation)
    assert world.inexact_reason is None
    assert "image (numbers [3, 3, 1] uint8)" in world.notes[0] and "choices of [3, 2]" in world.notes[1]
    episodes = world.rollout(Best())
    assert episodes.observations.dtype == np.uint8 and episodes.chosen.dtype == np.int64
    assert set(episodes.score[episodes.terminated]) == {4.0}
    assert episodes.final is not None
    np.testing.assert_array_equal(episodes.final[:, 45:48], 0)  # zeros between the leaves


def test_a_native_vector_form_has_rows_as_well() -> None:
    world = opened("PartsVector")

    class Hinted(Best):
        def decide(self, seen, noise, mask=None):
            chosen, logp = super().decide(seen, noise)
            return chosen[:, 0] - 1, logp

    episodes = world.rollout(Hinted())
    assert set(episodes.score[episodes.terminated]) == {4.0}


def test_leaves_may_be_left_out_and_a_single_one_is_itself() -> None:
    with pytest.raises(ConfigError) as told:
        opened(kwargs={"text": True})
    assert "the leaf 'words' of the observation space" in str(told.value)
    assert 'env.ignore = ["words"]' in str(told.value)
    world = opened(kwargs={"text": True}, ignore=["words", "hint"])
    assert [leaf.path for leaf in world_spaces(world).inputs.leaves] == ["image", "level", "pair"]
    alone = opened(kwargs={"text": True}, ignore=["words", "hint", "level", "pair"])
    assert alone.envs.single_observation_space.shape == (3, 3, 1) and alone.seen.dtype == np.uint8
    with pytest.raises(ConfigError, match=r"no leaf 'speed'; it has 'hint.0', 'hint.1', 'image'"):
        opened(ignore=["speed"])


def test_graphs_sequences_and_texts_are_refused_by_leaf() -> None:
    graph = spaces.Graph(spaces.Box(0, 1, (2,)), None)
    observation = spaces.Dict({"a": graph, "b": spaces.Sequence(spaces.Discrete(2)), "c": spaces.Discrete(2)})
    with pytest.raises(ConfigError) as told:
        layout_of(observation)
    first, second = told.value.messages
    assert "'a'" in first and "'b'" in second
    with pytest.raises(ConfigError, match=r"leaf '0' of the action space, Text.*ActionWrapper"):
        action_leaves(spaces.Tuple((spaces.Text(3), spaces.Discrete(2))))


def test_a_leaf_that_is_not_finite_or_of_another_shape_is_named() -> None:
    env = env_factory(GymConfig(id=f"{HERE}:Parts")).make_one()
    layout, seen = env.observation_space.layout, Parts().reset(seed=0)[0]
    rows = np.zeros((1, layout.row_bytes), np.uint8)
    with pytest.raises(UserCodeError, match="leaf 'level' of the observation is not finite"):
        layout.write(rows, {**seen, "level": np.array([np.nan, 1.0])})
    with pytest.raises(UserCodeError, match=r"leaf 'pair' of the observation has shape \[3\], .* has \[2\]"):
        layout.write(rows, {**seen, "pair": np.zeros(3, np.int64)})
