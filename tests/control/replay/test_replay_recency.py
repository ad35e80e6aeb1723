"""Replay by recency: how likely a row is by its age, alone and with priorities, and the weights of the latter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_streams import stream
from test_replay_ring import single
from test_replay_sharded import transitions

import hone.api
from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.control.replay.sharded import ShardedSampler, ShardingParams
from hone.control.replay.steps import StepBuffer
from hone.control.replay.store import EpisodeStore
from hone.core.random import generator
from hone.run.saved_config import policy_folder

Floats = np.ndarray[Any, np.dtype[np.float64]]


def sampler(rows: int, half_life: float, *, alpha: float = 1.0, beta: float = 1.0) -> PrioritizedSampler:
    constant = 0 if beta == 1.0 else 10**15
    params = PriorityParams(alpha=alpha, beta=beta, beta_anneal_draws=constant, epsilon=0.0, half_life=half_life)
    return PrioritizedSampler(RingBuffer(rows), params)


def give_priorities(memory: PrioritizedSampler, errors: dict[int, float], *, count: int = 64) -> None:
    """Draws until every row was drawn, and gives each the error of its number."""
    missing = set(errors)
    for k in range(100):
        numbers = memory.sample(count, generator(k, "give")).reward.astype(int).tolist()
        memory.update_priorities(np.array([errors[number] for number in numbers]))
        missing -= set(numbers)
        if not missing:
            return
    raise AssertionError(f"never drawn: {missing}")


def chances(memory: PrioritizedSampler) -> Floats:
    masses = memory.tree.masses
    return masses / masses.sum()


def test_by_hand() -> None:
    """Half-life of 1 row, three rows: recencies 1/4, 1/2, 1, so chances 1/7, 2/7, 4/7. Priorities 4, 2, 1 make all
    three as likely, and weights q / P = 3/7, 6/7, 12/7 lead back."""
    memory = sampler(3, 1.0)
    memory.add(single(np.arange(3)))
    assert chances(memory).tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7], rel=1e-15)
    memory.sample(50, generator(0, "x"))
    assert memory.last_sample.importance_weight.tolist() == [1.0] * 50  # of equal priorities
    give_priorities(memory, {0: 4.0, 1: 2.0, 2: 1.0})
    assert chances(memory).tolist() == pytest.approx([1 / 3] * 3, rel=1e-15)
    numbers = memory.sample(30, generator(1, "x")).reward
    wanted = np.array([3 / 7, 6 / 7, 12 / 7])[numbers.astype(int)]
    np.testing.assert_allclose(memory.last_sample.importance_weight, wanted, rtol=1e-6)
    assert np.bincount(numbers.astype(int)).tolist() == [10, 10, 10]


@pytest.mark.parametrize("kind", ["ring", "steps", "episodes"])
def test_rows_are_drawn_as_often_as_the_formula_says(kind: str) -> None:
    """Frequencies against 2^(-age / half_life) by chi-square, of 30 rows that were added in unequal pieces."""
    held: Any = EpisodeStore(30, half_life=7.0)
    if kind != "episodes":
        rows = RingBuffer(30) if kind == "ring" else StepBuffer(30)
        held = PrioritizedSampler(rows, PriorityParams(alpha=0.0, half_life=7.0))
    for first, end in ((0, 4), (4, 25), (25, 41), (41, 60)):
        over, on = np.ones(end - first, np.bool_), np.zeros(end - first, np.bool_)
        held.add(replace(single(np.arange(first, end)), terminated=over, truncated=on))
    seen = np.zeros(30)
    for k in range(300):
        seen += np.bincount(59 - held.sample(32, generator(k, kind)).reward.astype(int), minlength=30)
    expected = 2.0 ** (-np.arange(30) / 7.0)
    expected *= seen.sum() / expected.sum()
    assert ((seen - expected) ** 2 / expected).sum() < 58.3  # the 99.9% point with 29 degrees of freedom


class SlowMemory:
    """The newest rows as a list, every chance and weight by its definition."""

    def __init__(self, capacity: int, half_life: float, alpha: float) -> None:
        self.capacity, self.half_life, self.alpha = capacity, half_life, alpha
        self.rows: list[tuple[int, float]] = []
        self.added, self.largest = 0, 1.0

    def add(self, count: int) -> None:
        for _ in range(count):
            self.rows = [*self.rows, (self.added, self.largest)][-self.capacity :]
            self.added += 1

    def update(self, errors: dict[int, float]) -> None:
        masses = {number: error**self.alpha for number, error in errors.items()}
        self.largest = max(self.largest, *masses.values())
        self.rows = [(number, masses.get(number, mass)) for number, mass in self.rows]

    def chances(self) -> dict[int, float]:
        parts = {number: mass * self.recency(number) for number, mass in self.rows}
        return {number: part / sum(parts.values()) for number, part in parts.items()}

    def weights(self, beta: float) -> dict[int, float]:
        recencies = {number: self.recency(number) for number, _ in self.rows}
        chances = self.chances()
        total = sum(recencies.values())
        return {number: (one / total / chances[number]) ** beta for number, one in recencies.items() if chances[number]}

    def recency(self, number: int) -> float:
        return 0.5 ** ((self.added - 1 - number) / self.half_life)


@pytest.mark.parametrize("half_life", [0.05, 2.5, 40.0])
def test_against_the_slow_version(half_life: float) -> None:
    """Rows overwritten, priorities changed, and hundreds of half-lives gone by."""
    memory, slow = sampler(12, half_life, alpha=0.7, beta=0.6), SlowMemory(12, half_life, 0.7)
    draws = generator(3, "slow")
    for k, size in enumerate(draws.integers(1, 30, 40).tolist()):
        memory.add(single(np.arange(slow.added, slow.added + size)))
        slow.add(size)
        numbers = memory.sample(9, generator(k, "x")).reward.astype(int)
        weights = slow.weights(0.6)
        np.testing.assert_allclose(
            memory.last_sample.importance_weight, [weights[number] for number in numbers.tolist()], rtol=1e-5
        )
        errors = {number: 0.1 + (number * 7 % 11) for number in numbers.tolist()}
        memory.update_priorities(np.array([errors[number] for number in numbers.tolist()]))
        slow.update(errors)
        held = memory.buffer.take(np.arange(len(memory))).reward.astype(int).tolist()
        expected = [slow.chances()[number] for number in held]
        np.testing.assert_allclose(chances(memory)[: len(held)], expected, rtol=1e-9, atol=1e-300)
    assert memory.halvings == int((slow.added - 1) / half_life) // 256 * 256


def test_masses_are_halved_where_256_half_lives_have_passed_and_not_a_row_before() -> None:
    memory = sampler(4, 0.5)
    memory.add(single(np.arange(128)))  # the last has the exponent 254
    assert memory.halvings == 0
    before = chances(memory)
    memory.add(single(np.arange(128, 129)))  # the exponent 256
    assert memory.halvings == 256
    assert memory.tree.masses.tolist() == [1.0, 2.0**-6, 2.0**-4, 2.0**-2]
    assert before.tolist() == pytest.approx([2.0**-6 / 1.328125, 2.0**-4 / 1.328125, 0.25 / 1.328125, 1 / 1.328125])


def test_a_half_life_beyond_all_measure_is_no_half_life() -> None:
    aged, plain = sampler(16, 1e15, alpha=0.6), sampler(16, 0.0, alpha=0.6)
    for memory in (aged, plain):
        memory.add(single(np.arange(20)))
        give_priorities(memory, {number: float(number) for number in range(4, 20)})
        memory.sample(16, generator(5, "x"))
    assert aged.last_sample.rows.tolist() == plain.last_sample.rows.tolist()
    np.testing.assert_allclose(aged.last_sample.importance_weight, plain.last_sample.importance_weight, rtol=1e-6)
    assert plain.recency is None and "recency" not in plain.state()


def test_a_restored_memory_draws_the_same_bits() -> None:
    def made() -> PrioritizedSampler:
        return PrioritizedSampler(StepBuffer(40, n_steps=3, discount=0.9), PriorityParams(half_life=0.7))

    rollouts, _ = stream(1, envs=3, rollouts=30, steps=5)
    memory, again = made(), made()
    for k, episodes in enumerate(rollouts):
        if k == 13:
            again.restore(memory.state())
        for one in (memory, again) if k >= 13 else (memory,):
            one.add(episodes)
            one.sample(16, generator(k, "x"))
            one.update_priorities(np.linspace(0.1, 2.0 + k, 16))
    assert memory.halvings == again.halvings > 256
    assert memory.tree.masses.tolist() == again.tree.masses.tolist()
    assert memory.last_sample.rows.tolist() == again.last_sample.rows.tolist()
    assert memory.last_sample.importance_weight.tolist() == again.last_sample.importance_weight.tolist()


# ------------------------------------------------------------------------------------------------------------- shards


def shards(count: int, half_life: float, *, staleness: int = 0) -> ShardedSampler:
    params = PriorityParams(alpha=1.0, beta=1.0, beta_anneal_draws=0, epsilon=0.0, half_life=half_life)
    return ShardedSampler(40 * count, ShardingParams(shards=count, priorities=params, max_staleness=staleness))


def test_one_shard_is_the_buffer_without_shards() -> None:
    one, plain = shards(1, 3.0), sampler(40, 3.0)
    for number in range(4):
        fresh = transitions([10.0 * number + place for place in range(10)])
        one.add(fresh)
        plain.add(fresh)
        draws = [generator(number, "x") for _ in range(2)]
        assert np.array_equal(one.sample(8, draws[0]).observations, plain.sample(8, draws[1]).observations)
        np.testing.assert_allclose(one.last_sample.importance_weight, plain.last_sample.importance_weight, rtol=1e-6)
        for memory in (one, plain):
            memory.update_priorities(np.abs(np.sin(np.arange(8.0) + number)))


@pytest.mark.parametrize("half_life", [2.0, 0.004])
def test_ages_count_the_steps_of_all_shards(half_life: float) -> None:
    """Robot 0 sent steps 0 and 3, robot 1 steps 1 and 2: recencies over both, whatever shard each is in, and the mean
    of weight * value is that under recency alone. With a half-life of .004 steps a shard is whole rescalings ahead."""
    buffer = shards(2, half_life)
    for value, robot in ((0.0, 0), (1.0, 1), (2.0, 1), (3.0, 0)):
        buffer.add(transitions([value], robot=robot))
    sample = buffer.sample(4000, generator(0, "x")).observations[:, 0]
    recency = 0.5 ** ((3 - np.arange(4)) / half_life)
    worth = np.array([5.0, -1.0, 2.0, 8.0])
    mean = (buffer.last_sample.importance_weight * worth[sample.astype(int)]).mean()
    assert mean == pytest.approx((recency * worth).sum() / recency.sum(), rel=2e-3)
    within = np.array([recency[0] / (recency[0] + recency[3]), recency[1] / (recency[1] + recency[2])]) / 2
    expected = np.array([within[0], within[1], 0.5 - within[1], 0.5 - within[0]])
    np.testing.assert_allclose(np.bincount(sample.astype(int), minlength=4) / 4000, expected, atol=1e-3)


def test_rows_that_grew_too_old_count_neither_as_mass_nor_as_recency() -> None:
    buffer = shards(1, 1.0, staleness=1)
    buffer.add(transitions([0.0], version=0))
    for version in (0, 1):
        buffer.add(transitions([1.0 + version], version=version))
        buffer.sample(4, generator(version, "x"))
    buffer.add(transitions([3.0], version=2))  # the third sample is that of iteration 2: rows of version 0 are too old
    sample = buffer.sample(300, generator(2, "x")).observations[:, 0]
    assert np.bincount(sample.astype(int), minlength=4).tolist() == [0, 0, 100, 200]
    assert buffer.last_sample.importance_weight.tolist() == [1.0] * 300
    again = shards(1, 1.0, staleness=1)
    again.restore(buffer.state())
    fresh = transitions([4.0], version=2)
    for one in (buffer, again):
        one.add(fresh)
        one.sample(50, generator(3, "x"))
    assert buffer.last_sample.importance_weight.tolist() == again.last_sample.importance_weight.tolist()


# ------------------------------------------------------------------------------------------------------------- the key


POLE: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "num_envs": 1},
    "network": {"hidden": [8]},
    "replay": {"capacity": 64, "warmup": 8, "batch": 8, "half_life": 20},
    "evaluation": {"episodes": 1},
}
RUNS: dict[str, dict[str, Any]] = {
    "dqn": POLE,
    "r2d2": {**POLE, "replay": {**POLE["replay"], "collect": 8, "capacity": 512}},
    "discrete_sac": POLE,
    "her_dqn": {**POLE, "env": {"id": "hone/BitFlip-v0", "num_envs": 1}},
}


@pytest.mark.parametrize("recipe", RUNS)
def test_a_run_by_recency_is_resumed_to_the_bit_and_is_another_run(recipe: str, tmp_path: Path) -> None:
    def train(name: str, **changes: Any) -> list[bytes]:
        run = {"run": {"checkpoint_every": 1}, "recipe": recipe, "name": name, "steps": 3}
        config = {**RUNS[recipe], **run, **changes}
        if name == "part":
            hone.api.train(config, runs=tmp_path, on_step=lambda event: event.step < 2)
        folder = policy_folder(hone.api.train(config, runs=tmp_path, resume=name == "part").folder)
        return [file.read_bytes() for file in sorted(folder.glob("*.safetensors"))]

    whole = train("whole")
    assert whole
    assert train("part") == whole
    replay = {key: value for key, value in RUNS[recipe]["replay"].items() if key != "half_life"}
    assert train("even", replay=replay) != whole
