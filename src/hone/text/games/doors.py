"""A maze of doors: 40 places with 8 doors each, and questions which door leads from one place to another.

A maze's doors are drawn at random, so that its rules can be known and cannot be worked out. A dialogue reads
`07>31:c.31` and a line end: the question, the door that the policy names, and where the world says that it led. Of 8
doors one leads to the goal, so that chance is 0.125.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import DataError
from hone.core.random import generator, permutation

PLACES: Final = 40
DOORS: Final = 8
LETTERS: Final = "abcdefgh"
"""Names of the doors."""
ALPHABET: Final = "0123456789>:abcdefgh.?\n "
"""Characters of the game, and the space of reflections."""
END: Final = "."
"""End of a turn of the policy: the stop string."""


@cache
def doors_of(maze: int) -> tuple[tuple[int, ...], ...]:
    """Where door `d` leads from place `p` is `[p][d]`: of each place 8 different others."""
    random = generator(maze, "doors/maze")
    places = range(PLACES)
    return tuple(
        tuple(int(place) for place in random.permutation([other for other in places if other != here])[:DOORS])
        for here in places
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorQuestion:
    """A question that one door answers."""

    start: int
    goal: int
    maze: int

    @property
    def text(self) -> str:
        """The question as the policy reads it."""
        return f"{self.start:02}>{self.goal:02}:"

    @property
    def door(self) -> str:
        """The right answer."""
        return LETTERS[doors_of(self.maze)[self.start].index(self.goal)] + END

    def row(self) -> dict[str, object]:
        """A row of a dataset; `wanted` is what the world says of the right door, `expert` the turns of who knows it."""
        return {
            "id": f"{self.maze}/{self.text}", "prompt": self.text, "completion": self.door, "answer": self.door,
            "start": self.start, "goal": self.goal, "maze": self.maze, "wanted": f"{self.goal:02}\n",
            "expert": [self.door],
        }  # fmt: skip


def door_questions(maze: int, *, seed: int) -> list[DoorQuestion]:
    """All 320 questions that one door answers, in an order drawn from `seed`."""
    questions = [
        DoorQuestion(start=start, goal=goal, maze=maze) for start in range(PLACES) for goal in doors_of(maze)[start]
    ]
    return [questions[place] for place in permutation(seed, "doors/questions", count=len(questions)).tolist()]


def split_questions(maze: int, *, demonstrated: int, seed: int) -> tuple[list[DoorQuestion], list[DoorQuestion]]:
    """The questions that are demonstrated, and all others: no question is in both."""
    questions = door_questions(maze, seed=seed)
    return questions[:demonstrated], questions[demonstrated:]


def walk_rows(maze: int, count: int, *, seed: int) -> list[dict[str, object]]:
    """Rows to explore by: random places as start and goal, most of which no single door joins. Every start has many
    goals, so that where a door leads cannot be read off the goal."""
    drawn = generator(seed, "doors/walks").integers(PLACES, size=(count, 2)).tolist()
    return [
        {"id": f"{maze}/walk {number}", "prompt": f"{start:02}>{goal:02}:", "start": start, "goal": goal, "maze": maze}
        for number, (start, goal) in enumerate(drawn)
    ]


@dataclass(slots=True)
class DoorMaze:
    """A question about the doors of a maze; the first door that leads to the goal pays 1 and ends the dialogue.

    The door is the last word of a turn: what stands before it is thought. What names no door is answered by `?`, and is
    a move all the same. Columns: `start`, `goal`, `maze` (the seed of its doors, 0 where there is none) and `moves`
    (doors that may be opened, 1 where there is none).
    """

    place: int = 0
    goal: int = 0
    maze: int = 0
    moves: int = 1
    opened: int = 0
    unreadable: int = 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin at the row's `start`. Raises DataError for a place that the maze does not have."""
        del seed
        self.place, self.goal = int(columns["start"]), int(columns["goal"])
        self.maze, self.moves = int(columns.get("maze") or 0), int(columns.get("moves") or 1)
        self.opened = self.unreadable = 0
        for name, place in (("start", self.place), ("goal", self.goal)):
            if not 0 <= place < PLACES:
                raise DataError(f"{name} = {place} is none of the places 0 to {PLACES - 1}")
        return WorldTurn()

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Open a door, and say where it led."""
        name = last_word(said.text)
        door = LETTERS.find(name) if len(name) == 1 else -1
        self.opened += 1
        self.unreadable += door < 0
        if door >= 0:
            self.place = doors_of(self.maze)[self.place][door]
        reached = door >= 0 and self.place == self.goal
        return WorldTurn(
            messages=[{"role": "user", "content": f"{self.place:02}\n" if door >= 0 else "?\n"}],
            reward=float(reached),
            done=reached or self.opened >= self.moves,
            facts={"doors_opened": self.opened, "unreadable": self.unreadable},
        )

    def close(self) -> None:
        """End; it holds nothing."""

    def fork(self) -> Self:
        """A copy of the dialogue so far."""
        return type(self)(self.place, self.goal, self.maze, self.moves, self.opened, self.unreadable)

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        """Questions of maze 0, each answered by one door, in an order drawn from `seed`; at most all 320."""
        return [one.row() for one in door_questions(0, seed=seed)[:size]]


def last_word(text: str) -> str:
    """The last word of a turn, without the end of the turn; empty for a turn that does not end as it should."""
    return text.removesuffix(END).rpartition(" ")[2] if text.endswith(END) else ""


def goal_of(prompt: str, turns: Sequence[tuple[str, str]]) -> str | None:
    """The question that a dialogue answered without being asked: from the place where it began to the one that it came
    to. None where no door was opened. `turns` are (speaker, text) after the prompt."""
    replies = [text.strip() for speaker, text in turns if speaker == "environment"]
    reached = [place for place in replies if place.isdigit()]
    return f"{prompt[:2]}>{reached[-1]}:" if reached else None


def reflection(state: str, tried: Sequence[tuple[str, str]], expert: str) -> str:
    """Where the tried doors led, to be thought before the expert's turn: `a05 c31 `, in the order of the doors. `tried`
    are (turn, the world's answer)."""
    del state, expert
    led = {last_word(turn): answer.strip() for turn, answer in tried if answer.strip().isdigit()}
    return "".join(f"{door}{place} " for door, place in sorted(led.items()))


def coverage(questions: Sequence[DoorQuestion], answered: Collection[tuple[str, str]]) -> float:
    """Share of `questions` whose right answer is among `answered`, pairs of question and door: what a log tells
    outright, so that knowing it is no generalisation."""
    return sum((one.text, one.door) in answered for one in questions) / max(len(questions), 1)
