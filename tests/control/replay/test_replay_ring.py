"""The ring keeps the newest transitions, samples them uniformly, and resumes exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.control.replay.ring import RingBuffer
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.random import generator


def single(numbers: np.ndarray) -> Episodes:
    """Transitions that can be told apart: number k saw (k, k), chose k % 3, was paid k, saw (k, k + 1) next."""
    count = len(numbers)
    floats = numbers.astype(np.float32)
    return Episodes(
        offsets=np.arange(count + 1),
        seen=np.stack([floats, floats], axis=1),
        chosen=numbers % 3,
        logp=-floats,
        version=numbers.astype(np.int32),
        reward=floats,
        group=numbers,
        terminated=numbers % 5 == 0,
        truncated=numbers % 7 == 0,
        final=np.stack([floats, floats + 1], axis=1),
        score=floats.astype(np.float64),
        status=np.zeros(count, dtype=np.uint8),
    )


@given(capacity=st.integers(1, 12), sizes=st.lists(st.integers(0, 15), min_size=1, max_size=6))
def test_the_newest_are_kept_whole(capacity: int, sizes: list[int]) -> None:
    ring, total = RingBuffer(capacity), sum(sizes)
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        ring.add(single(np.arange(start, start + size)))
    assert len(ring) == min(total, capacity)
    if total == 0:
        with pytest.raises(DataError, match="empty"):
            ring.sample(1, generator(0, "x"))
        return
    drawn = ring.sample(400, generator(0, "x"))
    assert drawn.final is not None
    numbers = drawn.group
    assert set(numbers.tolist()) <= set(range(max(0, total - capacity), total))
    np.testing.assert_array_equal(drawn.observations[:, 1], numbers)
    np.testing.assert_array_equal(drawn.final[:, 1], numbers + 1)
    np.testing.assert_array_equal(drawn.chosen, numbers % 3)
    np.testing.assert_array_equal(drawn.terminated, numbers % 5 == 0)
    np.testing.assert_array_equal(drawn.truncated, numbers % 7 == 0)
    assert drawn.lengths.tolist() == [1] * 400


def test_sampling_is_uniform() -> None:
    ring = RingBuffer(50)
    ring.add(single(np.arange(80)))
    counts = np.bincount(ring.sample(100_000, generator(1, "x")).group - 30, minlength=50)
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_squared < 85.4  # the 99.9% point with 49 degrees of freedom


def test_a_restored_ring_goes_on_as_before() -> None:
    ring, again = RingBuffer(10), RingBuffer(10)
    ring.add(single(np.arange(13)))
    again.restore(ring.state())
    for one in (ring, again):
        one.add(single(np.arange(13, 17)))
    here, there = ring.sample(64, generator(2, "x")), again.sample(64, generator(2, "x"))
    np.testing.assert_array_equal(here.group, there.group)
    np.testing.assert_array_equal(here.observations, there.observations)


def test_pieces_become_their_transitions() -> None:
    piece = Episodes(**columns(single(np.arange(3))) | {
        "offsets": np.array([0, 3, 3]), "group": np.array([5, 6]), "terminated": np.array([True, False]),
        "truncated": np.zeros(2, bool), "final": np.array([[9, 9], [8, 8]], np.float32), "score": np.zeros(2),
        "status": np.zeros(2, np.uint8),
    })  # fmt: skip
    ring = RingBuffer(8)
    rows = ring.add(piece)
    assert rows.tolist() == [0, 1, 2]
    kept = ring.take(rows)
    assert kept.final is not None
    assert kept.final[:, 1].tolist() == [1, 2, 9]
    assert kept.terminated.tolist() == [False, False, True]
    assert ring.is_complete(rows).all()


def test_what_does_not_fit_is_refused() -> None:
    ring = RingBuffer(4)
    ring.add(single(np.arange(2)))
    longer = single(np.arange(2)).take(np.array([0, 1]))
    with pytest.raises(DataError, match="no final observations"):
        ring.add(Episodes(**columns(longer) | {"final": None}))
    with pytest.raises(DataError, match=r"seen is float32\[3\], the buffer holds float32\[2\]"):
        ring.add(Episodes(**columns(longer) | {"seen": np.zeros((2, 3), np.float32)}))
    with pytest.raises(DataError, match="1 of 2 transitions have no score"):
        ring.add(Episodes(**columns(longer) | {"status": np.array([0, 2], np.uint8)}))
    with pytest.raises(DataError, match="holds 4 transitions, this one 5"):
        RingBuffer(5).restore(ring.state())


def columns(episodes: Episodes) -> dict[str, np.ndarray]:
    return {name: object.__getattribute__(episodes, name) for name in Episodes.__dataclass_fields__}
