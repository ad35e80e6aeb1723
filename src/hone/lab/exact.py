"""Exact expectations by enumeration: every outcome once, weighted by its probability, with hone's credit functions.

The episodes of an enumeration, gradients of its sums, and noise-free gradient descent.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.episodes import Episodes
from hone.core.ragged import Ints, offsets_of
from hone.lab.puzzles import Floats
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters


def scored_episodes(score: Floats, group: Ints, *, lengths: Ints | None = None) -> Episodes:
    """Episodes of `lengths` `[E]` decisions (1 by default) with score and group; the reward is at the end."""
    count = len(score)
    lengths = np.ones(count, np.int64) if lengths is None else lengths
    offsets = offsets_of(lengths)
    decisions = int(offsets[-1])
    reward = np.zeros(decisions, dtype=np.float32)
    reward[offsets[1:] - 1] = score
    return Episodes(
        offsets=offsets,
        seen=np.zeros((decisions, 1), np.int64),
        chosen=np.zeros(decisions, np.int64),
        logp=np.zeros(decisions, np.float32),
        version=np.zeros(decisions, np.int32),
        reward=reward,
        group=group,
        terminated=np.ones(count, bool),
        truncated=np.zeros(count, bool),
        final=np.zeros((count, 1), np.int64),
        score=score.astype(np.float64),
    )


def all_groups(outcomes: int, size: int) -> Ints:
    """Every ordered group of `size` draws from `outcomes` -> `[outcomes^size, size]`."""
    return np.stack(np.meshgrid(*[np.arange(outcomes)] * size, indexing="ij"), axis=-1).reshape(-1, size)


def scores_by_count(size: int) -> Floats:
    """A group of `size` scores 0 or 1 for each count of right ones, `[size + 1, size]`: their order changes nothing."""
    return (np.arange(size)[None] < np.arange(size + 1)[:, None]).astype(np.float64)


def count_probabilities(chances: Floats, size: int) -> Floats:
    """Binomial probability of 0 .. `size` right answers for each chance to be right, `[P, size + 1]`."""
    right = np.arange(size + 1)
    ways = np.array([math.comb(size, count) for count in range(size + 1)], np.float64)
    return ways * chances[:, None] ** right * (1 - chances[:, None]) ** (size - right)


def group_advantages(credit: Callable[[Episodes], NDArray[np.float32]], scores: Floats) -> Floats:
    """Advantages of groups of scores `[M, G]` -> `[M, G]`; one call of `credit` for all of them."""
    count, size = scores.shape
    episodes = scored_episodes(scores.reshape(-1), np.repeat(np.arange(count), size))
    return credit(episodes).reshape(count, size).astype(np.float64)


def gradient(total: Tensor, logits: Tensor) -> Tensor:
    """Gradient of a sum with respect to `logits`, which must require gradients."""
    (slope,) = torch.autograd.grad(total, logits)
    return slope


def minimise(
    loss: Callable[[], Tensor],
    parameters: list[torch.nn.Parameter],
    *,
    steps: int,
    rate: float,
    watch: Callable[[], None] | None = None,
) -> None:
    """Adam on the exact `loss()`; `watch` is called after each step."""
    flat = FlatParameters(parameters)
    optimizer = Adam(flat)
    for _ in range(steps):
        flat.zero_grad()
        loss().backward()
        optimizer.step(rate)
        if watch is not None:
            watch()


def relative_distance(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|."""
    return float((a - b).norm() / b.norm())
