"""Guessing a number: the policy guesses, the world says `<`, `>` or `=`; who halves the rest always wins.

With 15 numbers and 4 turns, or 31 and 5, halving always finds the number, and guesses without listening find it in
4 of 15 games, or 5 of 31. A dialogue reads `1-15 08 > 11 > 13 > 14 =`: each guess is a number and a space.

`DelayedWorld` slows this world, or any other, down by times that are drawn by dialogue and turn, to show that order
changes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

from hone.core.dialogue import DialogueWorld, PolicyTurn, WorldTurn
from hone.core.errors import DataError
from hone.core.random import generator, uniforms
from hone.process.user_files import load_reference

ALPHABET: Final = "0123456789-<>=? "
"""Characters of the game."""
END: Final = " "
"""End of a guess: the stop string of a turn."""
INATTENTIVE: Final = 0.6
"""Share of turns in which the player of the demonstrations does not listen."""


def prompt_of(numbers: int) -> str:
    """What a game begins with: `1-15 `."""
    return f"1-{numbers}{END}"


def secret_rows(numbers: int = 15, turns: int = 4) -> list[dict[str, object]]:
    """One row of a dataset for each secret number."""
    return [
        {"id": f"{secret} of {numbers}", "prompt": prompt_of(numbers), "secret": secret, "numbers": numbers,
         "turns": turns}
        for secret in range(1, numbers + 1)
    ]  # fmt: skip


@dataclass(slots=True)
class GuessingGame:
    """A game about the row's `secret`. Columns `numbers` and `turns` are 15 and 4 where the row has none.

    A win pays 1, and all else 0. A guess that is no number is answered by `?` and is a guess all the same.
    """

    secret: int = 0
    turns: int = 4
    guesses: int = 0
    unreadable: int = 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin a game. Raises DataError for a secret that is none of the numbers."""
        del seed
        numbers, self.turns = int(columns.get("numbers", 15)), int(columns.get("turns", 4))
        self.secret, self.guesses, self.unreadable = int(columns["secret"]), 0, 0
        if not 1 <= self.secret <= numbers:
            raise DataError(f"secret = {self.secret} is none of the numbers 1 to {numbers}")
        return WorldTurn()

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Compare a guess with the secret; the last one ends the game."""
        self.guesses += 1
        guess = read_guess(said.text)
        self.unreadable += guess is None
        sign = "?" if guess is None else compare(self.secret, guess)
        won = sign == "="
        return WorldTurn(
            messages=[{"role": "user", "content": sign + END}],
            reward=float(won),
            done=won or self.guesses >= self.turns,
            facts={"guesses": self.guesses, "unreadable": self.unreadable},
        )

    def close(self) -> None:
        """End the game; it holds nothing."""

    def fork(self) -> Self:
        """A copy of the game so far."""
        return type(self)(self.secret, self.turns, self.guesses, self.unreadable)

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        """Games of 15 numbers and 4 turns: one for each secret, or `size` of them."""
        return _some(size, seed)


@dataclass(slots=True)
class DeafGuessingGame:
    """The control: the same game, in which every answer but the last is `?`, so that there is nothing to listen to."""

    game: GuessingGame

    def __init__(self) -> None:
        self.game = GuessingGame()

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin a game. Raises DataError as `GuessingGame`."""
        return self.game.begin(columns, seed)

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Pay as the game does, and say nothing."""
        heard = self.game.answer(said)
        silence = [{"role": "user", "content": "?" + END}]
        return WorldTurn(messages=silence, reward=heard.reward, done=heard.done, facts=heard.facts)

    def close(self) -> None:
        """End the game; it holds nothing."""

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        """The games of `GuessingGame`."""
        return _some(size, seed)


def read_guess(text: str) -> int | None:
    """The number of a turn; None for anything but digits and a space."""
    digits = text.removesuffix(END)
    return int(digits) if digits.isascii() and digits.isdigit() else None


def compare(secret: int, guess: int) -> str:
    """Where the secret lies: `<` below the guess, `>` above it, `=`."""
    return "=" if guess == secret else "<" if secret < guess else ">"


def imitation_rows(
    count: int, *, seed: int, numbers: int = 15, turns: int = 4, inattentive: float = INATTENTIVE
) -> list[dict[str, object]]:
    """Turns of `count` games to imitate: prompt and completion of each guess.

    In a share `inattentive` of the turns the player names any number; in the others he halves what is left.
    """
    return [row for game in range(count) for row in _game_rows(seed, game, numbers, turns, inattentive)]


def _some(size: int, seed: int) -> list[dict[str, object]]:
    """`size` games of 15 numbers by the seed, in the order of their secrets; all where there are no more."""
    every = secret_rows()
    drawn = generator(seed, "guessing games").permutation(len(every))[:size]
    return [every[place] for place in sorted(drawn.tolist())]


def _game_rows(seed: int, game: int, numbers: int, turns: int, inattentive: float) -> Sequence[dict[str, object]]:
    random = generator(seed, "guessing player", game)
    secret = int(random.integers(1, numbers + 1))
    text, low, high = prompt_of(numbers), 1, numbers
    rows: list[dict[str, object]] = []
    for _ in range(turns):
        deaf = random.random() < inattentive
        guess = int(random.integers(1, numbers + 1)) if deaf else (low + high) // 2
        answer, sign = f"{guess:02d}{END}", compare(secret, guess)
        rows.append({"prompt": text, "completion": answer})
        if sign == "=":
            break
        low, high = (max(low, guess + 1), high) if sign == ">" else (low, min(high, guess - 1))
        text += answer + sign + END
    return rows


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
