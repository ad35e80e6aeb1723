"""Steps of a vector environment become episodes: no junk rows, the right last observation, whatever the reset mode."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from hone.control.environments.make import autoreset_mode, env_seeds, sync_vector_env
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.environments.world import GymConfig, GymWorld, inspect_world, open_world, world_from_envs
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, UserCodeError
from hone.core.random import generator

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


class Counting(gymnasium.Env):
    """Observes (environment, episode, t); pays 100 * episode + t; episodes of random length end either way."""

    observation_space = spaces.Box(-1.0, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int, longest: int) -> None:
        self.number, self.longest, self.episode, self.t = number, longest, -1, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        cut = bool(self.episode % 2)
        return self._seen(), 100.0 * self.episode + self.t, over and not cut, over and cut, {}


class Coin:
    """Acts at random and says which version it is."""

    version = 7

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise):
        return (noise < 0.5).astype(np.int64), np.full(len(seen), np.log(0.5), np.float32)


def counting(mode: AutoresetMode, *, count: int, longest: int, steps: int, seed: int) -> GymWorld:
    envs = sync_vector_env([partial(Counting, number, longest) for number in range(count)], mode)
    return world_from_envs(envs, steps=steps, seed=seed)


def transitions(rollouts: list[Episodes], env: int) -> list[tuple[float, ...]]:
    """(episode, t, paid, next episode, next t, terminated, truncated) of one environment, in order."""
    found = []
    for episodes in rollouts:
        single = episodes.transitions()
        assert single.final is not None
        for row in np.flatnonzero(single.observations[:, 0] == env):
            found.append((
                *single.observations[row, 1:].tolist(), float(single.reward[row]), *single.final[row, 1:].tolist(),
                bool(single.terminated[row]), bool(single.truncated[row]),
            ))  # fmt: skip
    return found


@given(seed=st.integers(0, 1000), count=st.integers(1, 4), longest=st.integers(1, 6), steps=st.integers(1, 9))
def test_all_reset_modes_live_through_the_same(seed: int, count: int, longest: int, steps: int) -> None:
    lived = []
    for mode in MODES:
        world = counting(mode, count=count, longest=longest, steps=steps, seed=seed)
        rollouts = [world.rollout(Coin()) for _ in range(6)]
        lived.append([transitions(rollouts, env) for env in range(count)])
    for env in range(count):
        shortest = min(len(one[env]) for one in lived)
        assert shortest >= 1
        assert lived[0][env][:shortest] == lived[1][env][:shortest] == lived[2][env][:shortest]
        for episode, t, paid, next_episode, next_t, terminated, truncated in lived[0][env]:
            assert (next_episode, next_t) == (episode, t + 1), "the next observation is of the same episode"
            assert paid == 100 * episode + t + 1
            assert not (terminated and episode % 2)
            assert not (truncated and not episode % 2)


@pytest.mark.parametrize("mode", MODES)
def test_pieces_of_an_episode_belong_together(mode: AutoresetMode) -> None:
    world = counting(mode, count=3, longest=7, steps=4, seed=5)
    scores: dict[int, float] = {}
    paid: dict[int, float] = {}
    ended: set[int] = set()
    decisions = 0
    for _ in range(20):
        episodes = world.rollout(Coin())
        assert (episodes.version == 7).all()
        decisions += episodes.decisions
        for piece in range(len(episodes)):
            group = int(episodes.group[piece])
            assert group not in ended
            rows = slice(episodes.offsets[piece], episodes.offsets[piece + 1])
            paid[group] = paid.get(group, 0.0) + float(episodes.reward[rows].sum())
            scores[group] = float(episodes.score[piece])
            assert scores[group] == paid[group], "the score is the return of the whole episode so far"
            if episodes.terminated[piece] or episodes.truncated[piece]:
                ended.add(group)
    assert len(ended) > 10
    assert isinstance(world.envs, SyncVectorEnv)
    expected = 3 * 4 * 20
    assert decisions == expected if mode is not AutoresetMode.NEXT_STEP else decisions < expected


def test_native_cartpole_counts_only_real_steps() -> None:
    world = open_world(GymConfig(id="CartPole-v1", num_envs=4), steps=50, seed=1)
    assert type(world.envs).__name__ == "CartPoleVectorEnv"
    assert world.resume_exactness == "exact"
    episodes = world.rollout(Coin())
    ended = episodes.terminated
    assert ended.sum() > 3
    assert episodes.final is not None
    final = np.abs(episodes.final[ended])
    assert ((final[:, 0] > 2.4) | (final[:, 2] > 0.2094)).all(), "a terminated piece ends with the pole down"
    assert episodes.decisions < 200, "resets are no decisions"
    np.testing.assert_array_equal(episodes.score[ended], episodes.lengths[ended])


def test_an_unknown_reset_mode_is_refused() -> None:
    envs = sync_vector_env([lambda: Counting(0, 3)])
    envs.metadata["autoreset_mode"] = None
    with pytest.raises(ConfigError, match="autoreset_mode"):
        autoreset_mode(envs)


def test_seeds_of_neighbouring_runs_share_no_stream() -> None:
    seeds = [seed for run in range(10) for seed in env_seeds(run, 64)]
    assert len(set(seeds)) == len(seeds)


RESUMABLE = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4"]


class Any:
    """Any action of a space, drawn from the given noise."""

    version = 0

    def __init__(self, space: spaces.Space) -> None:
        self.space = space

    def noise(self, draws, shape):
        size = self.space.shape if isinstance(self.space, spaces.Box) else ()
        return draws.random((*shape, *size), dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        logp = np.zeros(len(seen), np.float32)
        if isinstance(self.space, spaces.Discrete):
            return (noise * self.space.n).astype(np.int64), logp
        return self.space.low + noise * (self.space.high - self.space.low), logp


@pytest.mark.parametrize("name", RESUMABLE)
def test_resume_is_bitwise(name: str) -> None:
    def opened() -> tuple[GymWorld, Any]:
        world = open_world(GymConfig(id=name, num_envs=3), steps=60, seed=3, masks=True)
        return world, Any(world.envs.single_action_space)

    world, actor = opened()
    assert world.resume_exactness == "exact", world.inexact_reason
    for _ in range(3):
        world.rollout(actor)
    state = world.state()
    again, other = opened()
    again.restore(state)
    for _ in range(4):
        here, there = world.rollout(actor), again.rollout(other)
        assert here.final is not None
        assert there.final is not None
        for one, two in (
            (here.observations, there.observations), (here.final, there.final), (here.reward, there.reward),
            (here.chosen, there.chosen), (here.score, there.score), (here.group, there.group),
            (here.offsets, there.offsets), (here.terminated, there.terminated),
        ):  # fmt: skip
            assert one.tobytes() == two.tobytes()


def hidden_state() -> type[gymnasium.Env]:
    class Hidden(Counting):
        """Keeps its state where nobody can read it."""

        def __init__(self) -> None:
            super().__init__(0, 1000)
            held = [0]
            self.tick = lambda: held.append(held[-1] + 1) or held[-1]

        def step(self, action):
            seen, reward, terminated, truncated, info = super().step(action)
            return seen, reward + self.tick(), terminated, truncated, info

    return Hidden


def test_a_hidden_state_is_found_out_and_said() -> None:
    gymnasium.register("HoneHidden-v0", hidden_state(), max_episode_steps=1000)
    try:
        config = GymConfig(id="HoneHidden-v0", num_envs=2)
        world = open_world(config, steps=5, seed=0)
        assert world.resume_exactness == "approximate"
        assert any("approximate" in note for note in world.warnings)
        first = world.rollout(Coin())
        again = open_world(config, steps=5, seed=0)
        again.restore(world.state())
        later = again.rollout(Coin())
        assert later.group.min() > first.group.max(), "the running episodes begin anew"
        assert later.observations[0, 2] == 0
    finally:
        del gymnasium.registry["HoneHidden-v0"]


# ------------------------------------------------------------------------------------------ bad environments

USER = """
import gymnasium, numpy as np
from gymnasium import spaces

