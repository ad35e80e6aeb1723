"""Games of several seats for tests: uneven turns, seats that end at different times, masks, rewards between turns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.seats.game import SeatGame, SeatStep, SeatView


class UnevenGame(SeatGame):
    """Three seats with random turns. Every step pays every live seat a random whole number, also those that wait. Seat
    2 leaves at the middle, seat 0 is truncated at the end, where seat 1 terminates. Action `choice` of a seat is legal
    where `(clock + choice) % 3 > 0`."""

    seats = ("a", "b", "c")
    observation_spaces = (
        spaces.Box(0, 100, (2,), np.float32),
        spaces.Discrete(40),
        spaces.Box(0, 100, (1,), np.float32),
    )
    action_spaces = (spaces.Discrete(3), spaces.Discrete(3, start=5), spaces.Discrete(2))

    def __init__(self, length: int = 9, *, repeatable: bool = True) -> None:
        self.length, self.repeatable = length, repeatable

    def reset(self, seed: int) -> None:
        self.draws = np.random.default_rng(seed if self.repeatable else None)
        self.clock, self.live = 0, [0, 1, 2]
        self.log: list[tuple[dict[int, Any], dict[int, float]]] = []
        self.moving = self._movers()

    def _movers(self) -> list[int]:
        return sorted(self.draws.choice(self.live, 1 + self.draws.integers(len(self.live)), replace=False).tolist())

    def to_move(self) -> Sequence[int]:
        return self.moving

    def observe(self, seat: int) -> SeatView:
        seen = (np.array([self.clock, seat], np.float32), min(self.clock, 39), np.array([self.clock], np.float32))[seat]
        count = 2 if seat == 2 else 3
        return SeatView(seen=seen, mask=(self.clock + np.arange(count)) % 3 > 0)

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        assert sorted(actions) == self.moving
        for seat, action in actions.items():
            assert self.action_spaces[seat].contains(np.int64(action))
            assert self.observe(seat).mask[action - (5 if seat == 1 else 0)], "an illegal action"
        rewards = {seat: float(self.draws.integers(-5, 6)) for seat in self.live}
        self.log.append((dict(actions), rewards))
        self.clock += 1
        gone = [2] if self.clock == self.length // 2 and 2 in self.live else []
        self.live = [seat for seat in self.live if seat not in gone]
        if self.clock >= self.length:
            self.moving = []
            return SeatStep(rewards=rewards, terminated=[1, *gone], truncated=[0])
        self.moving = self._movers()
        return SeatStep(rewards=rewards, terminated=gone)


class CountingActor:
    """Chooses uniformly among the legal actions; its version is a number of the test's."""

    def __init__(self, count: int, version: int = 0) -> None:
        self.count, self.version = count, version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        legal = np.ones((len(seen), self.count), np.bool_) if mask is None else mask
        below = legal.cumsum(axis=1)
        chosen = (below <= (noise * below[:, -1])[:, None]).sum(axis=1)
        return chosen, -np.log(below[:, -1]).astype(np.float32)
