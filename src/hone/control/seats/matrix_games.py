"""Games of two seats whose optimum is known by hand: the two-step game of the QMIX paper, and matching pennies."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.seats.game import SeatGame, SeatStep, SeatView


class TwoStepGame(SeatGame):
    """A cooperative game of two steps (Rashid et al., 2018, section 5.1): the first seat's action chooses between a
    matrix that pays 7 for everything and one that pays `[[0, 1], [1, 8]]`. The optimum is 8; a sum of one value for
    each seat cannot represent the second matrix and settles for 7."""

    seats = ("first", "second")
    observation_spaces = (spaces.Discrete(3),) * 2
    action_spaces = (spaces.Discrete(2),) * 2

    def __init__(self) -> None:
        self.place = 0
        """0: the first step; 1, 2: the matrix chosen."""
        self.over = False

    def reset(self, seed: int) -> None:
        del seed
        self.place, self.over = 0, False

    def to_move(self) -> Sequence[int]:
        return () if self.over else (0, 1)

    def observe(self, seat: int) -> SeatView:
        del seat
        return SeatView(seen=self.place)

    def state(self) -> NDArray[np.float32]:
        return np.eye(3, dtype=np.float32)[self.place]

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        if self.place == 0:
            self.place = 1 + int(actions[0])
            return SeatStep()
        self.over = True
        paid = 7.0 if self.place == 1 else ((0.0, 1.0), (1.0, 8.0))[actions[0]][actions[1]]
        return SeatStep(rewards={0: paid, 1: paid}, terminated=(0, 1))


class MatchingPenniesGame(SeatGame):
    """Both seats show a side of a coin at once: the first wins 1 where they are equal, the second where they differ. In
    the only equilibrium both draw at random."""

    seats = ("even", "odd")
    observation_spaces = (spaces.Discrete(1),) * 2
    action_spaces = (spaces.Discrete(2),) * 2

    def __init__(self) -> None:
        self.over = False

    def reset(self, seed: int) -> None:
        del seed
        self.over = False

    def to_move(self) -> Sequence[int]:
        return () if self.over else (0, 1)

    def observe(self, seat: int) -> SeatView:
        del seat
        return SeatView(seen=0)

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        self.over = True
        won = 1.0 if actions[0] == actions[1] else -1.0
        return SeatStep(rewards={0: won, 1: -won}, terminated=(0, 1))