class Good(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)
    def __init__(self, length=5):
        self.length = length
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= self.length, False, {}

class Nan(Good):
    def step(self, action):
        return np.array([0, np.nan], np.float32), 1.0, False, False, {}
class Shape(Good):
    def step(self, action):
        return np.zeros(3, np.float32), 1.0, False, False, {}
class Kind(Good):
    def step(self, action):
        return np.zeros(2, np.float64), 1.0, False, False, {}
class Outside(Good):
    def step(self, action):
        return np.array([0, 2], np.float32), 1.0, False, False, {}
class Four(Good):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}
class NoReward(Good):
    def step(self, action):
        return np.zeros(2, np.float32), None, False, False, {}
class Done(Good):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, 0, False, {}
class Bare(Good):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)
class Crash(Good):
    def step(self, action):
        raise KeyError("lost")
class Broken(Good):
    def __init__(self):
        raise OSError("no simulator")
class Endless(Good):
    def __init__(self):
        super().__init__(length=10**9)
class Empty(Good):
    observation_space = spaces.Box(-1, 1, (0,), np.float32)
class Nested(Good):
    observation_space = spaces.Dict({"a": spaces.Discrete(2)})
class Many(Good):
    action_space = spaces.MultiDiscrete([2, 2])
class Free(Good):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
class Late(Good):
    def __init__(self):
        super().__init__(length=300)
    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, float("nan") if self.t == 250 else reward, *rest
class Differing(Good):
    made = 0
    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.action_space = spaces.Discrete(2 + type(self).made % 2)
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("user") / "mine.py"
    path.write_text(USER)
    return str(path)


