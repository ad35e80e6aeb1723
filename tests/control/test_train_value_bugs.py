"""Silent bugs of replay that other libraries had, each as a test: boundaries, n-step windows, priorities, shapes.

The environments tell in every observation which episode and step it is, so that a transition put together from two
episodes, or with a reset for what was seen last, shows.
"""

import copy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from examples import examples
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.control.environments.world import GymWorld, world_from_envs
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.q_networks import CategoricalReturn, DqnPolicy, QArchitecture
from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.control.value_rows import PrioritizedBuffer, ValueRows, value_rows
from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.random import generator
from hone.objectives.distributional import ValueSupport
from hone.recipes.off_policy import c51, double_dqn, dqn
from hone.recipes.registry import load_recipe

MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


class Told(gymnasium.Env[Any, Any]):
    """Observes (episode, t); pays 1000 * episode + t; episodes take 3, 4, 5, 3, ... steps. `ends` says how."""

    def __init__(self, ends: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.episode, self.t, self.ends = -1, 0, ends

    def _seen(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        paid = 1000.0 * self.episode + self.t
        self.t += 1
        over = self.t == 3 + self.episode % 3
        return self._seen(), paid, over and self.ends != "cut", over and self.ends != "end", {}


class Anyhow:
    version = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (noise < 0.5).astype(np.int64), np.full(len(seen), np.log(0.5), np.float32)


def told_world(ends: str, mode: AutoresetMode, *, steps: int, envs: int = 2) -> GymWorld:
    vector = SyncVectorEnv([lambda: Told(ends)] * envs, autoreset_mode=mode)
    return world_from_envs(vector, steps=steps, seed=0)


def whole(memory: PrioritizedBuffer) -> tuple[Episodes, np.ndarray]:
    """Every row of a memory with its discounts."""
    kept = memory.buffer
    episodes = kept.take(np.arange(len(kept)))
    memory._last_sample = episodes
    discount = memory.credit(episodes, NO_VALUES).discount
    assert discount is not None
    return episodes, discount


# ------------------------------------------------------------------------------------------------- boundaries


@MODES
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("ends", ["cut", "end"])
def test_next_observation_after_an_end_is_not_the_reset(mode: AutoresetMode, steps: int, ends: str) -> None:
    """sb3#934, cleanrl#460: memories that keep observations once took the next episode's first for the last seen."""
    world = told_world(ends, mode, steps=7)
    memory = PrioritizedBuffer(1000, steps=steps, discount=0.5, priorities=None)
    for _ in range(6):
        memory.add(world.rollout(Anyhow()))
    episodes, discount = whole(memory)
    assert episodes.final is not None
    length = 3 + episodes.observations[:, 0] % 3
    np.testing.assert_array_equal(episodes.final[:, 0], episodes.observations[:, 0])
    ahead = episodes.final[:, 1] - episodes.observations[:, 1]
    known = np.minimum(steps, length - episodes.observations[:, 1])
    newest = ahead < known  # the newest steps look as far ahead as was lived
    assert newest.sum() <= 2 * (steps - 1)
    np.testing.assert_array_equal(ahead[~newest], known[~newest])
    over = episodes.final[:, 1] == length
    np.testing.assert_array_equal(episodes.truncated if ends == "cut" else episodes.terminated, over)
    np.testing.assert_array_equal(discount, np.where(over & (ends == "end"), 0.0, 0.5**ahead).astype(np.float32))


@MODES
def test_no_junk_transition_is_remembered(mode: AutoresetMode) -> None:
    """Under NEXT_STEP every reset is a row that answers no action; 4 % of stored CartPole data elsewhere."""
    world = told_world("end", mode, steps=60, envs=3)
    memory = PrioritizedBuffer(1000, steps=1, discount=0.5, priorities=None)
    memory.add(world.rollout(Anyhow()))
    episodes, _ = whole(memory)
    pairs = episodes.observations.astype(int)
    assert episodes.final is not None
    assert (episodes.final[:, 1] == pairs[:, 1] + 1).all()
    by_episode = np.bincount(pairs[:, 0])[:9]
    np.testing.assert_array_equal(by_episode, 3 * (3 + np.arange(9) % 3))


@MODES
@pytest.mark.parametrize("ends", ["cut", "end"])
def test_n_step_windows_stay_in_their_episode_and_lose_no_state(mode: AutoresetMode, ends: str) -> None:
    """CleanRL's rainbow_atari: windows crossed a truncation (201 where 1 is right), and dropped the last n - 1 states
    of an episode that terminated. Rewards here carry their episode's number."""
    length, discount = 3, 0.5
    world = told_world(ends, mode, steps=5)
    memory = PrioritizedBuffer(1000, steps=length, discount=discount, priorities=None)
    for _ in range(9):
        memory.add(world.rollout(Anyhow()))
    episodes, _ = whole(memory)
    assert episodes.final is not None
    for row in range(len(episodes)):
        number, t = episodes.observations[row].astype(int)
        stop = int(episodes.final[row, 1])
        wanted = sum(discount**k * (1000.0 * number + t + k) for k in range(stop - t))
        assert episodes.reward[row] == pytest.approx(wanted)
    for number in range(6):  # each environment lived through these: every state begins a transition
        starts = np.sort(episodes.observations[episodes.observations[:, 0] == number, 1])
        np.testing.assert_array_equal(starts, np.repeat(np.arange(3 + number % 3), 2))


def piece(seen: list[float], reward: list[float], *, terminated: bool, truncated: bool) -> Episodes:
    """One episode of single numbers."""
    count = len(reward)
    return plain_episodes(
        np.array([0, count]),
        seen=np.array(seen[:-1], np.float32)[:, None],
        reward=np.array(reward, np.float32),
        group=np.zeros(1, np.int64),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        final=np.array(seen[-1:], np.float32)[:, None],
        score=np.array([sum(reward)]),
    )


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_terminal_and_timeout_on_the_same_step_is_terminal(steps: int) -> None:
    """d3rlpy 2.8.1 raised on it; others bootstrapped."""
    memory = PrioritizedBuffer(10, steps=steps, discount=0.9, priorities=None)
    memory.add(piece([0, 1, 2, 3], [1, 1, 1], terminated=True, truncated=True))
    _, discount = whole(memory)
    assert discount[-1] == 0.0
    assert (discount == 0.0).sum() == min(steps, 3)


def flat(values: dict[int, tuple[float, float]]) -> DqnPolicy:
    """A network without hidden layers over one-hot states: a table, here the same for the target network."""
    space = PolicySpaces(inputs=ObservationInputs(size=4, one_hot=True), actions=DiscreteActions(count=2))
    policy = DqnPolicy(space, MlpConfig(hidden=[]), seed=0)
    with torch.no_grad():
        for body in (policy.values, policy.target):
            weight, offset = body.parameters()
            weight.copy_(torch.tensor([list(row) for row in zip(*(values[s] for s in range(4)), strict=True)]))
            offset.zero_()
    return policy


@pytest.mark.parametrize(("terminated", "truncated", "last"), [(True, False, 10.0), (False, True, 10.0 + 0.9 * 7.0)])
@pytest.mark.parametrize("recipe", [dqn, double_dqn])
def test_targets_along_a_chain(recipe: Any, terminated: bool, truncated: bool, last: float) -> None:
    """0 -> 1 -> 2 -> 3, paid 10 at the end (ray#57683 lost the reward before a terminal state): the state before the
    end aims at the reward alone, or at the worth of what was seen last where only time ran out."""
    values = {0: (1.0, 2.0), 1: (3.0, 0.5), 2: (4.0, 5.0), 3: (7.0, 6.0)}
    policy = flat(values)
    episodes = piece([0, 1, 2, 3], [0, 0, 10], terminated=terminated, truncated=truncated)
    states = {"seen": episodes.observations[:, 0].astype(np.int64), "final": np.array([3])}
    memory = PrioritizedBuffer(10, steps=1, discount=0.9, priorities=None)
    memory.add(replace(episodes, **states))
    kept = memory.buffer.take(np.arange(3))
    rows = value_rows(policy, memory, 0, kept, memory.credit(kept, NO_VALUES), iteration=0)
    error = recipe.objective(policy, rows).metrics["value/error_abs"]
    wanted = [abs(1.0 - 0.9 * 3.0), abs(3.0 - 0.9 * 5.0), abs(4.0 - last)]
    assert error.tolist() == pytest.approx(wanted)


def test_columns_are_refused_where_rows_are_meant() -> None:
    """[N] against [N, 1] spreads to [N, N] without a word (sb3#1276, d3rlpy's assertion that fired for no reason)."""
    whole_piece = piece([0, 1, 2], [1, 1], terminated=True, truncated=False)
    for name in ("terminated", "truncated", "reward", "score"):
        with pytest.raises(AssertionError, match=f"{name} has shape"):
            replace(whole_piece, **{name: vars_of(whole_piece, name)[:, None]})
    memory = PrioritizedSampler(RingBuffer(10))
    memory.add(whole_piece)
    memory.sample(4, generator(0, "x"))
    with pytest.raises(DataError, match=r"\[4, 1\] errors for 4 drawn rows"):
        memory.update_priorities(np.ones((4, 1)))


def vars_of(episodes: Episodes, name: str) -> np.ndarray:
    columns = {"terminated": episodes.terminated, "truncated": episodes.truncated}
    return {**columns, "reward": episodes.reward, "score": episodes.score}[name]


# ------------------------------------------------------------------------------------------------- priorities


def filled(errors: list[float], *, exponent: float, correction: float = 1.0) -> PrioritizedBuffer:
    """A memory of as many transitions, each with this error."""
    given = PriorityParams(alpha=exponent, beta=correction, beta_anneal_draws=0, epsilon=0.0)
    memory = PrioritizedBuffer(64, steps=1, discount=0.9, priorities=given)
    count = len(errors)
    memory.add(piece([float(k) for k in range(count + 1)], [1.0] * count, terminated=True, truncated=False))
    assert memory.prioritised_buffer is not None
    memory.prioritised_buffer.tree.set_masses(np.arange(count), np.array(errors) ** exponent)
    return memory


def test_the_exponent_is_applied_once() -> None:
    """torchrl#3925 applied it twice to new samples. Chi-square of 64,000 drawn rows against p^0.6: with 7 degrees of
    freedom, above 24 by chance once in a thousand; squared exponents would give thousands."""
    errors = [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0]
    memory = filled(errors, exponent=0.6)
    assert memory.prioritised_buffer is not None
    counts = np.zeros(8)
    for k in range(2000):
        memory.sample(32, generator(0, "chi", k))
        drawn = memory.prioritised_buffer.last_sample.rows
        counts += np.bincount(drawn[generator(1, "chi", k).integers(0, 32, 32)], minlength=8)
    share = np.array(errors) ** 0.6
    wanted = counts.sum() * share / share.sum()
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 24.3


def test_newcomers_get_the_largest_priority() -> None:
    memory = filled([1.0, 2.0], exponent=0.6)
    assert memory.prioritised_buffer is not None
    memory.sample(2, generator(0, "x"))
    memory.prioritised_buffer.update_priorities(np.array([32.0, 0.1]))
    (row,) = memory.prioritised_buffer.add(piece([8, 9], [1.0], terminated=True, truncated=False))
    assert memory.prioritised_buffer.tree.masses[row] == pytest.approx(32.0**0.6)


@examples(30)
@given(st.lists(st.floats(0.1, 50), min_size=2, max_size=12), st.integers(0, 1000))
def test_weights_undo_the_bias_at_full_correction(errors: list[float], seed: int) -> None:
    """sum over i of P(i) w(i) f(i) = mean of f, exactly: baselines#1131, XLRON#34 (a loss 150 times too large)."""
    memory = filled(errors, exponent=0.7)
    assert memory.prioritised_buffer is not None
    handed = memory.sample(256, generator(seed, "x"))
    weight, rows = memory.importance_weights(handed), memory.prioritised_buffer.last_sample.rows
    share = np.array(errors) ** 0.7
    share /= share.sum()
    weights = np.full(len(errors), np.nan)
    weights[rows] = weight
    known = ~np.isnan(weights)
    np.testing.assert_allclose(weights[known] * share[known], 1.0 / len(errors), rtol=1e-5)


def test_equal_priorities_weigh_one() -> None:
    memory = filled([3.0] * 9, exponent=0.6, correction=0.4)
    handed = memory.sample(32, generator(0, "x"))
    np.testing.assert_allclose(memory.importance_weights(handed), 1.0, rtol=1e-6)
    other = memory.buffer.take(np.arange(4))
    np.testing.assert_array_equal(
        memory.importance_weights(other), np.ones(4)
    )  # not handed out: nothing is known of them


def test_priorities_come_back_from_the_update_that_made_them() -> None:
    """Each row's mass is (|error| + floor)^exponent of the values before the update, worked out apart; the rows'
    weights in the loss are importance / batch."""
    entry = load_recipe("prioritized_dqn")
    job = entry.build(
        entry.config.model_validate(
            {
                "recipe": "prioritized_dqn", "name": "x", "steps": 3, "env": {"id": "CartPole-v1"},
                "network": {"hidden": [8]}, "learner": {"updates_per_iteration": 1},
                "replay": {"collect": 8, "batch": 16, "warmup": 40},
            }
        )
    )  # fmt: skip
    source, learner = job.recipe.source, job.recipe.learner
    memory, policy = source.buffer, learner.policy
    assert isinstance(memory, PrioritizedBuffer) and memory.prioritised_buffer is not None
    source.publish(policy)
    handed = source.collect()
    credits = job.recipe.credit(handed, NO_VALUES)
    before = copy.deepcopy(policy)
    drawn = memory.prioritised_buffer.last_sample
    rows: ValueRows = learner.layout(handed, credits)
    np.testing.assert_allclose(rows.weighted().weight.numpy(), drawn.importance_weight / 16, rtol=1e-6)
    learner.update(handed, credits)
    error = double_dqn.objective(before, rows).metrics["value/error_abs"].numpy().astype(np.float64)
    masses = memory.prioritised_buffer.tree.masses
    by_row = {int(row): (error[k] + 1e-6) ** 0.6 for k, row in enumerate(drawn.rows)}
    for row, mass in by_row.items():
        assert masses[row] == pytest.approx(mass, rel=1e-4)
    untouched = np.setdiff1d(np.arange(len(memory)), drawn.rows)
    assert (masses[untouched] == 1.0).all()
    job.close()


def test_rainbow_asks_again_by_divergence() -> None:
    """What is heard of a distribution is its KL divergence, not the cross-entropy, which has no zero."""
    support = ValueSupport(low=0.0, high=4.0, size=5)
    space = PolicySpaces(inputs=ObservationInputs(size=1), actions=DiscreteActions(count=2))
    policy = DqnPolicy(
        space,
        MlpConfig(hidden=[4]),
        seed=0,
        architecture=QArchitecture(outcome=CategoricalReturn(low=0.0, high=4.0, size=5)),
    )
    memory = PrioritizedBuffer(10, steps=1, discount=1.0, priorities=PriorityParams(alpha=1.0, epsilon=0.0))
    memory.add(piece([0, 1, 2], [0, 0], terminated=False, truncated=False))
    handed = memory.sample(8, generator(0, "x"))
    rows = value_rows(policy, memory, 0, handed, memory.credit(handed, NO_VALUES), iteration=0)
    terms = c51.objective(policy, rows, support=support)
    for half in (np.arange(4), np.arange(4, 8)):  # in pieces, as micro-batches come
        piece_of = rows.take(half)
        memory.on_micro_batch(piece_of, c51.objective(policy, piece_of, support=support))
    memory.finish_step(policy)
    assert memory.prioritised_buffer is not None
    masses = memory.prioritised_buffer.tree.row_masses(memory.prioritised_buffer.last_sample.rows)
    wanted = dict(
        zip(memory.prioritised_buffer.last_sample.rows.tolist(), terms.metrics["value/kl_nats"].tolist(), strict=True)
    )
    for row, mass in zip(memory.prioritised_buffer.last_sample.rows.tolist(), masses, strict=True):
        assert mass == pytest.approx(abs(wanted[row]), rel=1e-4)
