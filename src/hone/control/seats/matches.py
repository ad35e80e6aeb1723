"""Running matches: the common form of what seats see and do, and one match after another with a record of its moves.

Seats of one policy must read rows of one form. An observation is flattened, filled up with zeros to the widest of all
seats, and followed by the seat, one-hot; numbered actions are counted from 0 up to those of the seat that has most, and
a mask keeps a seat to its own. Where boxes of actions differ, the policy acts in the one of the most numbers: a seat
with fewer takes the first of them, moved from those bounds to its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.environments.check import check_spaces
from hone.control.networks.mlp import BoxActions, DiscreteActions, Floats, ObservationInputs, PolicySpaces
from hone.control.seats.game import Array, SeatGame, SeatStep, Space
from hone.control.spaces import network_spaces
from hone.core.errors import ConfigError, HoneError, UserCodeError
from hone.core.out_of_memory import out_of_memory
from hone.core.ragged import Ints
from hone.process.user_files import describe_error, user_traceback

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatLayout:
    """Common form of the observations and actions of all seats."""

    seats: tuple[str, ...]
    observation_spaces: tuple[Space, ...]
    action_spaces: tuple[Space, ...]
    width: int
    """Numbers of the widest observation."""
    actions: DiscreteActions | BoxActions
    moved: frozenset[int] = frozenset()
    """Seats whose box of actions is not the policy's."""

    @classmethod
    def from_game(cls, game: SeatGame, name: str) -> Self:
        """The layout of a game that was reset. Raises ConfigError for spaces that no policy here can read, with all
        faults."""
        faults: list[str] = []
        for seat, shown, acted in zip(game.seats, game.observation_spaces, game.action_spaces, strict=True):
            try:
                check_spaces(f"{name}, {seat}", spaces.flatten_space(shown), acted)
                if not isinstance(acted, spaces.Discrete | spaces.Box):
                    faults.append(f"{name}, {seat}: action space {acted}: only Discrete and Box are played here")
            except NotImplementedError:
                faults.append(f"{name}, {seat}: observation space {shown} cannot be flattened into numbers")
            except ConfigError as error:
                faults.extend(error.messages)
        if faults:
            raise ConfigError(*faults)
        acted, moved = tuple(game.action_spaces), frozenset[int]()
        if all(isinstance(space, spaces.Discrete) for space in acted):
            counts = [int(space.n) for space in acted if isinstance(space, spaces.Discrete)]
            masked = min(counts) < max(counts) or any(game.observe(seat).mask is not None for seat in game.to_move())
            actions: DiscreteActions | BoxActions = DiscreteActions(count=max(counts), masked=masked)
        else:
            widest = _widest_box(acted, name)
            actions = network_spaces(spaces.Discrete(1), widest).box
            moved = frozenset(seat for seat, space in enumerate(acted) if space != widest)
        return cls(
            seats=tuple(game.seats),
            observation_spaces=tuple(game.observation_spaces),
            action_spaces=acted,
            width=max(spaces.flatdim(space) for space in game.observation_spaces),
            actions=actions,
            moved=moved,
        )

    @property
    def masked(self) -> bool:
        """True if some action may be illegal."""
        return isinstance(self.actions, DiscreteActions) and self.actions.masked

    @property
    def row_size(self) -> int:
        """Numbers of an observation's row."""
        return self.width + len(self.seats)

    @property
    def policy_spaces(self) -> PolicySpaces:
        """Spaces of a policy for every seat."""
        return PolicySpaces(inputs=ObservationInputs(size=self.row_size), actions=self.actions)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return () if isinstance(self.actions, DiscreteActions) else self.actions.shape

    def row(self, seat: int, seen: Any) -> Floats:  # noqa: ANN401 - of any space
        """`[row_size]` numbers of an observation of a seat."""
        space, row = self.observation_spaces[seat], np.zeros(self.row_size, np.float32)
        flat = np.ravel(seen) if isinstance(space, spaces.Box) else np.asarray(spaces.flatten(space, seen))
        row[: len(flat)] = flat
        row[self.width + seat] = 1.0
        return row

    def legal(self, seat: int, mask: Bools | None) -> Bools:
        """`[count]` legal actions of a seat among the numbered ones of all."""
        assert isinstance(self.actions, DiscreteActions)
        own, legal = int(self.action_spaces[seat].n), np.zeros(self.actions.count, np.bool_)  # pyright: ignore[reportAttributeAccessIssue]
        legal[:own] = True if mask is None else mask
        return legal

    def to_game(self, seat: int, chosen: Array) -> Any:  # noqa: ANN401 - of any space
        """The game's own form of an action of a policy."""
        space = self.action_spaces[seat]
        if isinstance(space, spaces.Discrete):
            return int(chosen) + int(space.start)  # pyright: ignore[reportArgumentType]
        assert isinstance(space, spaces.Box)
        if seat in self.moved:
            box, size = self.policy_spaces.box, int(np.prod(space.shape))
            pair = (box.low[:size], box.high[:size])
            chosen = _between(chosen.ravel()[:size], pair, (space.low, space.high)).reshape(space.shape)
        return np.clip(chosen, space.low, space.high).astype(space.dtype)

    def to_policy(self, seat: int, action: Any) -> Array:  # noqa: ANN401 - of any space
        """Inverse of `to_game`."""
        space, numbers = self.action_spaces[seat], np.asarray(action)
        if isinstance(space, spaces.Discrete):
            return numbers - int(space.start)
        if seat not in self.moved:
            return numbers
        assert isinstance(space, spaces.Box)
        box, size = self.policy_spaces.box, numbers.size
        row = box.middle.astype(np.float32)  # numbers that the seat does not take stand in the middle
        row[:size] = _between(numbers.ravel(), (space.low, space.high), (box.low[:size], box.high[:size]))
        return row.reshape(box.shape)


