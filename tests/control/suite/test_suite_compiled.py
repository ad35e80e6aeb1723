"""Worlds in C++ against the packages that published them: equal boards, rewards and ends, step by step."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from published_worlds import GAMES, ROOMS, SplitMix, Step, chooser, first_seed, play_minatar, play_minigrid
from sanitizers import check_with_sanitizers

from hone.control.environments.make import GymConfig
from hone.control.environments.registration import register_builtin_envs
from hone.control.environments.world import open_world
from hone.control.suite.compiled_worlds import CompiledEnv, CompiledVectorEnv
from hone.core.errors import ConfigError

STEPS = 3000
PUBLISHED = {
    "asterix": "11631b576147d2c5",
    "breakout": "6e15355baaff9df3",
    "freeway": "556504d9a1113656",
    "seaquest": "87ecd7a0d43ea8d9",
    "space_invaders": "5d5e706c29848ffa",
    "empty_5": "35c723b57ae46d07",
    "empty_8": "0a8d21b0a466af88",
    "door_key_5": "216383ac6517f926",
    "door_key_6": "9d01c6815a02fdac",
    "door_key_8": "9107f130ec5e9341",
    "memory_7": "aafd945566b2537c",
    "memory_13": "19a245dff2a567b3",
}
"""Digests of `STEPS` steps from seed 3 of each game as MinAtar 1.0.15 plays it (`play_minatar`)."""


def play_compiled(game: str, seed: int, steps: int, **options: Any) -> list[Step]:
    env = CompiledVectorEnv(game, minimal_actions=False, **options)
    seen, _ = env.reset(seed=seed)
    choose = chooser(game, seed)
    rows: list[Step] = []
    for _ in range(steps):
        seen, reward, terminated, truncated, info = env.step(np.array([choose(seen[0])]))
        over = bool(terminated[0] or truncated[0])
        rows.append((info["final_obs"][0] if info else seen[0], float(reward[0]), over))
    return rows


def digest(rows: Any) -> str:
    whole = hashlib.sha256()
    for seen, reward, over in rows:
        whole.update(np.packbits(seen).tobytes() + np.float64([reward, over]).tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("world", GAMES + ROOMS)
def test_worlds_are_those_of_the_published_packages(world: str) -> None:
    assert digest(play_compiled(world, 3, STEPS)) == PUBLISHED[world]


@pytest.mark.slow
@pytest.mark.parametrize("ramping", [True, False])
@pytest.mark.parametrize("sticky", [0.0, 0.1])
@pytest.mark.parametrize("game", GAMES)
def test_every_step_is_that_of_the_installed_package(game: str, sticky: float, ramping: bool) -> None:
    pytest.importorskip("minatar", reason="pip install minatar")
    assert digest(play_minatar(game, 3, STEPS)) == PUBLISHED[game]
    for seed in range(5):
        own = play_compiled(game, seed, 20_000, sticky=sticky, ramping=ramping)
        theirs = play_minatar(game, seed, 20_000, sticky=sticky, ramping=ramping)
        for number, (one, other) in enumerate(zip(own, theirs, strict=True)):
            assert one[1:] == other[1:], (seed, number)
            assert (one[0] == other[0]).all(), (seed, number)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_every_step_of_a_room_is_that_of_the_installed_package(room: str) -> None:
    pytest.importorskip("minigrid", reason="pip install minigrid")
    assert digest(play_minigrid(room, 3, STEPS)) == PUBLISHED[room]
    for seed in range(5):
        assert digest(play_minigrid(room, seed, 5000)) == digest(play_compiled(room, seed, 5000)), seed


def test_what_the_policy_of_these_tests_meets() -> None:
    """Each world is scored in, and Seaquest's submarine comes up with divers: the digests cover more than a start."""
    worlds = [world for world in GAMES + ROOMS if world != "door_key_8"]  # chance seldom opens that door
    scores = {world: sum(reward for _, reward, _ in play_compiled(world, 3, STEPS)) for world in worlds}
    assert min(scores.values()) > 0, scores
    aboard = [int(seen[9, :, 8].sum()) for seen, _, _ in play_compiled("seaquest", 3, STEPS)]
    assert any(before > after > 0 for before, after in itertools.pairwise(aboard)), "never came up"


@pytest.mark.parametrize("seed", [0, 1])
def test_cart_pole_follows_gymnasiums(seed: int) -> None:
    """States agree to the last digits of float32: sine and cosine round differently."""
    many = CompiledVectorEnv("cart_pole", 3, max_episode_steps=40)
    seen, _ = many.reset(seed=seed)
    singles = [gymnasium.make("CartPole-v1", max_episode_steps=40) for _ in range(3)]
    draws = np.random.default_rng(seed)

    def begin(number: int) -> None:
        singles[number].reset(seed=0)
        singles[number].unwrapped.state = seen[number].astype(np.float64)  # pyright: ignore[reportAttributeAccessIssue]

    for number in range(3):
        begin(number)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(300):
        actions = draws.integers(0, 2, 3) if draws.random() < 0.5 else (seen[:, 2] + seen[:, 3] > 0).astype(np.int64)
        seen, reward, terminated, truncated, info = many.step(actions)
        for number, env in enumerate(singles):
            after, paid, over, cut, _ = env.step(int(actions[number]))
            assert (paid, over) == (reward[number], terminated[number])
            assert truncated[number] == (cut and not over)
            last = info["final_obs"] if over or cut else seen
            np.testing.assert_allclose(last[number], after, rtol=1e-5, atol=1e-6)
            if over or cut:
                ends["terminated" if over else "truncated"] += 1
                begin(number)
    assert min(ends.values()) > 0, ends


