"""What is said to processes of environments arrives as it was, however it is cut; and the budget of losses."""

import mmap

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hone.control.environments.protocol import (
    HEADER_BYTES,
    MessageParser,
    SharedMemoryLayout,
    WorkerMessage,
    encode,
    map_shared_step,
    space_from_json,
    space_to_json,
)
from hone.control.environments.subprocess_env import EnvProcessLoss, FaultBudget
from hone.core.errors import ResourceError

KINDS = st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1"])
ARRAYS = KINDS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
HEADS = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "arrays"), st.integers() | st.text(), max_size=3
)


@given(
    told=st.lists(st.tuples(HEADS, st.dictionaries(st.text(max_size=4), ARRAYS, max_size=3)), max_size=4),
    size=st.integers(1, 64),
)
def test_messages_arrive_as_they_were_sent(told: list[tuple[dict, dict]], size: int) -> None:
    stream = b"".join(encode(head, arrays) for head, arrays in told)
    parser = MessageParser()
    heard: list[WorkerMessage] = []
    for start in range(0, len(stream), size):
        heard += parser.feed(stream[start : start + size])
    assert [dict(message.head) for message in heard] == [head for head, _ in told]
    for message, (_, arrays) in zip(heard, told, strict=True):
        assert list(message.arrays) == list(arrays)
        for name, values in arrays.items():
            assert message.arrays[name].dtype == values.dtype
            assert message.arrays[name].shape == values.shape
            assert message.arrays[name].tobytes() == values.tobytes()


@pytest.mark.parametrize("data", [b"hello\n", b"[1]\n", b'{"arrays": [["a", "O", [1]]]}\n12345678'])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        list(MessageParser().feed(data))


SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    spaces.Box(-np.inf, np.inf, (1,), np.float64),
    spaces.Box(np.array([-2.4, -np.inf], np.float32), np.array([0.1, 7], np.float32)),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_arrive_as_they_were(space: spaces.Space) -> None:
    assert space_from_json(space_to_json(space)) == space


@given(count=st.integers(1, 5), kind=KINDS, shape=st.lists(st.integers(1, 3), max_size=2), action=st.integers(1, 4))
def test_the_arrays_of_a_step_do_not_overlap(count: int, kind: str, shape: list[int], action: int) -> None:
    layout = SharedMemoryLayout(count=count, kind=kind, shape=shape, action=[action])
    memory = mmap.mmap(-1, layout.total_bytes())
    view = map_shared_step(memory, layout)
    rows = [view.actions("<f8", [action]), view.seen, view.final, view.reward, view.terminated, view.truncated]
    for number, row in enumerate(rows):
        row[...] = number % 2
        assert row.shape[0] == count
    for number, row in enumerate(rows):
        assert (row == number % 2).all()
    assert memory[:HEADER_BYTES] == bytes(HEADER_BYTES), "nor the head"


LOSS = EnvProcessLoss(env_range="environment 3", seeds="seed 17", step=5, reason="it fell", lost_episodes=2)


def losses_borne(budget: FaultBudget, at: list[int], until: int = 30) -> int:
    """How many losses at these steps are borne."""
    for step in range(until):
        if step in at:
            try:
                budget.count_loss(LOSS)
            except ResourceError:
                return budget.losses - 1
        budget.steps += 1
    return budget.losses


def test_a_budget_counts_within_its_window() -> None:
    assert losses_borne(FaultBudget(allowed=0, window=10), [4]) == 0
    assert losses_borne(FaultBudget(allowed=2, window=10), [4, 5, 6]) == 2
    assert losses_borne(FaultBudget(allowed=1, window=10), [4, 14, 24]) == 3, "ten steps later the first is forgotten"
    assert losses_borne(FaultBudget(allowed=1, window=11), [4, 14, 24]) == 1


@given(at=st.lists(st.integers(0, 29), unique=True), allowed=st.integers(0, 4), window=st.integers(1, 30))
def test_a_budget_stops_at_the_first_window_that_holds_too_many(at: list[int], allowed: int, window: int) -> None:
    at = sorted(at)
    stops = [n for n, step in enumerate(at) if sum(step - window < other <= step for other in at) > allowed]
    assert losses_borne(FaultBudget(allowed=allowed, window=window), at) == (stops[0] if stops else len(at))


def test_a_budget_is_what_it_was_after_a_resume() -> None:
    budget, again = (FaultBudget(allowed=1, window=10) for _ in range(2))
    losses_borne(budget, [3], until=5)
    again.restore(budget.state())
    assert losses_borne(again, [2]) == 1, "two within ten steps"
    with pytest.raises(ResourceError, match=r"lost 2 times within 10 steps.*environment 3 \(seed 17, step 5"):
        budget.count_loss(LOSS)
