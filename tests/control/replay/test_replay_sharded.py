"""Prioritised replay in shards: equal shares of shards, weights that undo them, and rows that grow too old."""

import numpy as np
import pytest

from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.control.replay.sharded import ShardedSampler, ShardingParams
from hone.core.episodes import Episodes
from hone.core.errors import DataError


def transitions(values: list[float], *, robot: int = 0, version: int = 0) -> Episodes:
    count = len(values)
    seen = np.array(values, np.float32)[:, None]
    return Episodes(
        offsets=np.arange(count + 1), seen=seen, chosen=np.zeros(count, np.int64), logp=np.zeros(count, np.float32),
        version=np.full(count, version, np.int32), reward=np.zeros(count, np.float32), group=np.full(count, robot),
        terminated=np.zeros(count, np.bool_), truncated=np.zeros(count, np.bool_), final=seen + 1,
        score=np.zeros(count),
    )  # fmt: skip


def sampler(shards: int, *, alpha: float = 1.0, beta: float = 1.0, staleness: int = 0) -> ShardedSampler:
    params = PriorityParams(alpha=alpha, beta=beta, beta_anneal_draws=0, epsilon=0.0)
    return ShardedSampler(40 * shards, ShardingParams(shards=shards, priorities=params, max_staleness=staleness))


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_one_shard_is_the_buffer_without_shards() -> None:
    params = PriorityParams(alpha=0.6, beta=0.4, beta_anneal_draws=10)
    one = ShardedSampler(32, ShardingParams(shards=1, priorities=params))
    plain = PrioritizedSampler(RingBuffer(32), params)
    for number in range(4):
        fresh = transitions([10.0 * number + place for place in range(10)])
        one.add(fresh)
        plain.add(fresh)
        mine, other = one.sample(8, draws(number)), plain.sample(8, draws(number))
        assert np.array_equal(mine.observations, other.observations)
        assert np.array_equal(one.last_sample.importance_weight, plain.last_sample.importance_weight)
        errors = np.abs(np.sin(np.arange(8.0) + number))
        one.update_priorities(errors)
        plain.update_priorities(errors)


def test_each_robots_shard_is_drawn_equally_and_what_does_not_divide_goes_round() -> None:
    buffer = sampler(3)
    buffer.add(transitions([float(value) for value in range(30)], robot=0))
    buffer.add(transitions([100.0], robot=1))
    buffer.add(transitions([200.0, 201.0], robot=5))
    counts = []
    for number in range(3):
        seen = buffer.sample(7, draws(number)).observations[:, 0]
        counts.append(((seen < 100).sum(), (seen == 100).sum(), (seen >= 200).sum()))
    assert counts == [(3, 2, 2), (2, 3, 2), (2, 2, 3)]


def test_the_weights_by_hand_and_by_enumeration() -> None:
    """P(i) = m_i / (S M_s); with beta = 1 the mean of weight * value is the plain mean over the rows."""
    buffer = sampler(2)
    buffer.add(transitions([1.0, 2.0, 3.0], robot=0))
    buffer.add(transitions([10.0], robot=1))
    buffer.sample(8, draws())  # 4 of each shard: rows 0 .. 2 by equal stretches
    errors = np.array([{1.0: 1.0, 2.0: 1.0, 3.0: 2.0, 10.0: 5.0}[x] for x in buffer_values(buffer)])
    buffer.update_priorities(errors)
    sample = buffer.sample(400, draws(1)).observations[:, 0]
    weights = dict(zip(sample.tolist(), buffer.last_sample.importance_weight.tolist(), strict=True))
    assert weights == pytest.approx({1.0: 1 / (4 * 1 / 8), 2.0: 1 / (4 * 1 / 8), 3.0: 1 / (4 * 2 / 8), 10.0: 0.5})
    chance = {1.0: 1 / 8, 2.0: 1 / 8, 3.0: 2 / 8, 10.0: 1 / 2}
    assert sum(chance[x] * weights[x] * x for x in chance) == pytest.approx(np.mean([1.0, 2.0, 3.0, 10.0]))
    for value, share in chance.items():
        assert (sample == value).mean() == pytest.approx(share, abs=0.01)


def buffer_values(buffer: ShardedSampler) -> list[float]:
    """Values of the rows that were drawn last, in order."""
    return [
        float(value)
        for number in buffer.last_sample.shards
        for value in buffer.shards[number].buffer.take(buffer.shards[number].last_sample.rows).observations[:, 0]
    ]


@pytest.mark.parametrize(("staleness", "kept"), [(2, True), (1, False), (0, True)])
def test_a_row_is_drawn_while_its_staleness_is_at_most_the_bound(staleness: int, kept: bool) -> None:
    buffer = sampler(1, staleness=staleness)
    buffer.add(transitions([1.0], version=0))
    for version in (0, 1):
        buffer.add(transitions([2.0 + version], version=version))
        buffer.sample(4, draws())
    buffer.add(transitions([4.0], version=2))  # the third sample is that of iteration 2: the first row is 2 old
    assert len(buffer) == (4 if kept else 2)  # both rows of version 0
    seen = buffer.sample(400, draws()).observations[:, 0]
    assert (1.0 in seen) == kept
    assert buffer.metrics()["robots/staleness_max"] == (2.0 if kept else 1.0)
    assert buffer.metrics()["robots/staleness_above"] == 0.0
    buffer.update_priorities(np.ones(400))
    assert buffer.metrics()["robots/too_stale"] == (0.0 if kept else 2.0)


def test_without_the_bound_the_share_above_it_is_not_zero() -> None:
    """The negative control of the figure: a bound that nobody holds."""
    buffer = sampler(1, staleness=1)
    buffer._expire = lambda: None  # type: ignore[method-assign]
    for version in range(4):
        buffer.add(transitions([float(version)], version=version))
        buffer.sample(64, draws())
    assert buffer.metrics()["robots/staleness_above"] == pytest.approx(0.5, abs=0.02)


def test_a_buffer_of_stale_rows_alone_is_empty() -> None:
    buffer = sampler(2, staleness=1)
    buffer.add(transitions([1.0], version=0))
    buffer.sample(2, draws())
    buffer.sample(2, draws())
    assert len(buffer) == 1
    buffer.add(transitions([], version=0))
    assert len(buffer) == 0
    with pytest.raises(DataError, match="no transition within the bound"):
        buffer.sample(1, draws())


def test_a_restored_buffer_draws_what_the_first_one_does() -> None:
    first = sampler(3, alpha=0.7, beta=0.5, staleness=3)
    for number in range(3):
        values = [float(value) for value in range(number * 5, number * 5 + 5)]
        first.add(transitions(values, robot=number % 2, version=number))
        first.sample(6, draws(number))
        first.update_priorities(np.linspace(0.1, 2.0, 6))
    other = sampler(3, alpha=0.7, beta=0.5, staleness=3)
    other.restore(first.state())
    for number in range(3, 8):
        fresh = transitions([float(number)], robot=number, version=number)
        first.add(fresh)
        other.add(fresh)
        assert np.array_equal(first.sample(9, draws(number)).observations, other.sample(9, draws(number)).observations)
        assert np.array_equal(first.last_sample.importance_weight, other.last_sample.importance_weight)
        assert first.metrics() == other.metrics()
    with pytest.raises(DataError, match="has 3 shards"):
        sampler(2).restore(first.state())