def test_pendulum_follows_gymnasiums() -> None:
    many = CompiledVectorEnv("pendulum", 1)
    seen, _ = many.reset(seed=5)
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    angle = np.arctan2(seen[0, 1], seen[0, 0])
    env.unwrapped.state = np.array([angle, seen[0, 2]], np.float64)  # pyright: ignore[reportAttributeAccessIssue]
    draws = np.random.default_rng(5)
    for step in range(1, 201):
        action = draws.uniform(-3.0, 3.0, (1, 1)).astype(np.float32)
        seen, reward, terminated, truncated, info = many.step(action)
        after, paid, *_ = env.step(action[0])
        np.testing.assert_allclose(reward[0], paid, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose((info["final_obs"] if info else seen)[0], after, rtol=1e-4, atol=1e-5)
        assert (bool(terminated[0]), bool(truncated[0])) == (False, step == 200)


def test_the_first_suit_is_asked_for_to_the_end() -> None:
    env = CompiledEnv("repeat_first")
    totals = {"right": 0.0, "last": 0.0}
    lengths: set[int] = set()
    for name in totals:
        for seed in range(20):
            seen, _ = env.reset(seed=seed)
            first = last = int(seen[1:].argmax())
            assert seen[0] == 1.0
            suits, steps, over = [first], 0, False
            while not over:
                seen, reward, over, _, _ = env.step(first if name == "right" else last)
                last = int(seen[1:].argmax())
                suits.append(last)
                assert seen[0] == 0.0
                totals[name] += reward / 20
                steps += 1
            lengths.add(steps)
            assert np.bincount(suits, minlength=4).tolist() == [13, 13, 13, 13]
    assert lengths == {51}
    assert totals["right"] == pytest.approx(1.0)
    assert -0.65 < totals["last"] < -0.35  # a guess is right once in four: 1/4 - 3/4


def test_hidden_velocities_are_zero_and_the_rest_is_as_before() -> None:
    whole, partial = (CompiledVectorEnv("cart_pole", 4, velocities=shown) for shown in (True, False))
    one, other = whole.reset(seed=1)[0], partial.reset(seed=1)[0]
    assert (one[:, [0, 2]] == other[:, [0, 2]]).all()
    assert (other[:, [1, 3]] == 0.0).all()
    assert (one[:, [1, 3]] != 0.0).all()


def test_worlds_do_not_depend_on_their_neighbours() -> None:
    """A world is that of its seed in any company; a copy of the states goes on in the same way."""
    alone, many = CompiledVectorEnv("asterix", 1), CompiledVectorEnv("asterix", 5)
    alone.reset(seed=[11])
    many.reset(seed=[7, 11, 8, None, 9])
    draws = np.random.default_rng(0)
    for _ in range(200):
        actions = draws.integers(0, 5, 5)
        one, other = alone.step(actions[1:2]), many.step(actions)
        assert (one[0][0] == other[0][1]).all()
        assert one[1][0] == other[1][1]
    kept = many.states.copy()
    first = many.step(actions)
    many.states = kept
    second = many.step(actions)
    assert all((one == other).all() for one, other in zip(first[:4], second[:4], strict=True))


def test_faults_are_told() -> None:
    with pytest.raises(ConfigError, match=r"world = 'astrix' is not one of .*; did you mean asterix"):
        CompiledVectorEnv("astrix")
    with pytest.raises(ConfigError, match=r"sticky = 1\.5 is not a probability"):
        CompiledVectorEnv("asterix", sticky=1.5)
    with pytest.raises(ConfigError, match="asterix has none"):
        CompiledVectorEnv("asterix", velocities=False)
    env = CompiledVectorEnv("breakout", 2)
    before, _ = env.reset(seed=0)
    held = env.states.copy()
    with pytest.raises(ConfigError, match=r"action 3 of environment 1 is not in Discrete\(3\)"):
        env.step(np.array([0, 3]))
    assert (env.states == held).all()
    assert before.shape == (2, 10, 10, 4)


@pytest.mark.parametrize("sticky", [0.0, 1.0])
def test_sticky_actions_at_both_ends(sticky: float) -> None:
    """With 1 the first action, nothing, is taken for ever; with 0 the paddle of Breakout goes where it is told."""
    env = CompiledVectorEnv("breakout", 1, sticky=sticky)
    env.reset(seed=0)
    seen, *_ = env.step(np.array([1]))
    assert int(seen[0, 9, :, 0].argmax()) == (4 if sticky else 3)


def test_registered_ids_open_as_worlds_and_resume_exactly() -> None:
    register_builtin_envs()
    single = gymnasium.make("hone/MinAtarBreakout-v1", render_mode="rgb_array")
    single.reset(seed=1)
    for _ in range(3):
        single.step(0)
    picture = single.render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (320, 320, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 4  # empty, paddle, ball, brick
    assert gymnasium.spec("hone/CartPoleNoVel-v1").max_episode_steps == 500
    world = open_world(GymConfig(id="hone/CartPole-v1", num_envs=4), steps=8, seed=1)
    assert world.resume_exactness == "exact"


def test_chance_is_that_of_the_slow_twin() -> None:
    """SplitMix64 from 0 begins with the numbers of its authors; a pole's first state is made of them."""
    assert [hex(SplitMix(0).next()), hex(first_seed(0))][0] == "0xe220a8397b1dcdaf"
    env = CompiledVectorEnv("cart_pole")
    seen, _ = env.reset(seed=4)
    draws = SplitMix(first_seed(4))
    assert seen[0].tolist() == [np.float32(-0.05 + 0.1 * draws.rand()) for _ in range(4)]


@pytest.mark.slow  # the compiler takes most of it
def test_with_sanitizers() -> None:
    check_with_sanitizers(Path(__file__).with_name("suite_compiled_checked.py"))
