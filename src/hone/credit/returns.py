"""Credit from rewards over time: returns, generalised advantages, one-step targets.

Belongs here: arithmetic on rewards and values, over pieces of episodes of any lengths at once. A piece that terminated
is worth nothing beyond its end; any other (truncated by a limit, or cut because a rollout stopped) is worth the value
of its final observation. Where a piece both terminated and was truncated, termination wins.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import Ints

Floats = NDArray[np.float64]


def discounted(values: NDArray[np.floating], offsets: Ints, factor: float) -> Floats:
    """Sum over k >= 0 of factor^k * values[t + k], within each row of a ragged array -> `[N]`, float64.

    By doubling: sums over windows of 1, 2, 4, ... decisions, so the work is N * log2(longest row).
    """
    total = values.astype(np.float64)
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(
        len(total)
    )  # decisions from here to the row's end, itself included
    longest, width, weight = int(lengths.max(initial=0)), 1, factor
    while width < longest and weight != 0.0:
        reaches = left[:-width] > width
        total[:-width] += np.where(reaches, weight * total[width:], 0.0)  # the right side is made before it is added
        width, weight = 2 * width, weight * weight
    return total


def gae(episodes: Episodes, values: Values, *, discount: float, decay: float) -> Credits:
    """Generalised advantage estimation (Schulman et al., 2016).

    delta_t = r_t + discount * V_{t+1} - V_t; A_t = sum over k of (discount * decay)^k * delta_{t+k}; target = A + V.
    After the last decision of a piece, V_{t+1} is 0 if it terminated and `values.final` otherwise.
    """
    worth = values.value.astype(np.float64)
    after = np.empty_like(worth)
    after[:-1] = worth[1:]
    last, owners = _lasts(episodes)
    after[last] = np.where(episodes.terminated[owners], 0.0, values.final[owners])
    advantage = discounted(episodes.reward + discount * after - worth, episodes.offsets, discount * decay)
    return Credits(advantage=advantage.astype(np.float32), target=(advantage + worth).astype(np.float32))


def returns(episodes: Episodes, values: Values, *, discount: float) -> Credits:
    """Discounted return to go, as advantage and target; a critic, if any, only continues pieces that did not terminate.

    Without a critic (`values` empty) nothing is added beyond the end: a truncated episode then looks as if it ended.
    """
    reward = episodes.reward.astype(np.float64)
    if len(values.final):
        last, owners = _lasts(episodes)
        reward[last] += np.where(episodes.terminated[owners], 0.0, discount * values.final[owners])
    total = discounted(reward, episodes.offsets, discount).astype(np.float32)
    return Credits(advantage=total, target=total)


def as_paid(episodes: Episodes, values: Values) -> Credits:
    """Each decision is credited with the reward that followed it: bandits, and whoever needs no credit at all."""
    del values
    return Credits(advantage=episodes.reward)


def one_step(episodes: Episodes, values: Values, *, discount: float) -> Credits:
    """The parts of r + discount * worth(next): reward as advantage, and a discount that is 0 where the world ended."""
    del values
    factor = np.full(episodes.decisions, discount, dtype=np.float32)
    last, owners = _lasts(episodes)
    factor[last[episodes.terminated[owners]]] = 0.0
    return Credits(advantage=episodes.reward, discount=factor)


def standardised(credits: Credits) -> Credits:
    """Advantages with mean 0 and standard deviation 1 over the batch (1e-8 keeps a constant batch at 0)."""
    advantage = credits.advantage
    if len(advantage) < 2:
        return credits
    return replace(credits, advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))


def _lasts(episodes: Episodes) -> tuple[Ints, Ints]:
    """Position of the last decision of each episode that has one, and the numbers of those episodes."""
    owners = np.flatnonzero(episodes.lengths > 0)
    return episodes.offsets[1:][owners] - 1, owners
