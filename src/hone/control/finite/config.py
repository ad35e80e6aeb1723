"""Configs of finite environments: Gymnasium's tables, maps, chains, random processes, and Baird's counterexample.

Belongs here: from a config to a `FiniteMdp`. `build.py` builds the tables.
"""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, JsonValue

from hone.control.finite.build import chain_mdp, garnet_mdp, grid_mdp, mdp_from_gymnasium
from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp
from hone.core.config import Config
from hone.core.errors import ConfigError, DataError

MAZE = [
    ".......#G",
    "..#....#.",
    "S.#....#.",
    "..#......",
    ".....#...",
    ".........",
]
"""Maze of 6 x 9 of Sutton (1990); the shortest path has 14 steps."""


class GymTableWorld(Config):
    """Gymnasium environment with a table (FrozenLake, Taxi, CliffWalking), stepped as that table."""

    kind: Literal["gymnasium"]
    """Names this alternative."""
    id: str
    """Registered id; its time limit applies."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Arguments of the environment's constructor."""


class GridWorld(Config):
    """Grid map: `#` wall, `S` start, `.` floor; letters terminate with the reward in `rewards`."""

    kind: Literal["grid"]
    """Names this alternative."""
    rows: list[str] = Field(default=MAZE)
    """Rows of the map."""
    step_reward: float = 0.0
    """Reward of every move."""
    rewards: dict[str, float] = Field(default={"G": 1.0})
    """Additional reward per letter; the episode terminates there."""
    slip: float = Field(default=0.0, ge=0, le=1)
    """Probability that a move goes to one side instead."""


class ChainWorld(Config):
    """Chain of states with the start in the middle and a terminal at each end."""

    kind: Literal["chain"]
    """Names this alternative."""
    length: int = Field(default=19, ge=1)
    """States between the ends."""
    slip: float = Field(default=0.0, ge=0, le=1)
    """Probability that a step goes in the other direction."""
    small: float = -1.0
    """Reward at the left end."""
    large: float = 1.0
    """Reward at the right end."""


class GarnetWorld(Config):
    """Random process (Garnet)."""

    kind: Literal["drawn"]
    """Names this alternative."""
    states: int = Field(default=20, ge=1)
    """Number of states."""
    actions: int = Field(default=3, ge=1)
    """Number of actions."""
    branching: int = Field(default=3, ge=1)
    """Number of successor states of each state-action pair."""
    end_probability: float = Field(default=0.05, ge=0, lt=1)
    """Probability that a step terminates the episode."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random process."""


class BairdWorld(Config):
    """Seven states without rewards or terminals: action 0 leads to any of the first six, action 1 to the seventh
    (Baird, 1995)."""

    kind: Literal["baird"]
    """Names this alternative."""


_NamedWorld: TypeAlias = GymTableWorld | GridWorld | ChainWorld | GarnetWorld | BairdWorld
_TableWorld: TypeAlias = Annotated[_NamedWorld, Field(discriminator="kind")]


class FiniteConfig(Config):
    """Finite environment, stepped in many copies. Its table is known, so a policy is evaluated exactly."""

    world: _TableWorld
    """The environment."""
    copies: int = Field(default=1, ge=1, le=65536)
    """Number of copies that are stepped together."""
    limit: int | None = Field(default=None, ge=1)
    """Steps after which episodes are truncated; None keeps the environment's own limit, if any."""


def build_finite_mdp(config: FiniteConfig, *, discount: float) -> FiniteMdp:
    """Build the process. Raises ConfigError for invalid settings, UserCodeError if its environment fails."""
    try:
        mdp = _named(config.world, discount=discount)
    except DataError as fault:  # invalid numbers of a log are a DataError, those of a config a ConfigError
        key = {"grid": "finite.world.rows: ", "gymnasium": ""}.get(config.world.kind, "finite.world.kind: ")
        raise ConfigError(*(f"{key}{message}" for message in fault.messages)) from fault
    return mdp if config.limit is None else replace(mdp, step_limit=config.limit)


def _named(world: _NamedWorld, *, discount: float) -> FiniteMdp:
    match world:
        case GymTableWorld():
            return mdp_from_gymnasium(world.id, discount=discount, options=world.kwargs)
        case GridWorld():
            return grid_mdp(
                world.rows, discount=discount, step=world.step_reward, rewards=world.rewards, slip=world.slip
            )
        case ChainWorld():
            return chain_mdp(world.length, discount=discount, slip=world.slip, small=world.small, large=world.large)
        case GarnetWorld():
            return garnet_mdp(
                states=world.states, actions=world.actions, branching=world.branching, seed=world.seed,
                discount=discount, ending=world.end_probability,
            )  # fmt: skip
        case BairdWorld():
            return _baird_mdp(discount=discount)


def _baird_mdp(*, discount: float) -> FiniteMdp:
    """Build Baird's counterexample; the start is uniform."""
    state = np.repeat(np.arange(7), 7)
    to = np.tile(np.arange(7), 7)
    return make_mdp(
        MdpOutcomes(
            state=state, action=(to == 6).astype(np.int64), next_state=to, probability=np.where(to == 6, 1.0, 1 / 6),
            reward=np.zeros(49), terminates=np.zeros(49, dtype=np.bool_),
        ),
        states=7, actions=2, start=np.full(7, 1 / 7), discount=discount,
    )  # fmt: skip
