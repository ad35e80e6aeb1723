"""Off-policy learning of values linear in features: the semi-gradient that can diverge, and its corrections.

TD(0), GTD2 and TDC on rows of features, and Baird's counterexample, on which the first diverges (Baird, 1995; Sutton &
Barto, 2018, section 11.2). The deadly triad is bootstrapping, function approximation and off-policy learning together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from hone.control.tables.kernels import Floats
from hone.control.tables.learn import TabularBatch
from hone.control.tables.tables import StateValues, Table
from hone.core.state import State, array, integer

BAIRD_START = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 1.0)
"""Usual initial weights of the counterexample."""


class LinearStep(NamedTuple):
    """One transition."""

    features: Floats
    """`[d]` features of the observation."""
    next_features: Floats
    """`[d]` features of the next observation."""
    reward: float
    discount: float
    ratio: float
    """Importance ratio of the target to the behaviour policy."""
    step_size: float


LinearUpdate: TypeAlias = Callable[[Floats, Floats, LinearStep, float], float]
"""Weights `[d]`, second weights `[d]`, a row, step size of the second weights -> error; both change in place."""


def semi_gradient(weight: Floats, second: Floats, row: LinearStep, second_rate: float) -> float:
    """w += rate * ratio * error * x, error = r + factor * w.x' - w.x (Sutton, 1988, with a ratio)."""
    del second, second_rate
    error = row.reward + row.discount * (weight @ row.next_features) - weight @ row.features
    weight += row.step_size * row.ratio * error * row.features
    return float(error)


def semi_gradient_with_target(weight: Floats, second: Floats, row: LinearStep, second_rate: float) -> float:
    """`semi_gradient` with the target network's value of the next state: `second`, an older copy of the weights."""
    del second_rate
    error = row.reward + row.discount * (second @ row.next_features) - weight @ row.features
    weight += row.step_size * row.ratio * error * row.features
    return float(error)


def gtd2(weight: Floats, second: Floats, row: LinearStep, second_rate: float) -> float:
    """w += rate * ratio * (x - factor x') (x.v); v += second_rate * ratio * (error - x.v) x (Sutton et al., 2009)."""
    error = row.reward + row.discount * (weight @ row.next_features) - weight @ row.features
    guess = second @ row.features
    weight += row.step_size * row.ratio * (row.features - row.discount * row.next_features) * guess
    second += second_rate * row.ratio * (error - guess) * row.features
    return float(error)


def tdc(weight: Floats, second: Floats, row: LinearStep, second_rate: float) -> float:
    """w += rate * ratio * (error x - factor x' (x.v)); v as in `gtd2` (Sutton et al., 2009): TD(0), corrected."""
    error = row.reward + row.discount * (weight @ row.next_features) - weight @ row.features
    guess = second @ row.features
    weight += row.step_size * row.ratio * (error * row.features - row.discount * row.next_features * guess)
    second += second_rate * row.ratio * (error - guess) * row.features
    return float(error)


@dataclass
class LinearRule:
    """A rule on `StateValues` that are linear in features."""

    update_weights: LinearUpdate
    second_rate: float = 0.0
    target_update_every: int = 0
    """Steps after which `second` becomes a copy of the weights; 0: never."""
    second: Floats = field(default_factory=lambda: np.zeros(0))
    backups: int = 0

    def learn(self, table: Table, batch: TabularBatch) -> float:
        assert isinstance(table, StateValues)
        features = np.eye(len(table.target_policy)) if table.features is None else table.features
        if not len(self.second):
            self.second = table.x.copy() if self.target_update_every else np.zeros_like(table.x)
        now, ahead = batch.steps.cell[:, 0], batch.steps.next_cell[:, 0]
        ratio = table.target_policy[now, batch.action] / np.exp(batch.logp)
        total = 0.0
        for n in range(len(now)):
            if self.target_update_every and self.backups % self.target_update_every == 0:
                self.second[:] = table.x
            row = LinearStep(
                features=features[now[n]], next_features=features[ahead[n]], reward=float(batch.steps.reward[n]),
                discount=float(batch.steps.discount[n]), ratio=float(ratio[n]),
                step_size=float(batch.steps.step_size[n]),
            )  # fmt: skip
            total += abs(self.update_weights(table.x, self.second, row, self.second_rate))
            self.backups += 1
        return total

    def state(self) -> State:
        return {"second": self.second, "backups": self.backups}

    def restore(self, state: State) -> None:
        self.second, self.backups = array(state, "second").astype(np.float64), integer(state, "backups")


def baird_features() -> Floats:
    """Features `[7, 8]`: the value of state i of the first six is 2 w_i + w_7, of the seventh w_6 + 2 w_7 (counted from
    0).
    """
    features = np.zeros((7, 8))
    features[range(6), range(6)] = 2.0
    features[:6, 7] = 1.0
    features[6, 6], features[6, 7] = 1.0, 2.0
    return features
