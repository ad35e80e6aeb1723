"""Prioritised replay over ranks: one rank has the buffer, each hears of its own rows, and priorities are as alone."""

from types import SimpleNamespace

import numpy as np
import torch
from plain_episodes import plain_episodes
from ranks_in_threads import on_ranks

from hone.control.replay.priority import PriorityParams
from hone.control.value_rows import PrioritizedBuffer
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.core.reduction import Reduction
from hone.learner.share import BatchShare, sharing
from hone.objectives.terms import LossTerms

COUNT = 12
ERRORS = np.linspace(0.1, 3.0, COUNT).astype(np.float32)


def filled(steps: int) -> Episodes:
    seen = np.arange(steps, dtype=np.float32)[:, None]
    return plain_episodes(
        np.arange(steps + 1),
        seen=seen,
        reward=np.ones(steps, np.float32),
        final=seen + 1,
        score=np.ones(steps, np.float32),
    )


def driver() -> tuple[PrioritizedBuffer, Episodes]:
    """A buffer with unequal priorities, and what it handed out."""
    buffer = PrioritizedBuffer(64, steps=1, discount=0.9, priorities=PriorityParams(alpha=0.6, beta=0.5))
    buffer.add(filled(32))
    for _ in range(2):
        buffer.sample(COUNT, generator(0, "draws"))
        hear(buffer, np.arange(COUNT))
        buffer.finish_step(None)
    return buffer, buffer.sample(COUNT, generator(1, "draws"))


def hear(buffer: PrioritizedBuffer, rows: np.ndarray) -> None:
    batch = SimpleNamespace(sample_index=torch.from_numpy(rows))
    buffer.on_micro_batch(batch, LossTerms(loss=torch.from_numpy(ERRORS[rows])))


def two_steps(buffer: PrioritizedBuffer, own: list[np.ndarray]) -> None:
    """Two minibatches, of which this process hears `own` rows."""
    for rows in own:
        hear(buffer, rows)
        buffer.finish_step(None)


def test_weights_and_priorities_of_two_ranks_are_those_of_one_process() -> None:
    alone, sample = driver()
    expected = alone.importance_weights(sample)
    assert len(set(expected.tolist())) > 1
    two_steps(alone, [np.arange(6), np.arange(6, 12)])
    after = alone.state()

    def rank(reduction: Reduction) -> tuple[np.ndarray, PrioritizedBuffer]:
        buffer, sample = driver()
        if reduction.rank:  # it is sent the transitions, and has no buffer of its own
            buffer = PrioritizedBuffer(64, steps=1, discount=0.9, priorities=PriorityParams(alpha=0.6, beta=0.5))
            sample = filled(COUNT)
        with sharing(BatchShare(reduction=reduction, ranks=2, shares=2, add=lambda _: None)):
            weights = buffer.importance_weights(sample)
            parts = [np.arange(6), np.arange(6, 12)]
            two_steps(buffer, [part[:2] if reduction.rank else part[2:] for part in parts])
        return weights, buffer

    (first, buffer), (second, empty) = on_ranks(2, rank)
    assert np.array_equal(first, expected)
    assert np.array_equal(second, expected)
    assert not len(empty)

    def flat(state: object) -> list[bytes]:
        return [value.tobytes() for _, value in sorted(leaves(state)) if isinstance(value, np.ndarray)]

    assert flat(buffer.state()) == flat(after)


def leaves(state: object, name: str = "") -> list[tuple[str, object]]:
    """All values of a state with their places."""
    if not isinstance(state, dict):
        return [(name, state)]
    return [leaf for key, value in state.items() for leaf in leaves(value, f"{name}/{key}")]
