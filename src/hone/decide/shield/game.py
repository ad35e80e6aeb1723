"""Safety game on a finite set of states: the largest set of states in which a safe action always exists.

Belongs here: the fixpoint, the check of a given set, and a play that leaves it. A player chooses an action, then an
adversary chooses a disturbance; the player loses in an unsafe state (McNaughton, 1993; shields from games: Alshiekh et
al., "Safe reinforcement learning via shielding", 2018).

    W_0 = safe states,   W_{k+1} = {s in W_k: some action leads into W_k whatever the disturbance}
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Places = NDArray[np.int32]
NEVER: Final = -1
"""Rank of a state that is never lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyGame:
    """Game of S states, A actions and D disturbances."""

    successors: Places
    """`[A, D, S]` next state; S stands for a state outside, which is lost."""
    safe: Bools
    """`[S]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningRegion:
    """States from which the player can stay safe forever."""

    winning: Bools
    """`[S]`."""
    allowed: Bools
    """`[S, A]` actions that stay in the region whatever the disturbance; False outside it."""
    rank: Ints
    """`[S]` largest number of steps that the adversary needs to reach an unsafe state, 0 in one; `NEVER` in the
    region."""
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GamePlay:
    """A play of the game: states, and the moves between them."""

    states: tuple[int, ...]
    """`n + 1`; the last may be S, outside."""
    actions: tuple[int, ...]
    disturbances: tuple[int, ...]


def stays_inside(game: SafetyGame, region: Bools) -> Bools:
    """Pairs `[A, S]` from which every disturbance leads into `region` `[S]`."""
    inside = np.append(region, False)
    return np.asarray(inside[game.successors].all(axis=1), np.bool_)


def winning_region(game: SafetyGame) -> WinningRegion:
    """Compute the largest region by iteration from the safe states; states that left it are not tried again."""
    rank = np.where(game.safe, NEVER, 0).astype(np.int64)
    inside = np.append(game.safe, False)
    alive = np.flatnonzero(game.safe)
    iterations = 0
    while True:
        iterations += 1
        stays = inside[game.successors[:, :, alive]].all(axis=1).any(axis=0)
        lost = alive[~stays]
        if not len(lost):
            break
        inside[lost] = False
        rank[lost] = iterations
        alive = alive[stays]
    winning = inside[:-1]
    allowed = stays_inside(game, winning).T & winning[:, None]
    return WinningRegion(winning=winning, allowed=allowed, rank=rank, iterations=iterations)


def region_faults(game: SafetyGame, region: Bools, *, fallback: int) -> Ints:
    """States of `region` that are unsafe, or from which the action `fallback` may leave it: none proves that who takes
    `fallback` there stays safe forever."""
    stays = np.append(region, False)[game.successors[fallback]].all(axis=0)
    return np.flatnonzero(region & ~(game.safe & stays))


def losing_play(game: SafetyGame, rank: Ints, start: int, *, limit: int = 1_000) -> GamePlay:
    """Play from a lost state to an unsafe one: the player lasts as long as possible, the adversary hurries."""
    ranks = np.append(rank, 0)
    ranks = np.where(ranks == NEVER, np.iinfo(np.int64).max, ranks)
    states, actions, disturbances = [start], list[int](), list[int]()
    while len(actions) < limit and states[-1] < len(rank) and rank[states[-1]] > 0:
        after = game.successors[:, :, states[-1]]
        fastest = ranks[after].min(axis=1)
        action = int(fastest.argmax())
        disturbance = int(ranks[after[action]].argmin())
        actions.append(action)
        disturbances.append(disturbance)
        states.append(int(after[action, disturbance]))
    return GamePlay(states=tuple(states), actions=tuple(actions), disturbances=tuple(disturbances))
