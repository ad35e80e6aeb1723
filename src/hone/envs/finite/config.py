"""Finite worlds named in a config file: Gymnasium's tables, maps, chains, draws, and the counterexample of Baird.

Belongs here: from a config to a `Finite`. What the worlds are is `build.py`.
"""

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, JsonValue

from hone.core.config import Config
from hone.core.errors import ConfigError, DataError
from hone.envs.finite.build import chain, drawn, from_gymnasium, grid
from hone.envs.finite.model import Finite, Outcomes, finite

MAZE = [
    ".......#G",
    "..#....#.",
    "S.#....#.",
    "..#......",
    ".....#...",
    ".........",
]
"""The maze of 6 x 9 of Sutton (1990); the shortest way is 14 steps."""


class GymTable(Config):
    """A Gymnasium environment that keeps a table (FrozenLake, Taxi, CliffWalking), stepped as that table."""

    kind: Literal["gymnasium"]
    """Names this alternative."""
    id: str
    """Registered id; its time limit holds."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Passed to the environment's constructor."""


class MapWorld(Config):
    """A map: `#` wall, `S` start, `.` floor; letters that end the episode and pay what `pays` says."""

    kind: Literal["grid"]
    """Names this alternative."""
    rows: list[str] = Field(default=MAZE)
    """The map, row by row."""
    step: float = 0.0
    """Paid for every move."""
    pays: dict[str, float] = Field(default={"G": 1.0})
    """Paid besides on arriving at a letter; the episode ends there."""
    slip: float = Field(default=0.0, ge=0, le=1)
    """Probability that a move goes to one of its sides."""


class ChainWorld(Config):
    """States in a row, begun in the middle; an end on the left and one on the right."""

    kind: Literal["chain"]
    """Names this alternative."""
    length: int = Field(default=19, ge=1)
    """States between the ends."""
    slip: float = Field(default=0.0, ge=0, le=1)
    """Probability that a step goes the other way."""
    small: float = -1.0
    """Paid at the left end."""
    large: float = 1.0
    """Paid at the right end."""


class DrawnWorld(Config):
    """A process drawn at random (Garnet)."""

    kind: Literal["drawn"]
    """Names this alternative."""
    states: int = Field(default=20, ge=1)
    """Number of states."""
    actions: int = Field(default=3, ge=1)
    """Actions in each."""
    branching: int = Field(default=3, ge=1)
    """States that each pair can lead to."""
    ending: float = Field(default=0.05, ge=0, lt=1)
    """Probability that a step ends the episode."""
    seed: int = Field(default=0, ge=0)
    """Which one."""


class BairdWorld(Config):
    """Seven states that pay nothing and never end: action 0 leads to any of the first six, action 1 to the seventh
    (Baird, 1995)."""

    kind: Literal["baird"]
    """Names this alternative."""


Named: TypeAlias = GymTable | MapWorld | ChainWorld | DrawnWorld | BairdWorld
TableWorld: TypeAlias = Annotated[Named, Field(discriminator="kind")]


class FiniteConfig(Config):
    """A finite world, many copies at a time: its whole table is known, so what is learned is judged exactly."""

    world: TableWorld
    """Which one."""
    copies: int = Field(default=1, ge=1, le=65536)
    """Stepped together."""
    limit: int | None = Field(default=None, ge=1)
    """Truncate episodes here; None keeps the world's own limit, if any."""


def finite_world(config: FiniteConfig, *, discount: float) -> Finite:
    """The process. Raises ConfigError for what is none, and UserCodeError where its environment cannot be made."""
    try:
        mdp = _named(config.world, discount=discount)
    except DataError as fault:  # the numbers of a log are data, those of a config are not
        key = {"grid": "finite.world.rows: ", "gymnasium": ""}.get(config.world.kind, "finite.world.kind: ")
        raise ConfigError(*(f"{key}{message}" for message in fault.messages)) from fault
    return mdp if config.limit is None else limited(mdp, config.limit)


def _named(world: Named, *, discount: float) -> Finite:
    match world:
        case GymTable():
            return from_gymnasium(world.id, discount=discount, options=world.kwargs)
        case MapWorld():
            return grid(world.rows, discount=discount, step=world.step, pays=world.pays, slip=world.slip)
        case ChainWorld():
            return chain(world.length, discount=discount, slip=world.slip, small=world.small, large=world.large)
        case DrawnWorld():
            return drawn(
                states=world.states, actions=world.actions, branching=world.branching, seed=world.seed,
                discount=discount, ending=world.ending,
            )  # fmt: skip
        case BairdWorld():
            return baird(discount=discount)


def limited(mdp: Finite, limit: int) -> Finite:
    """The same world, whose episodes are truncated after `limit` steps."""
    return Finite(
        states=mdp.states, actions=mdp.actions, offsets=mdp.offsets, after=mdp.after, probability=mdp.probability,
        reward=mdp.reward, ends=mdp.ends, start=mdp.start, discount=mdp.discount, limit=limit,
    )  # fmt: skip


def baird(*, discount: float) -> Finite:
    """The world of Baird's counterexample; episodes begin anywhere."""
    state = np.repeat(np.arange(7), 7)
    to = np.tile(np.arange(7), 7)
    return finite(
        Outcomes(
            state=state, action=(to == 6).astype(np.int64), after=to, probability=np.where(to == 6, 1.0, 1 / 6),
            reward=np.zeros(49), ends=np.zeros(49, dtype=np.bool_),
        ),
        states=7, actions=2, start=np.full(7, 1 / 7), discount=discount,
    )  # fmt: skip


def require_all_actions(mdp: Finite) -> None:
    """Raises ConfigError for a state in which only some of the actions can be taken: a table would try the others."""
    some = np.flatnonzero(mdp.legal.any(axis=1) & ~mdp.legal.all(axis=1))
    if len(some):
        raise ConfigError(f"state {some[0]}: only actions {np.flatnonzero(mdp.legal[some[0]]).tolist()} can be taken")
