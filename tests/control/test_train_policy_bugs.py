"""Bugs that other libraries had without a word, each a test of the whole way from a step to a credit.

Where one is held off by a part alone, its test stands there:
GAE over a batch == its episodes one by one, recursion by hand: tests/credit/test_credit_returns.py
  (`test_a_batch_is_its_episodes_one_by_one`, `test_gae_equals_the_recursion`);
unknown autoreset mode refused, native CartPole's junk rows, seeds of neighbouring runs, the checker before training
  (4-tuple API, NaN, shapes, types, unbounded actions): tests/control/environments/test_envs_gym_world.py;
TRPO puts every bit back where its search fails: tests/learner/test_train_natural_gradient.py
  (`test_a_search_that_fails_puts_every_bit_back_and_says_so`).
"""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from examples import examples
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from hone.control.acting import NetworkActor
from hone.control.environments.make import env_seeds, sync_vector_env
from hone.control.environments.world import GymConfig, open_world, world_from_envs
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import MlpConfig
from hone.control.spaces import network_spaces
from hone.core.credit import Values
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.credit.moments import ReturnScale, RunningMeanStd
from hone.credit.returns import gae, one_step_target
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.sources.live import _join_pieces

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


class Numbered(gymnasium.Env[Any, Any]):
    """Shows (environment, episode, t), pays t + episode, ends by termination, by a limit, or by both at once."""

    observation_space = spaces.Box(-1.0, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.t = number, -1, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.length = int(self.np_random.integers(1, 7))
        return self._seen(), {}

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        over, way = self.t >= self.length, self.episode % 3
        return self._seen(), float(self.t + self.episode), over and way != 1, over and way != 0, {}


class Coin:
    """Acts at random."""

    version = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (noise < 0.5).astype(np.int64), np.full(len(seen), np.log(0.5), np.float32)


def lived(mode: AutoresetMode, *, envs: int = 3, steps: int = 11, rollouts: int = 6, seed: int = 4) -> list[Episodes]:
    world = world_from_envs(
        sync_vector_env([partial(Numbered, number) for number in range(envs)], mode), steps=steps, seed=seed
    )
    return [world.rollout(Coin()) for _ in range(rollouts)]


def worth(seen: np.ndarray) -> np.ndarray:
    """A critic that tells every state apart."""
    return (1000.0 * seen[:, 0] + 37.0 * seen[:, 1] + seen[:, 2]).astype(np.float32)


def credited(episodes: Episodes, *, discount: float = 0.9, decay: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    assert episodes.final is not None
    values = Values(value=worth(episodes.observations), final=worth(episodes.final))
    credits = gae(episodes, values, discount=discount, gae_lambda=decay)
    assert credits.target is not None
    return credits.advantage, credits.target


@pytest.mark.parametrize("mode", MODES)
def test_no_row_of_a_reset_is_learned_from(mode: AutoresetMode) -> None:
    """Transitions are as many as the episodes are long, and each leads from t to t + 1 of its own episode."""
    pieces = concatenate(lived(mode))
    single = pieces.transitions()
    assert single.final is not None
    before, after = single.observations, single.final
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    np.testing.assert_array_equal(before[:, 2] + 1, after[:, 2])
    whole, _ = _join_pieces(pieces)
    assert whole.final is not None
    np.testing.assert_array_equal(whole.lengths, whole.final[:, 2])
    assert len(np.unique(before, axis=0)) == len(before), "a decision twice"


@examples(15)
@given(st.sampled_from(MODES), st.integers(1, 30), st.integers(0, 50))
def test_the_way_it_is_cut_changes_no_whole_return(mode: AutoresetMode, steps: int, seed: int) -> None:
    """lambda 1: a rollout's borders move nothing but what the critic bridges; with whole episodes, nothing at all."""
    pieces = lived(mode, steps=steps, rollouts=4, seed=seed)
    whole, _ = _join_pieces(concatenate(pieces))
    advantage, _ = credited(whole, decay=1.0)
    for number in range(len(whole)):
        alone = whole.take(np.array([number]))
        rewards, end = alone.reward.astype(np.float64), worth(alone.final)[0] * (not alone.terminated[0])
        powers = 0.9 ** np.arange(len(rewards) + 1)
        total = (powers[:-1] * rewards).sum() + powers[-1] * end
        first = whole.offsets[number]
        assert advantage[first] == pytest.approx(total - worth(alone.observations)[0], rel=1e-5, abs=2e-3)


def test_the_value_of_the_state_before_a_terminal_reward_is_that_reward() -> None:
    """lambda 0 on a chain of three: the last target is the reward alone, also where the next row is another episode."""
    whole, _ = _join_pieces(concatenate(lived(AutoresetMode.SAME_STEP)))
    _, target = credited(whole, decay=0.0)
    last = whole.offsets[1:] - 1
    ended = whole.terminated
    np.testing.assert_allclose(target[last[ended]], whole.reward[last[ended]])
    assert whole.final is not None
    cut = ~ended
    assert cut.any()
    expected = whole.reward[last[cut]] + 0.9 * worth(whole.final[cut])
    np.testing.assert_allclose(target[last[cut]], expected, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_terminated_and_truncated_together_is_terminated(mode: AutoresetMode) -> None:
    whole, _ = _join_pieces(concatenate(lived(mode, rollouts=12)))
    both = whole.terminated & whole.truncated
    assert both.any()
    credits = one_step_target(whole, Values(value=np.zeros(0, np.float32), final=np.zeros(0, np.float32)), discount=0.9)
    assert credits.discount is not None
    assert (credits.discount[whole.offsets[1:][both] - 1] == 0).all()
    _, target = credited(whole, decay=0.0)
    last = whole.offsets[1:][both] - 1
    np.testing.assert_allclose(target[last], whole.reward[last])


def test_statistics_are_the_same_under_every_way_of_resetting() -> None:
    """Of the first episodes of each environment: what was seen, paid and returned."""
    found: list[tuple[Any, ...]] = []
    for mode in MODES:
        whole, _ = _join_pieces(concatenate(lived(mode, rollouts=15)))
        early = whole.observations[whole.offsets[:-1]][:, 1] < 9
        kept = whole.take(np.flatnonzero(early))
        order = np.lexsort(kept.observations[kept.offsets[:-1]].T[:2])
        kept = kept.take(order)
        moments, spread = RunningMeanStd(3), ReturnScale(0.9)
        moments.update(kept.observations)
        spread.update(kept)
        found.append((len(kept), moments.mean.tolist(), moments.std.tolist(), spread.scale, kept.score.sum()))
    assert found[0][0] == 27
    assert found[0] == found[1] == found[2]


def test_streams_of_ten_runs_share_no_environment() -> None:
    seeds = [seed for run in range(10) for seed in env_seeds(run, 64)]
    assert len(set(seeds)) == 640
    begins = [lived(AutoresetMode.SAME_STEP, envs=8, steps=40, rollouts=1, seed=run)[0] for run in range(10)]
    lengths = {tuple(one.lengths[:12].tolist()) for one in begins}
    assert len(lengths) == 10


def test_clipped_actions_are_remembered_as_they_were_drawn() -> None:
    """The density is that of the draw; the world gets it within its box. Remembering the clipped action with the
    density of the draw would make a ratio of something else."""
    config = GymConfig(id="Pendulum-v1", num_envs=8, clip_actions=True)
    world = open_world(config, steps=50, seed=0)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = ActorCritic(space, MlpConfig(hidden=[8]), seed=0)
    assert policy.log_std is not None
    policy.log_std.data.fill_(1.0)
    reached: list[float] = []
    step = world.envs.step
    world.envs.step = lambda action: (reached.append(float(np.abs(action).max())), step(action))[1]  # type: ignore[method-assign]
    episodes = world.rollout(NetworkActor(policy.numpy_policy()))
    assert np.abs(episodes.chosen).max() > 2.0
    assert max(reached) == 2.0
    mean = policy.numpy_policy().best(episodes.observations)
    scaled = (episodes.chosen - mean) / np.e
    expected = -0.5 * scaled[:, 0] ** 2 - 1.0 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(episodes.logp, expected, atol=1e-4)


@pytest.mark.parametrize("recipe", ["ddpg", "sac"])
def test_a_rerun_is_bitwise_with_its_random_warm_up(recipe: str) -> None:
    """Nothing is drawn from a global stream, so nothing that was drawn before can matter."""
    seen: list[list[bytes]] = []
    for number in range(2):
        np.random.seed(number)  # noqa: NPY002 - somebody else's stream
        generator(number, "else").random(number)
        entry = load_recipe(recipe)
        settings_ = {"recipe": recipe, "name": "x", "seed": 1, "steps": 4, "env": {"id": "Pendulum-v1"}}
        small = {"replay": {"warmup": 40, "batch": 8}, "network": {"hidden": [8]}}
        job = entry.build(entry.config.model_validate({**settings_, **small}))
        lines: list[bytes] = []
        train(
            job.recipe,
            steps=4,
            callback=lambda _, episodes, __, metrics, lines=lines: lines.extend(
                (episodes.observations.tobytes(), episodes.chosen.tobytes(), repr(sorted(metrics.items())).encode())
            ),
        )
        job.close()
        seen.append(lines)
    assert seen[0] == seen[1]
