"""Advantages of an intrinsic reward stream besides the extrinsic one, not cut at the ends of episodes (RND).

The stream of each environment in a batch, its advantages, and their sum with the extrinsic ones. The intrinsic rewards
are in `models.control.intrinsic_reward`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.credit.returns import Floats, discounted_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class NoveltyValues(Values):
    """Values of two critics: of extrinsic and of intrinsic returns."""

    novelty: NDArray[np.float32]
    """`[N]`."""
    novelty_final: NDArray[np.float32]
    """`[E]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoveltyCredits(Credits):
    """Combined advantages, with a value target for each critic."""

    novelty_target: NDArray[np.float32]
    """`[N]`."""


def environment_offsets(episodes: Episodes, count: int) -> Ints:
    """Offsets `[L+1]` of the decisions of each of `count` environments that were stepped together.

    Pieces are ordered by environment, then by time. An environment's first piece continues an episode that was numbered
    in an earlier rollout, so those pieces have the smallest numbers.
    """
    pieces = len(episodes)
    if pieces <= count:
        return episodes.offsets
    first = np.sort(np.argpartition(episodes.group, count - 1)[:count])
    return np.append(episodes.offsets[first], episodes.decisions)


def running_returns(reward: NDArray[np.floating], lanes: Ints, before: Floats, *, discount: float) -> Floats:
    """R_t = discount * R_(t-1) + r_t `[N]` along each lane, which continues from `before` `[L]`."""
    count = int(lanes[-1])
    backwards = discounted_sums(reward[::-1], count - lanes[::-1], discount)[::-1]
    place = np.arange(count) - np.repeat(lanes[:-1], np.diff(lanes))
    return backwards + np.repeat(before, np.diff(lanes)) * discount ** (place + 1.0)


def non_episodic_gae(
    episodes: Episodes,
    reward: NDArray[np.floating],
    values: NoveltyValues,
    *,
    environment_offsets: Ints,
    discount: float,
    gae_lambda: float,
) -> tuple[Floats, Floats]:
    """Advantage and target `[N]` of `reward` `[N]`, as `gae`, in a stream that continues through the ends of episodes.

    The state after an end is the first of the next episode, so an end costs no novelty (Burda et al., 2018, section
    2.3: otherwise exploration would be penalised by terminations). Only a lane's last step uses `novelty_final`. Raises
    DataError for another number of rewards than decisions.
    """
    if len(reward) != episodes.decisions:
        raise DataError(f"{len(reward)} rewards for novelty, {episodes.decisions} decisions")
    worth = values.novelty.astype(np.float64)
    after = np.append(worth[1:], 0.0)
    last = environment_offsets[1:] - 1
    after[last] = values.novelty_final[np.searchsorted(episodes.offsets, last, side="right") - 1]
    advantage = discounted_sums(reward + discount * after - worth, environment_offsets, discount * gae_lambda)
    return advantage, advantage + worth


def with_novelty(
    credits: Credits, advantage: Floats, target: Floats, *, extrinsic_weight: float, intrinsic_weight: float
) -> NoveltyCredits:
    """A = extrinsic_weight * A_extrinsic + intrinsic_weight * A_intrinsic (Burda et al., 2018: 2 and 1)."""
    return NoveltyCredits(
        advantage=(extrinsic_weight * credits.advantage + intrinsic_weight * advantage).astype(np.float32),
        target=credits.target,
        discount=credits.discount,
        metrics=credits.metrics,
        novelty_target=target.astype(np.float32),
    )