def _widest_box(acted: Sequence[Space], name: str) -> spaces.Box:
    """The box of the most numbers, the first of several. Raises ConfigError for boxes that differ and have no finite
    bounds to move numbers between, and for choices beside boxes."""
    boxes = [space for space in acted if isinstance(space, spaces.Box)]
    finite = [box.is_bounded("both") and bool((box.high > box.low).all()) for box in boxes]
    if len(boxes) < len(acted) or not (all(box == boxes[0] for box in boxes) or all(finite)):
        raise ConfigError(
            f"{name}: the actions of the seats differ, {list(map(str, acted))}: make them all choices, or all boxes "
            "with finite bounds"
        )
    return max(boxes, key=lambda box: int(np.prod(box.shape)))


def _between(values: NDArray[Any], old: tuple[Any, Any], new: tuple[Any, Any]) -> NDArray[Any]:
    """Numbers `[n]` at the same share of the way between the bounds `new` as between those of `old`."""
    (low, high), (first, last) = ([np.ravel(side) for side in pair] for pair in (old, new))
    return first + (values - low) / (high - low) * (last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """m decisions to be made at one time, of one match or of many."""

    games: Sequence[SeatGame]
    """`[m]` the game of each."""
    seats: Ints
    """`[m]`"""
    seen: Floats
    """`[m, row_size]`"""
    mask: Bools | None
    """`[m, count]` legal actions; None: all, always."""

    def take(self, rows: Ints) -> "Turn":
        """The decisions `rows`."""
        if len(rows) == len(self.seats):
            return self
        mask = None if self.mask is None else self.mask[rows]
        games = [self.games[row] for row in rows]
        return Turn(games=games, seats=self.seats[rows], seen=self.seen[rows], mask=mask)


@dataclass(kw_only=True)
class RunningMatch:
    """One match after another of a game, each with the record of its moves."""

    game: SeatGame
    layout: SeatLayout
    max_steps: int
    number: int = -1
    seed: int = 0
    players: tuple[int, ...] = ()
    """Player of each seat; the caller gives the numbers their meaning."""
    moves: list[dict[int, Array]] = field(default_factory=list[dict[int, Array]])
    """Actions of each step by seat."""
    movers: Sequence[int] = ()
    """Seats that are to move; none when the match is over."""

    def begin(self, number: int, seed: int, players: Sequence[int]) -> None:
        """Begin match `number`."""
        self.number, self.seed, self.players, self.moves = number, seed, tuple(players), []
        self.returns = np.zeros(len(self.layout.seats))
        self.game.reset(seed)
        self.movers = list(self.game.to_move())
        if not self.movers:
            raise UserCodeError(f"match {number} (seed {seed}): no seat is to move after reset(): a match must begin")

    def views(self) -> tuple[list[Floats], list[Bools]]:
        """Rows and, in a game with masks, legal actions of the seats that are to move."""
        rows: list[Floats] = []
        masks: list[Bools] = []
        for seat in self.movers:
            view = self.game.observe(seat)
            rows.append(self.layout.row(seat, view.seen))
            if not self.layout.masked:
                continue
            masks.append(self.layout.legal(seat, view.mask))
            if not masks[-1].any():
                raise UserCodeError(
                    f"{self._place()}: {self.layout.seats[seat]} is to move and its mask allows no action"
                )
        return rows, masks

    def whole_state(self) -> Floats:
        """`[Z]` state of the whole match: the game's own, or the views of all seats joined."""
        own = self.game.state()
        if own is not None:
            return np.asarray(own, np.float32).ravel()
        seats, width = range(len(self.layout.seats)), self.layout.width
        return np.concatenate([self.layout.row(seat, self.game.observe(seat).seen)[:width] for seat in seats])

    def play(self, actions: Mapping[int, Array]) -> SeatStep:
        """Play the actions of the seats that are to move. Raises UserCodeError for a reward that is not finite."""
        self.moves.append(dict(actions))
        step = self.game.step({seat: self.layout.to_game(seat, action) for seat, action in actions.items()})
        for seat, reward in step.rewards.items():
            if not np.isfinite(reward):
                raise UserCodeError(f"{self._place()}: the reward of {self.layout.seats[seat]} is {reward}")
            self.returns[seat] += reward
        self.movers = list(self.game.to_move())
        if len(self.moves) >= self.max_steps and self.movers:
            self.movers = ()
            cut = [seat for seat in range(len(self.layout.seats)) if seat not in step.terminated]
            return SeatStep(rewards=step.rewards, terminated=step.terminated, truncated=cut)
        return step

    def replay(self, number: int, seed: int, players: Sequence[int], moves: Sequence[dict[int, Array]]) -> None:
        """Begin match `number` and play its moves again."""
        self.begin(number, seed, players)
        for actions in moves:
            self.play(actions)

    def _place(self) -> str:
        return f"step {len(self.moves)} of match {self.number} (seed {self.seed}, last actions {self.moves[-3:]})"


def next_turn(matches: Sequence[RunningMatch]) -> tuple[Turn, list[tuple[int, int]]]:
    """The decisions that all matches wait for, and the place (match, seat) of each."""
    places, rows, masks = [], [], []
    for number, match in enumerate(matches):
        seen, legal = match.views()
        places += [(number, seat) for seat in match.movers]
        rows += seen
        masks += legal
    turn = Turn(
        games=[matches[number].game for number, _ in places],
        seats=np.array([seat for _, seat in places], np.int64),
        seen=np.stack(rows),
        mask=np.stack(masks) if masks else None,
    )
    return turn, places


def run_game_code(name: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the call gives
    """Run code that calls a game; an exception of the game becomes a UserCodeError with the game's name."""
    try:
        return call()
    except HoneError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise UserCodeError(f"{name}: the game failed with {describe_error(error)}", user_traceback(error)) from error
