"""Delays: any world, slowed down by times that are drawn by dialogue and turn, to show that order changes nothing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from hone.core.dialogue import DialogueWorld, PolicyTurn, WorldTurn
from hone.core.random import uniforms
from hone.process.user_files import load_reference


@dataclass(slots=True)
class DelayedWorld:
    """A world whose answers take up to `longest_s` longer. What it answers stays the same."""

    world: str = "hone.text.games.guess:GuessingGame"
    """The world's class: `package.module:Class` or `file.py:Class`."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Passed to the class by name."""
    longest_s: float = 0.2
    """Longest delay, seconds."""
    sleep: Callable[[float], None] = time.sleep
    _begun: tuple[DialogueWorld, int] | None = None
    """The world, and the dialogue's seed."""

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Make the world and begin, at once. Raises UserCodeError where there is no such class."""
        make = cast("Callable[..., DialogueWorld]", load_reference(self.world, kind="world"))
        self._begun = make(**self.options), seed
        return self._begun[0].begin(columns, seed)

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer after a delay."""
        assert self._begun is not None
        world, seed = self._begun
        self.sleep(delay_s(seed, said.turn, self.longest_s))
        return world.answer(said)

    def close(self) -> None:
        """End the world's dialogue."""
        if self._begun is not None:
            self._begun[0].close()


def delay_s(seed: int, turn: int, longest_s: float) -> float:
    """Delay of a turn in a dialogue, seconds: uniform from 0 to `longest_s`, drawn by the dialogue's seed and turn."""
    return float(uniforms(seed, "delayed world", turn, count=1)[0]) * longest_s
