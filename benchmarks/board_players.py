"""Scripted players of OpenSpiel's board games: win if a move wins, block if the other would win, else draw a move.

Functions for `evaluation.against`. Observations are three planes, whose order is the game's.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


def lines_of(rows: int, columns: int, length: int) -> NDArray[np.int64]:
    """`[lines, length]` squares of every line of a board, numbered row by row."""
    found = [
        [(row + step * down) * columns + column + step * right for step in range(length)]
        for row, column, (down, right) in product(range(rows), range(columns), ((0, 1), (1, 0), (1, 1), (1, -1)))
        if 0 <= row + (length - 1) * down < rows and 0 <= column + (length - 1) * right < columns
    ]
    return np.array(found)


SMALL, FOUR = lines_of(3, 3, 3), lines_of(6, 7, 4)


def _winning(board: Bools, squares: NDArray[np.int64], lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places among `squares` that complete a line of `board`."""
    wins = [bool((board[lines] | (lines == square)).all(axis=1).any()) for square in squares]
    return np.flatnonzero(wins)


def _choose(
    mine: Bools, theirs: Bools, moves: NDArray[np.int64], squares: NDArray[np.int64], lines: NDArray[np.int64],
    draws: np.random.Generator,
) -> int:  # fmt: skip
    for board in (mine, theirs):  # first win, then block
        if len(places := _winning(board, squares, lines)):
            return int(moves[places[0]])
    return int(draws.choice(moves))


def tic_tac_toe(seen: NDArray[np.float32], mask: Bools, seat: int, draws: np.random.Generator) -> int:
    """One move ahead in tic-tac-toe. Planes: empty squares, noughts, crosses; seat 0 has the crosses."""
    moves, planes = np.flatnonzero(mask), np.reshape(seen, (3, -1)) > 0
    return _choose(planes[2 - seat], planes[1 + seat], moves, moves, SMALL, draws)


def connect_four(seen: NDArray[np.float32], mask: Bools, seat: int, draws: np.random.Generator) -> int:
    """One move ahead in Connect Four: a disc falls to the lowest empty square of its column. Planes: discs of seat 0,
    discs of seat 1, empty squares; rows from the bottom."""
    moves, planes = np.flatnonzero(mask), np.reshape(seen, (3, -1)) > 0
    empty = planes[2].reshape(6, 7)
    squares = np.array([int(empty[:, column].argmax()) * 7 + column for column in moves])
    return _choose(planes[seat], planes[1 - seat], moves, squares, FOUR, draws)
