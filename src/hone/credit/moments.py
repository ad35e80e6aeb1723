"""Running mean and variance of rows, and of discounted returns, for normalising observations and rewards."""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, array, substate
from hone.credit.returns import discounted_sums

Floats = NDArray[np.float64]
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
