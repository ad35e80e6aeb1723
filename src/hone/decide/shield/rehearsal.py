"""Rehearsal of a shield on its own model: a stubborn driver, others that choose extremes, and every intervention."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, ActionShield
from hone.core.random import generator
from hone.decide.shield.grid import state_grid
from hone.decide.shield.guard import project_action
from hone.decide.shield.model import ControlModel

Floats = NDArray[np.float64]
HELD_STEPS: Final = 20
"""Steps for which the driver wants the same action."""
RESTART_STEPS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldRehearsal:
    """T steps on a model."""

    intervened: NDArray[np.bool_]
    """`[T]` another action than the wanted one was executed."""
    unsafe: NDArray[np.bool_]
    """`[T]` the step ended in an unsafe state."""
    unshielded: NDArray[np.bool_]
    """`[T]` the same driver without the shield ended the step unsafe, and began again."""


def rehearse_shield(model: ControlModel, shield: ActionShield, *, steps: int, seed: int) -> ShieldRehearsal:
    """Drive `steps` steps of the model with and without the shield, from the least dangerous state.

    The driver wants one action for 20 steps, then another; others choose an extreme disturbance in each step.
    """
    draws = generator(seed, "rehearse shield")
    actions = model_actions(model)
    wanted = np.repeat(draws.integers(0, len(actions), steps // HELD_STEPS + 1), HELD_STEPS)[:steps]
    corners = model.corners()
    moves = draws.integers(0, len(corners), steps)
    best = dict(zip(model.variables, map(float, _best_state(model)), strict=True))
    here, bare = dict(best), dict(best)
    flags = np.zeros((3, steps), np.bool_)
    for step in range(steps):
        if step % RESTART_STEPS == 0:
            here, bare = dict(best), dict(best)
        action, corner = int(wanted[step]), corners[int(moves[step])]
        context = np.array([here[name] for name in model.variables])
        executed = project_action(shield, context, actions, action)
        here = {name: float(value) for name, value in model.after(dict(here), executed, corner).items()}
        bare = {name: float(value) for name, value in model.after(dict(bare), action, corner).items()}
        flags[:, step] = executed != action, not model.is_safe(dict(here)), not model.is_safe(dict(bare))
        here, bare = (best if flags[1, step] else here), (best if flags[2, step] else bare)
    return ShieldRehearsal(intervened=flags[0], unsafe=flags[1], unshielded=flags[2])


def model_actions(model: ControlModel) -> ActionSet:
    """Actions of a model, with their columns as features."""
    return ActionSet(names=model.actions, features=model.action_features())


def _best_state(model: ControlModel) -> list[float]:
    grid = state_grid(model)
    return [float(axis.values()[0 if axis.exact else -1]) for axis in grid.axes]
