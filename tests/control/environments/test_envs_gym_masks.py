"""Masks of legal actions, from environments of every kind to episodes: none is lost, none is ignored in silence."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from masked_envs import CHOICES, Ladder, LadderVector

from hone.control.environments import masks
from hone.control.environments.make import sync_vector_env
from hone.control.environments.play import play_episodes
from hone.control.environments.world import GymConfig, GymWorld, open_world, world_from_envs
from hone.core.errors import ConfigError, UserCodeError

HERE = Path(__file__).with_name("masked_envs.py")
worlds: list[GymWorld] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while worlds:
        worlds.pop().close()


class FirstLegal:
    """The first or the last legal action, by its noise."""

    version = 0

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        assert mask is not None and mask.dtype == np.bool_ and mask.any(axis=1).all()
        first, last = mask.argmax(axis=1), CHOICES - 1 - mask[:, ::-1].argmax(axis=1)
        return np.where(noise < 0.5, first, last), np.zeros(len(seen), np.float32)


def opened(name: str, *, steps: int = 7, **settings: object) -> GymWorld:
    given = {"id": f"{HERE}:{name}", "num_envs": 3, "isolation": "none", **settings}
    worlds.append(open_world(GymConfig.model_validate(given), steps=steps, seed=3, masks=True))
    return worlds[-1]


def expected(seen: np.ndarray, length: int) -> np.ndarray:
    """The masks of a ladder from its observations `[n, 2]`."""
    rung = np.rint(seen[:, 0] * length).astype(int)
    table = np.zeros((len(rung), CHOICES), np.bool_)
    for row, at in enumerate(rung):
        table[row, [at % CHOICES, (at + 2) % CHOICES]] = True
        table[row] |= at == length  # nothing is decided at the top
    return table


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("way", ["info", "leaf", "method"])
def test_masks_come_from_every_form_and_place(way: str, isolation: str) -> None:
    name, kwargs = ("LadderMethod", {}) if way == "method" else ("Ladder", {"way": way})
    world = opened(name, kwargs=kwargs, isolation=isolation, check=isolation == "none")
    assert world.seen.shape == (3, 2)
    words = {"info": 'info["action_mask"]', "leaf": "leaf", "method": "action_masks()"}
    assert words[way] in world.notes[0] and "5 choices" in world.notes[0]
    for _ in range(3):
        episodes = world.rollout(FirstLegal())
        np.testing.assert_array_equal(episodes.mask, expected(episodes.observations, 4))
        assert episodes.final is not None
        np.testing.assert_array_equal(episodes.final_mask, expected(episodes.final, 4))
    assert world.inexact_reason is None


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masks_follow_every_way_of_resetting(mode: AutoresetMode) -> None:
    world = world_from_envs(sync_vector_env([partial(Ladder, "info", 3)] * 2, mode), steps=9, seed=0)
    episodes = world.rollout(FirstLegal())
    np.testing.assert_array_equal(episodes.mask, expected(episodes.observations, 3))
    assert episodes.final is not None
    np.testing.assert_array_equal(episodes.final_mask, expected(episodes.final, 3))
    played = play_episodes(world.envs, lambda _, mask: mask.argmax(axis=1), seed=1)
    assert played.returns.tolist() == [3.0, 3.0]


def test_a_native_vector_form_tells_its_masks() -> None:
    world = world_from_envs(LadderVector(2), steps=11, seed=0)
    episodes = world.rollout(FirstLegal())
    assert episodes.mask is not None
    lengths = [3 + number for number in (0, 1) for _ in range(11)]
    rows = [expected(row[None], length)[0] for row, length in zip(episodes.observations, lengths, strict=True)]
    np.testing.assert_array_equal(episodes.mask, rows)


def test_a_resumed_world_goes_on_with_the_masks_it_had() -> None:
    one, other = opened("Ladder"), opened("Ladder")
    one.rollout(FirstLegal())
    other.restore(one.state())
    first, second = one.rollout(FirstLegal()), other.rollout(FirstLegal())
    np.testing.assert_equal(first.columns(), second.columns())


def test_masks_are_ignored_only_where_the_config_says_so() -> None:
    with pytest.raises(ConfigError, match=r"masks of legal actions are told by info.*illegal actions as well.*off"):
        open_world(GymConfig(id=f"{HERE}:Ladder", isolation="none"), steps=4, seed=0)
    world = opened("Ladder", mask="off", kwargs={"way": "wide"})
    assert world.masks.now is None and world.notes == []
    leaf = opened("Ladder", kwargs={"way": "leaf"})
    assert leaf.envs.single_observation_space.shape == (2,)


@pytest.mark.parametrize("check", [True, False])
def test_a_mask_without_a_legal_choice_names_environment_and_step(check: bool) -> None:
    with pytest.raises(UserCodeError, match="no legal action") as told:
        opened("Ladder", kwargs={"way": "stuck"}, check=check).rollout(FirstLegal())
    assert "step 1" in str(told.value)
    assert "environment 0" in str(told.value)


def test_a_mask_without_a_legal_choice_stops_an_evaluation() -> None:
    envs = sync_vector_env([partial(Ladder, "stuck")] * 2)
    with pytest.raises(UserCodeError, match=r"environment 0 has no legal action before step 3 of an evaluation"):
        play_episodes(envs, lambda _, mask: mask.argmax(axis=1), seed=1)


def test_a_mask_of_another_size_or_at_some_steps_only_is_refused() -> None:
    with pytest.raises(UserCodeError, match=r"mask has 6 entries, and the action space Discrete\(5\) needs 5"):
        opened("Ladder", kwargs={"way": "wide"})
    with pytest.raises(UserCodeError, match=r"environment 0: the reset told no action mask, and a step did"):
        opened("Ladder", kwargs={"way": "late"}, check=False).rollout(_Anything())


class _Anything(FirstLegal):
    def decide(self, seen, noise, mask=None):
        return np.zeros(len(seen), np.int64), np.zeros(len(seen), np.float32)


def test_bits_besides_0_and_1_are_no_mask() -> None:
    space = Ladder().action_space
    with pytest.raises(UserCodeError, match="besides 0 and 1"):
        masks.as_mask(np.array([0, 2, 1, 0, 0]), space, where="it")
    assert masks.as_mask([1, 0, 0, 1, 0], space, where="it").tolist() == [True, False, False, True, False]
    with pytest.raises(UserCodeError, match="no legal action here"):
        masks.VectorMasks(space, np.zeros((1, 5), np.bool_)).require_choice(np.ones(1, np.bool_), where="here")
