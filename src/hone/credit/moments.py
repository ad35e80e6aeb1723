"""Running mean and variance of rows, and of discounted returns, for normalising observations and rewards.

Also here: an intrinsic reward stream besides the extrinsic one, not cut at the ends of episodes (RND): the stream of
each environment in a batch, its advantages, and their sum with the extrinsic ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.state import State, array, substate
from hone.credit.returns import Floats, discounted_sums

LEAST = 1e-8
"""Added to a variance before its root is taken."""


class RunningMeanStd:
    """Mean and variance of all rows so far, merged batch by batch (Chan, Golub and LeVeque, 1979)."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean: Floats = np.zeros(size)
        """`[size]`"""
        self.squares: Floats = np.zeros(size)
        """`[size]` sum of squared distances from the mean."""

    def update(self, rows: NDArray[np.generic]) -> None:
        """Include `rows` `[n, size]`."""
        if len(rows) == 0:
            return
        fresh = rows.astype(np.float64)
        mean, count = fresh.mean(axis=0), self.count + len(fresh)
        apart = mean - self.mean
        self.squares = self.squares + np.square(fresh - mean).sum(axis=0)
        self.squares += np.square(apart) * (self.count * len(fresh) / count)
        self.mean = self.mean + apart * (len(fresh) / count)
        self.count = count

    @property
    def std(self) -> Floats:
        """Population standard deviation `[size]`; ones before the first update."""
        if self.count == 0:
            return np.ones_like(self.mean)
        return np.sqrt(self.squares / self.count + LEAST)

    def state(self) -> State:
        """Count, mean and squared distances, for a checkpoint."""
        return {"count": np.array([self.count]), "mean": self.mean.copy(), "squares": self.squares.copy()}

    def restore(self, state: State) -> None:
        """Load a state; raises DataError for statistics of another size."""
        saved = array(state, "mean").astype(np.float64)
        if saved.shape != self.mean.shape:
            raise DataError(f"saved statistics are of {saved.size} numbers, these of {self.mean.size}")
        self.mean, self.squares = saved, array(state, "squares").astype(np.float64)
        self.count = float(array(state, "count")[0])


class ReturnScale:
    """Running standard deviation of discounted returns R_t = discount R_(t-1) + r_t, by which rewards are divided.

    R starts at 0 with each episode, and continues where a rollout cut it into pieces. Rewards keep their sign and their
    zero: only the scale is removed (Engstrom et al., "Implementation matters in deep policy gradients", 2020).
    """

    def __init__(self, discount: float) -> None:
        self.discount = discount
        self.moments = RunningMeanStd(1)
        self.open_returns: dict[int, float] = {}
        """Return so far of unfinished episodes, by their number."""

    def update(self, episodes: Episodes) -> None:
        """Include the returns of these pieces; pieces of one episode come in the order of time."""
        offsets, count = episodes.offsets, episodes.decisions
        reward = episodes.reward.astype(np.float64)
        began = offsets[:-1][episodes.lengths > 0]
        kept = episodes.lengths > 0
        numbers = episodes.group[kept].tolist()
        reward[began] += self.discount * np.array([self.open_returns.pop(number, 0.0) for number in numbers])
        running = discounted_sums(reward[::-1], count - offsets[::-1], self.discount)[::-1]
        self.moments.update(running[:, None])
        goes_on = ~(episodes.terminated | episodes.truncated)[kept]
        last = running[offsets[1:][kept] - 1]
        self.open_returns |= {number: float(last[place]) for place, number in enumerate(numbers) if goes_on[place]}

    @property
    def scale(self) -> float:
        """Standard deviation of the returns; 1 before any."""
        return float(self.moments.std[0])

    def state(self) -> State:
        """Statistics and unfinished returns, for a checkpoint."""
        return {
            "moments": self.moments.state(),
            "numbers": np.array(list(self.open_returns), dtype=np.int64),
            "returns": np.array(list(self.open_returns.values()), dtype=np.float64),
        }

    def restore(self, state: State) -> None:
        self.moments.restore(substate(state, "moments"))
        numbers, returns = array(state, "numbers").tolist(), array(state, "returns").tolist()
        self.open_returns = dict(zip(numbers, returns, strict=True))


# -------------------------------------------------------------------------------------------------------------- novelty


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