BAD = [
    ("Nan", UserCodeError, ["step 0", "environment 0", "seed", "last actions", "not finite"]),
    ("Shape", UserCodeError, ["shape [3]", "[2]"]),
    ("Kind", UserCodeError, ["float64", "float32", "astype"]),
    ("Outside", UserCodeError, ["[1] = 2.0 outside -1.0 .. 1.0"]),
    ("Four", UserCodeError, ["4 values", "terminated, truncated"]),
    ("NoReward", UserCodeError, ["reward is None"]),
    ("Done", UserCodeError, ["terminated is 0", "bool"]),
    ("Bare", UserCodeError, ["reset", "(observation, info)"]),
    ("Crash", UserCodeError, ["KeyError", "lost", "mine.py", "last actions"]),
    ("Broken", UserCodeError, ["cannot be made", "no simulator"]),
    ("Empty", ConfigError, ["no elements"]),
    ("Nested", UserCodeError, ["has no part 'a'"]),
    ("Many", ConfigError, ["several factors", "ppo"]),
    ("Missing", ConfigError, ["no class or function 'Missing'"]),
    ("Differing", UserCodeError, ["single_action_space"]),
]


@pytest.mark.parametrize(("name", "kind", "words"), BAD, ids=[name for name, _, _ in BAD])
def test_bad_environments_are_found_before_training(user: str, name: str, kind: type, words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        open_world(GymConfig(id=f"{user}:{name}", num_envs=2), steps=4, seed=0)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == {UserCodeError: 4, ConfigError: 2}[kind]


def test_unbounded_actions_are_refused_for_a_squashed_policy(user: str) -> None:
    config = GymConfig(id=f"{user}:Free", num_envs=1)
    with pytest.raises(ConfigError, match="no finite bounds"):
        open_world(config, steps=4, seed=0, squashed=True)


def test_endless_episodes_are_warned_of_unless_limited(user: str) -> None:
    assert "max_episode_steps" in open_world(GymConfig(id=f"{user}:Endless"), steps=2, seed=0).warnings[0]
    assert open_world(GymConfig(id=f"{user}:Endless", max_episode_steps=9), steps=2, seed=0).warnings == []


def test_numbers_that_go_bad_later_stop_the_run_and_say_where(user: str) -> None:
    world = open_world(GymConfig(id=f"{user}:Late", num_envs=2), steps=100, seed=0)
    world.rollout(Coin())
    world.rollout(Coin())
    with pytest.raises(UserCodeError, match=r"reward of environment 0 at step 49 of rollout 3 .* last actions \["):
        world.rollout(Coin())


def test_arguments_reach_the_class(user: str) -> None:
    world = open_world(GymConfig(id=f"{user}:Good", num_envs=1, kwargs={"length": 3}), steps=6, seed=0)
    assert world.rollout(Coin()).lengths.tolist() == [3, 3]


def test_actions_outside_the_box_are_refused_or_clipped() -> None:
    class Wild(Any):
        def decide(self, seen, noise, mask=None):
            return np.full((len(seen), 1), 3.0, np.float32), np.zeros(len(seen), np.float32)

    config = GymConfig(id="Pendulum-v1", num_envs=2)
    world = open_world(config.model_copy(update={"clip_actions": False}), steps=3, seed=0)
    with pytest.raises(
        ConfigError, match=r"\[3.0\] of environment 0 is outside \[-2.0\] .. \[2.0\]; set env.clip_actions"
    ):
        world.rollout(Wild(world.envs.single_action_space))
    for clip in (True, None):
        clipping = open_world(config.model_copy(update={"clip_actions": clip}), steps=3, seed=0)
        assert (clipping.rollout(Wild(world.envs.single_action_space)).chosen == 3.0).all(), "the choice is recorded"


def test_unknown_ids_come_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="CartPole"):
        open_world(GymConfig(id="CartPol-v1"), steps=1, seed=0)


def test_a_judgement_takes_the_first_episode_of_each_environment() -> None:
    for mode in MODES:
        envs = sync_vector_env([partial(Counting, number, 9) for number in range(5)], mode)
        scores = play_episodes(envs, lambda seen: np.zeros(len(seen), np.int64), seed=11).returns
        lengths = [int(np.random.default_rng(seed).integers(1, 10)) for seed in env_seeds(11, 5)]
        assert scores.tolist() == [length * (length + 1) / 2 for length in lengths]
    arena = open_evaluation_envs(GymConfig(id="CartPole-v1"), episodes=3)
    assert play_episodes(arena, lambda seen: np.zeros(len(seen), np.int64), seed=0).returns.max() < 15


def test_noise_does_not_depend_on_the_rollout_before() -> None:
    assert generator(3, "act", 5).random() != generator(3, "act", 6).random()


def test_a_policy_that_needs_a_box_refuses_numbered_actions_at_the_door() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1: action space Discrete\(2\) is numbered.*take dqn"):
        inspect_world(GymConfig(id="CartPole-v1"), seed=0, squashed=True)
