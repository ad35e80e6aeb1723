"""A frozen lake in words: 16 places in a square, 4 holes, a start and a goal, and a move for each turn.

A dialogue reads `03 06 09 12|00>14:d.04 d.08 d.12#`: the holes, start and goal, and then moves (`u`, `d`, `l`, `r`) and
where they led. A hole (`#`) ends the dialogue without a reward, the goal pays 1, and the tenth move ends it. The rules
are the same on all maps; what a map asks for is a way, which has to be planned.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.random import generator

SIDE: Final = 4
HOLES: Final = 4
MOVES: Final[Mapping[str, tuple[int, int]]] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
"""Row and column steps by the word for them."""
MOST_MOVES: Final = 10
ALPHABET: Final = "0123456789|>:udlr.#? "
"""Characters of the game."""
END: Final = "."
"""End of a move: the stop string of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMap:
    """A map of which the goal can be reached."""

    holes: tuple[int, ...]
    start: int
    goal: int

    @property
    def text(self) -> str:
        """The map as the policy reads it."""
        return f"{' '.join(f'{hole:02}' for hole in self.holes)}|{self.start:02}>{self.goal:02}:"

    def way(self) -> list[str]:
        """The moves of a shortest way, first of equal ones in the order u, d, l, r; [] where there is none."""
        waiting, ways = deque([self.start]), {self.start: list[str]()}
        while waiting:
            place = waiting.popleft()
            if place == self.goal:
                return ways[place]
            for move in MOVES:
                there = step_to(place, move)
                if there not in ways and there not in self.holes:
                    ways[there] = [*ways[place], move]
                    waiting.append(there)
        return []

    def row(self) -> dict[str, object]:
        """A row of a dataset; `expert` are the turns of a shortest way."""
        return {
            "id": self.text, "prompt": self.text, "holes": list(self.holes), "start": self.start, "goal": self.goal,
            "expert": [move + END for move in self.way()],
        }  # fmt: skip


def step_to(place: int, move: str) -> int:
    """The place after a move; the edge holds one back."""
    down, right = MOVES[move]
    row, column = place // SIDE + down, place % SIDE + right
    return row * SIDE + column if 0 <= row < SIDE and 0 <= column < SIDE else place


def lake_maps(count: int, *, seed: int) -> list[LakeMap]:
    """Different maps, each with a way from the start to the goal. The number of a map is part of its draw, so that more
    maps of a seed begin with the fewer."""
    maps: dict[LakeMap, None] = {}
    number = 0
    while len(maps) < count:
        drawn = generator(seed, "grid/map", number).permutation(SIDE * SIDE)[: HOLES + 2].tolist()
        one = LakeMap(holes=tuple(sorted(drawn[:HOLES])), start=drawn[HOLES], goal=drawn[HOLES + 1])
        if one.way():
            maps[one] = None
        number += 1
    return list(maps)


@dataclass(slots=True)
class LakeWalk:
    """A walk over the row's map (columns `holes`, `start`, `goal`); the goal pays 1.

    The move is the last word of a turn: what stands before it is thought. What is no move is answered by `?`, and is a
    move all the same.
    """

    holes: tuple[int, ...] = ()
    place: int = 0
    goal: int = 0
    moved: int = 0
    unreadable: int = 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin at the row's `start`."""
        del seed
        self.holes = tuple(int(hole) for hole in columns["holes"])
        self.place, self.goal = int(columns["start"]), int(columns["goal"])
        self.moved = self.unreadable = 0
        return WorldTurn()

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Move, and say where that led."""
        move = said.text.removesuffix(END).rpartition(" ")[2] if said.text.endswith(END) else ""
        known = move in MOVES
        self.moved += 1
        self.unreadable += not known
        self.place = step_to(self.place, move) if known else self.place
        fell, reached = known and self.place in self.holes, known and self.place == self.goal
        shown = f"{self.place:02}{'#' if fell else ' '}" if known else "? "
        return WorldTurn(
            messages=[{"role": "user", "content": shown}],
            reward=float(reached),
            done=fell or reached or self.moved >= MOST_MOVES,
            facts={"moves": self.moved, "unreadable": self.unreadable, "fell": float(fell)},
        )

    def close(self) -> None:
        """End; it holds nothing."""

    def fork(self) -> Self:
        """A copy of the walk so far."""
        return type(self)(self.holes, self.place, self.goal, self.moved, self.unreadable)

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        """Different maps, drawn from `seed`."""
        return [one.row() for one in lake_maps(size, seed=seed)]


def imitation_rows(maps: Sequence[LakeMap]) -> list[dict[str, object]]:
    """Moves of shortest ways to imitate: prompt and completion of each turn."""
    rows: list[dict[str, object]] = []
    for one in maps:
        text, place = one.text, one.start
        for move in one.way():
            place = step_to(place, move)
            rows.append({"prompt": text, "completion": move + END})
            text += f"{move}{END}{place:02} "
    return rows


def goal_of(prompt: str, turns: Sequence[tuple[str, str]]) -> str | None:
    """The map with the place that a walk came to as its goal; None where it fell, or ended where it began.

    `turns` are (speaker, text) after the prompt.
    """
    replies = [text.strip() for speaker, text in turns if speaker == "environment"]
    question, _, way = prompt.rpartition("|")
    start, reached = way[:2], next((place for place in reversed(replies) if place != "?"), way[:2])
    return f"{question}|{start}>{reached}:" if reached.isdigit() and reached != start else None
