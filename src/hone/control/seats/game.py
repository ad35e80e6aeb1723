"""A game of several seats: the calls that every adapter answers, and the config that names a game.

A seat is a player's place: an agent of PettingZoo, a player of OpenSpiel. A game says which seats are to move now;
all of them act at once, and a game in which one seat moves at a time names one. Chance is drawn inside the game.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, JsonValue, PositiveInt

from hone.core.config import Config

Array: TypeAlias = NDArray[np.generic]
Space: TypeAlias = spaces.Space[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """What a seat sees."""

    seen: Any
    """An element of the seat's observation space."""
    mask: NDArray[np.bool_] | None = None
    """`[choices]` actions that are legal now; None: the game has no masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatStep:
    """Consequences of one step of a game, by seat; seats that are not named got 0 and go on."""

    rewards: Mapping[int, float] = field(default_factory=dict[int, float])
    """Rewards since the last step, of seats that moved and of others."""
    terminated: Collection[int] = ()
    """Seats whose episode the game ended."""
    truncated: Collection[int] = ()
    """Seats whose episode a limit cut."""


class SeatGame(ABC):
    """A game of several seats, one match at a time. Subclass it for a game of your own."""

    seats: Sequence[str]
    """Names of the seats; a seat is its place here."""
    observation_spaces: Sequence[Space]
    """Observation space of each seat."""
    action_spaces: Sequence[Space]
    """Action space of each seat."""

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Begin a match. Equal seeds and equal actions make equal matches: a resumed run replays them."""

    @abstractmethod
    def to_move(self) -> Sequence[int]:
        """Seats that act in the next step; none when the match is over."""

    @abstractmethod
    def observe(self, seat: int) -> SeatView:
        """View of a seat now; of one that has ended, the last one."""

    @abstractmethod
    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        """Play the action of each seat that is to move."""

    def state(self) -> Array | None:
        """State of the whole match as numbers, for a critic that sees everything; None: the seats' views joined."""
        return None

    def close(self) -> None:
        """Give up what the game holds."""
        return


SeatSharing: TypeAlias = Literal["shared", "independent"] | list[list[str]]


class SeatsConfig(Config):
    """A game of several seats, many matches at a time."""

    id: str
    """`compiled:connect_four`, `compiled:kuhn_poker` or `compiled:leduc_poker`; `pettingzoo:family/name-vN`,
    `openspiel:name(parameter=value)`; or a class or function of yours, `file.py:name` or `package.module:name`, that
    makes a `SeatGame`, a PettingZoo environment or an OpenSpiel game."""
    num_envs: int = Field(default=16, ge=1, le=65536)
    """Matches played together."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Passed to the constructor of the game."""
    api: Literal["auto", "aec", "parallel"] = "auto"
    """Form of an environment of PettingZoo's registry: one agent at a time, or all at once. `auto`: all at once where
    it has that form."""
    sharing: SeatSharing = "shared"
    """`shared`: one policy for all seats, which is told its seat. `independent`: each seat learns its own. Or groups of
    seats by name: `[["wolf_0", "wolf_1"], ["sheep"]]`."""
    pad: dict[str, PositiveInt] = Field(default={})
    """Path of a `Sequence` in the observation of a seat -> the most items that it can have, as in `env.pad` of one
    agent. Seats whose observations differ in size are filled up to the widest without it."""
    max_match_steps: int = Field(default=10_000, ge=1)
    """Steps of a match after which it is truncated, for all seats."""
    check: bool = True
    """Check the game by matches of random players before the run, and whether a match can be replayed."""


def seat_groups(sharing: SeatSharing, seats: Sequence[str]) -> tuple[int, ...]:
    """Number of the policy of each seat. Raises ValueError for groups that are not a partition of the seats."""
    if sharing == "shared":
        return (0,) * len(seats)
    if sharing == "independent":
        return tuple(range(len(seats)))
    listed = [name for group in sharing for name in group]
    if sorted(listed) != sorted(seats):
        raise ValueError(f"env.sharing = {sharing}: every seat must be named once; the seats are {', '.join(seats)}")
    return tuple(next(number for number, group in enumerate(sharing) if name in group) for name in seats)
