"""Delays: any world, slowed down by times that are drawn by dialogue and turn, to show that order changes nothing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hone.core.dialogue import DialogueWorld, PolicyTurn, WorldTurn
from hone.core.random import uniforms
from hone.games.guess import GuessingGame

LONGEST_S = 0.2
"""Longest delay of the games that come with hone, seconds."""


@dataclass(slots=True)
class DelayedWorld:
    """A world whose answers take up to `longest_s` longer. What it answers stays the same."""

    world: DialogueWorld
    longest_s: float = LONGEST_S
    sleep: Callable[[float], None] = time.sleep
    seed: int = 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin the world's dialogue, at once."""
        self.seed = seed
        return self.world.begin(columns, seed)

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer after a delay."""
        self.sleep(delay_s(self.seed, said.turn, self.longest_s))
        return self.world.answer(said)

    def close(self) -> None:
        """End the world's dialogue."""
        self.world.close()


def delay_s(seed: int, turn: int, longest_s: float = LONGEST_S) -> float:
    """Delay of a turn in a dialogue, seconds: uniform from 0 to `longest_s`, drawn by the dialogue's seed and turn."""
    return float(uniforms(seed, "delayed world", turn, count=1)[0]) * longest_s


def delayed_guessing_game() -> DelayedWorld:
    """A guessing game whose answers take up to 0.2 s."""
    return DelayedWorld(GuessingGame())
