"""Games of several seats in C++: Connect Four, Kuhn poker, Leduc poker; and the tree search over Connect Four.

Belongs here: the adapter of a compiled game, its whole tree where it is small, and batches of searches. The rules and
the search are in `compiled/`; tests compare each step with OpenSpiel, and the searches with slow ones in Python.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.seats.game import SeatGame, SeatStep, SeatView
from hone.core.errors import ConfigError, did_you_mean
from hone.core.random import generator
from hone.native.build import LibraryFunctions, NativeSource, build, load_functions

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

COMPILED_GAMES: Final = ("connect_four", "kuhn_poker", "leduc_poker")
_LABEL: Final = "the compiled games"
_CHANCE, _OVER = -1, -2
_At = ctypes.c_void_p
_SIGNATURES: Final = {
    "hone_find_game": (ctypes.c_int32, [ctypes.c_char_p]),
    "hone_game_sizes": (None, [ctypes.c_int32, _At]),
    "hone_begin_game": (None, [ctypes.c_int32, _At]),
    "hone_game_mover": (ctypes.c_int32, [ctypes.c_int32, _At]),
    "hone_game_legal": (None, [ctypes.c_int32, _At, _At, ctypes.c_int32]),
    "hone_play_game": (ctypes.c_int32, [ctypes.c_int32, _At, ctypes.c_int32]),
    "hone_game_paid": (None, [ctypes.c_int32, _At, _At]),
    "hone_game_observe": (None, [ctypes.c_int32, _At, ctypes.c_int32, _At]),
    "hone_node_bytes": (ctypes.c_int64, []),
    "hone_begin_search": (None, [_At]),
    "hone_select_leaves": (ctypes.c_int64, [_At]),
    "hone_expand_leaves": (None, [_At, _At, _At]),
    "hone_search_visits": (None, [_At, _At, _At]),
    "hone_mix_noise": (None, [_At, _At, ctypes.c_float]),
    "hone_rollout_search": (ctypes.c_int32, [_At, ctypes.c_int32, ctypes.c_double, ctypes.c_uint64, _At]),
}


SOURCE: Final = NativeSource(
    name="games",
    description=_LABEL,
    folder=Path(__file__).parent / "compiled",
    files=(),
    instruction_sets=(),
)


@cache
def _functions() -> LibraryFunctions:
    return load_functions(build(SOURCE).path, _LABEL, _SIGNATURES)


class CompiledGame(SeatGame):
    """A compiled game: `env.id = "compiled:connect_four"`. Observations, actions and chance are OpenSpiel's.

    Raises ConfigError for an unknown game, ResourceError without a compiler.
    """

    def __init__(self, name: str) -> None:
        self.name, self._call = name, _functions()
        self._number: int = self._call["hone_find_game"](name.encode())
        if self._number < 0:
            raise ConfigError(f"compiled:{name}: no such game{did_you_mean(name, COMPILED_GAMES)}")
        sizes = np.zeros(6, np.int32)
        self._call["hone_game_sizes"](self._number, sizes.ctypes.data)
        state_bytes, seats, self.actions, self.outcomes, self.cells, hidden = sizes.tolist()
        self.hidden = bool(hidden)
        """Whether seats do not see everything."""
        self.seats = tuple(f"player_{seat}" for seat in range(seats))
        self.observation_spaces = (spaces.Box(-np.inf, np.inf, (self.cells,), np.float32),) * seats
        self.action_spaces = (spaces.Discrete(self.actions),) * seats
        self.position = np.zeros(state_bytes, np.uint8)
        """`[bytes]` the position: a copy of it is a snapshot."""
        self._at = self.position.ctypes.data
        self.plies = 0
        """Actions of seats so far in the match."""
        self._call["hone_begin_game"](self._number, self._at)

    def reset(self, seed: int) -> None:
        self._draws, self.plies = generator(seed, "chance"), 0
        self._call["hone_begin_game"](self._number, self._at)
        self._chance()

    @property
    def mirror(self) -> tuple[Ints, Ints] | None:
        """Places of the numbers of a row, seat included, and of the actions, in the mirror image of a position; None
        for a game without one."""
        if self.hidden:
            return None
        columns = np.arange(self.actions)[::-1]
        cells = np.arange(self.cells).reshape(-1, self.actions)[:, columns].ravel()
        return np.concatenate([cells, self.cells + np.arange(len(self.seats))]), columns.copy()

    def mover(self) -> int:
        """Seat that is to move; -1 at chance, -2 at the end."""
        return self._call["hone_game_mover"](self._number, self._at)

    def to_move(self) -> Sequence[int]:
        mover = self.mover()
        return () if mover < 0 else (mover,)

    def legal(self) -> NDArray[np.bool_]:
        """`[actions]` legal actions, or `[outcomes]` possible outcomes at chance, all as likely."""
        allowed = np.zeros(self.outcomes if self.mover() == _CHANCE else self.actions, np.bool_)
        self._call["hone_game_legal"](self._number, self._at, allowed.ctypes.data, len(allowed))
        return allowed

    def seen(self, seat: int) -> Floats:
        """`[cells]` numbers that a seat sees."""
        seen = np.empty(self.cells, np.float32)
        self._call["hone_game_observe"](self._number, self._at, seat, seen.ctypes.data)
        return seen

    def observe(self, seat: int) -> SeatView:
        return SeatView(seen=self.seen(seat), mask=None if self.mover() == _OVER else self.legal())

    def play(self, action: int) -> None:
        """Play an action or an outcome of chance. Raises ConfigError for one that is not legal."""
        if not self._call["hone_play_game"](self._number, self._at, action):
            raise ConfigError(f"compiled:{self.name}: {action} is not legal here, of {np.flatnonzero(self.legal())}")

    def paid(self) -> NDArray[np.float64]:
        """`[seats]` payments so far."""
        paid = np.empty(len(self.seats))
        self._call["hone_game_paid"](self._number, self._at, paid.ctypes.data)
        return paid

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        (action,) = actions.values()
        self.play(int(action))
        self.plies += 1
        self._chance()
        over = self.mover() == _OVER
        return SeatStep(
            rewards=dict(enumerate(self.paid().tolist())) if over else {}, terminated=(0, 1) if over else ()
        )

    def _chance(self) -> None:
        """Draw at chance nodes until a seat is to move, as `OpenSpielGame` does from the same numbers."""
        while self.mover() == _CHANCE:
            outcomes = np.flatnonzero(self.legal())
            chances = np.full(len(outcomes), 1 / len(outcomes))
            below = np.cumsum(chances) <= self._draws.random() * chances.sum()
            self.play(int(outcomes[min(int(below.sum()), len(outcomes) - 1)]))


# --------------------------------------------------------------------------------------------------------------- search


class _TreeSearch(ctypes.Structure):
    """`Search` in compiled/search.h."""

    _fields_ = (
        ("trees", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("roots", _At),
        ("nodes", _At),
        ("used", _At),
        ("leaf", _At),
        ("seen", _At),
        ("explore", ctypes.c_double),
    )


Evaluate = Callable[[Floats], tuple[Floats, Floats]]
"""Rows `[n, cells + seats]` -> logits `[n, actions]` and values `[n]` of the seat that is to move, in [-1, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchResult:
    """Searches of n positions."""

    visits: NDArray[np.int32]
    """`[n, actions]`"""
    values: NDArray[np.float64]
    """`[n]` mean value for the seat that is to move."""

    @property
    def policy(self) -> NDArray[np.float64]:
        """`[n, actions]` shares of the visits."""
        return self.visits / np.maximum(self.visits.sum(axis=1, keepdims=True), 1)


def tree_search(
    positions: Sequence[CompiledGame],
    evaluate: Evaluate,
    *,
    simulations: int,
    weight: float = 1.5,
    noise: NDArray[np.float64] | None = None,
    noise_share: float = 0.25,
) -> _SearchResult:
    """PUCT of many positions of Connect Four together, with one call of the network a simulation (Silver et al., 2018).

    `simulations` lines go down each tree, the first of which evaluates its root. A line takes the child with the
    greatest mean value + `weight` * prior * sqrt(visits of the parent) / (1 + visits). `noise` `[n, actions]`
    distributions are mixed into the priors at the roots.
    """
    require_searchable(positions[0])
    call, count, actions = _functions(), len(positions), positions[0].actions
    row = positions[0].cells + len(positions[0].seats)
    capacity = simulations * actions + 1
    roots = np.stack([game.position for game in positions])
    nodes = np.empty((count, capacity * call["hone_node_bytes"]()), np.uint8)
    used, leaf = np.zeros(count, np.int64), np.zeros(count, np.int32)
    seen = np.zeros((count, row), np.float32)
    places = [array.ctypes.data for array in (roots, nodes, used, leaf, seen)]
    search = ctypes.byref(_TreeSearch(count, capacity, *places, weight))
    call["hone_begin_search"](search)
    for step in range(simulations):
        if not call["hone_select_leaves"](search):
            continue
        waiting = leaf >= 0
        if waiting.all():
            logits, values = (np.ascontiguousarray(part, np.float32) for part in evaluate(seen))
        else:
            logits, values = np.zeros((count, actions), np.float32), np.zeros(count, np.float32)
            logits[waiting], values[waiting] = evaluate(seen[waiting])
        call["hone_expand_leaves"](search, logits.ctypes.data, values.ctypes.data)
        if step == 0 and noise is not None:
            mixed = np.ascontiguousarray(noise, np.float32)
            call["hone_mix_noise"](search, mixed.ctypes.data, noise_share)
    visits, means = np.zeros((count, actions), np.int32), np.zeros(count)
    call["hone_search_visits"](search, visits.ctypes.data, means.ctypes.data)
    return _SearchResult(visits=visits, values=means)


def rollout_search(
    position: CompiledGame, *, simulations: int, seed: int, explore: float = 2.0
) -> tuple[int, NDArray[np.int32]]:
    """UCT with random playouts in Connect Four, as OpenSpiel's `MCTSBot` with its solver: the move and the visits
    `[actions]`."""
    visits = np.zeros(position.actions, np.int32)
    move = _functions()["hone_rollout_search"](
        position.position.ctypes.data, simulations, explore, seed, visits.ctypes.data
    )
    return move, visits


def require_searchable(game: object) -> None:
    """Raises ConfigError for a game that the compiled searches do not know."""
    if not isinstance(game, CompiledGame) or game.name != COMPILED_GAMES[0]:
        raise ConfigError('tree search with a network is for env.id = "compiled:connect_four"')


# ----------------------------------------------------------------------------------------------------------- whole tree


@dataclass(frozen=True, slots=True, kw_only=True)
class GameTree:
    """Every history of a small game as arrays, parents before their children; H histories, I information sets.

    An information set is what a seat can tell apart: the numbers that it sees. `edges` go from a history by an action.
    """

    parent: Ints
    """`[H]` history before; -1 at the root."""
    depth: Ints
    """`[H]` moves before it."""
    mover: Ints
    """`[H]` seat to move; -1 at chance, -2 at an end."""
    infoset: Ints
    """`[H]` information set of the seat to move; -1 elsewhere."""
    action: Ints
    """`[H]` action that led to it; -1 at the root."""
    chance: NDArray[np.float64]
    """`[H]` probability that chance takes the edge to it; 1 after a seat's action."""
    paid: NDArray[np.float64]
    """`[H, seats]` payments at an end; 0 elsewhere."""
    seat: Ints
    """`[I]` seat of each information set."""
    seen: Floats
    """`[I, cells]` what it sees."""
    legal: NDArray[np.bool_]
    """`[I, actions]`"""


@cache
def game_tree(name: str) -> GameTree:
    """The tree of Kuhn or Leduc poker. Raises ConfigError for a game that is too large."""
    game = CompiledGame(name)
    if not game.hidden:
        raise ConfigError(f"compiled:{name} is too large for its whole tree; Kuhn and Leduc poker have one")
    rows: list[tuple[int, int, int, int, int, float, list[float]]] = []
    numbers: dict[tuple[int, bytes], int] = {}
    seen, legal = list[Floats](), list[NDArray[np.bool_]]()
    waiting = [(game.position.copy(), -1, -1, 1.0, 0)]
    for position, parent, action, chance, depth in waiting:  # grows: breadth first
        game.position[:] = position
        mover, allowed, number = game.mover(), game.legal(), -1
        if mover >= 0:
            view = game.seen(mover)
            number = numbers.setdefault((mover, view.tobytes()), len(numbers))
            if number == len(seen):
                seen.append(view)
                legal.append(allowed)
        here = len(rows)
        rows.append((parent, depth, mover, number, action, chance, game.paid().tolist()))
        likely = 1 / allowed.sum() if mover == _CHANCE else 1.0
        for following in np.flatnonzero(allowed).tolist() if mover != _OVER else []:
            game.position[:] = position
            game.play(following)
            waiting.append((game.position.copy(), here, following, likely, depth + 1))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return GameTree(
        **dict(zip(("parent", "depth", "mover", "infoset", "action", "chance", "paid"), columns, strict=True)),
        seat=np.array([seat for seat, _ in numbers]),
        seen=np.stack(seen),
        legal=np.stack(legal),
    )
