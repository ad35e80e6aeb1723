"""Counterexamples to a proof: what happens from a state that was claimed to be safe, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.decide.shield.game import WinningRegion, losing_play
from hone.decide.shield.grid import GridGame, describe_values
from hone.decide.shield.invariant import ClaimResult
from hone.decide.shield.model import ControlModel

Floats = NDArray[np.float64]
MAX_STEPS = 200
TRIED = 12
"""Lost states from which a play is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A trajectory of T steps, in which others keep to their bounds."""

    variables: tuple[str, ...]
    states: Floats
    """`[T + 1, variables]`."""
    actions: tuple[str, ...]
    """`T` actions of the system."""
    disturbances: tuple[Mapping[str, float], ...]
    """`T` disturbances."""
    unsafe: bool
    """True if it ends in an unsafe state; otherwise it only leaves the invariant."""

    def summary(self) -> str:
        """The trajectory in a sentence."""
        first, last = (describe_values(self._named(row)) for row in (0, -1))
        ending = "unsafe" if self.unsafe else "outside the invariant"
        moves = ", ".join(dict.fromkeys(self.actions))
        return f"from {first}, {len(self.actions)} steps of {moves} end {ending}: {last}"

    def _named(self, row: int) -> dict[str, float]:
        return dict(zip(self.variables, map(float, self.states[row]), strict=True))


def game_counterexample(
    model: ControlModel, made: GridGame, solved: WinningRegion, claimed: NDArray[np.bool_]
) -> Counterexample | None:
    """Trajectory of the model, not rounded, from a claimed state that is lost: the player lasts as long as possible.

    States are tried from the longest play on, until one ends unsafe without the rounding, too. None if every claimed
    state is safe after all.
    """
    lost = np.flatnonzero(claimed & ~solved.winning)
    if not len(lost):
        return None
    by_rank = lost[np.argsort(-solved.rank[lost], kind="stable")]
    tried = by_rank[np.linspace(0, len(by_rank) - 1, min(TRIED, len(by_rank))).astype(int)]
    plays = [_replay_play(model, made, solved, int(start)) for start in tried]
    return next((play for play in plays if play.unsafe), plays[0])


def _replay_play(model: ControlModel, made: GridGame, solved: WinningRegion, start: int) -> Counterexample:
    play = losing_play(made.game, solved.rank, start, limit=MAX_STEPS)
    moves = list(zip(play.actions, play.disturbances, strict=True))
    corners = model.corners()
    state = made.grid.state(start)
    rows, taken = [list(state.values())], list[tuple[int, int]]()
    while len(taken) < MAX_STEPS and bool(model.is_safe(dict(state))):
        move = moves[min(len(taken), len(moves) - 1)]
        after = {name: float(value) for name, value in model.after(dict(state), move[0], corners[move[1]]).items()}
        if after == state:
            break
        state = after
        taken.append(move)
        rows.append(list(state.values()))
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=tuple(model.actions[move[0]] for move in taken),
        disturbances=tuple(corners[move[1]] for move in taken), unsafe=not bool(model.is_safe(dict(state))),
    )  # fmt: skip


def invariant_counterexample(model: ControlModel, claim: ClaimResult) -> Counterexample | None:
    """Trajectory from the state that z3 found, under the same action and the extreme disturbance that is unsafe first;
    where none is, the single step that z3 found. None without a state."""
    if claim.state is None or claim.disturbance is None:
        return None
    plays = [_hold(model, claim.state, claim.action, corner) for corner in model.corners()]
    unsafe = sorted((play for play in plays if play.unsafe), key=lambda play: len(play.actions))
    if unsafe:
        return unsafe[0]
    after = model.after(dict(claim.state), claim.action, claim.disturbance, dt=claim.duration_s)
    rows = [list(claim.state.values()), [float(value) for value in after.values()]]
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=(model.actions[claim.action],),
        disturbances=(claim.disturbance,), unsafe=False,
    )  # fmt: skip


def _hold(
    model: ControlModel, state: Mapping[str, float], action: int, disturbance: Mapping[str, float]
) -> Counterexample:
    rows, now = [list(state.values())], dict(state)
    while len(rows) <= MAX_STEPS and bool(model.is_safe(dict(now))):
        after = {name: float(value) for name, value in model.after(dict(now), action, disturbance).items()}
        if after == now:
            break
        now = after
        rows.append(list(now.values()))
    count = len(rows) - 1
    return Counterexample(
        variables=model.variables, states=np.array(rows), actions=(model.actions[action],) * count,
        disturbances=(disturbance,) * count, unsafe=not bool(model.is_safe(dict(now))),
    )  # fmt: skip
