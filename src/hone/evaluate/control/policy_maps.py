"""What a saved policy does in each cell of its grid, and what it expects there.

Belongs here: which environments are grids, and how a state becomes a place. Drawing is `report.policy_map`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.core.errors import DataError
from hone.envs.finite.build import mdp_from_gymnasium
from hone.envs.finite.config import FiniteConfig, GridWorld, GymTableWorld, build_finite_mdp
from hone.envs.finite.model import FiniteMdp
from hone.envs.finite.solve import evaluate_policy
from hone.envs.gym.make import GymConfig, env_factory, runs_isolated
from hone.envs.suite.grid_worlds import GridEnv
from hone.evaluate.control.returns import load_control_policy
from hone.models.control.actor_critic import ActorCritic, QNetworkPolicy
from hone.models.control.numpy_policies import HasNumpyPolicy, NumpyCategoricalPolicy
from hone.models.control.q_networks import DqnPolicy
from hone.store.durable import Json
from hone.store.maps import GridCell, GridSlice, PolicyMap
from hone.tabular.tables import ActionTable, StateValues

Floats = NDArray[np.float64]

MIN_SHARE = 0.1
"""Below it an action of a policy with chance is not drawn."""
LAKE = ("left", "down", "right", "up")
CLIFF = ("up", "right", "down", "left")
TAXI = ("down", "up", "right", "left", "pick up", "drop off")
TAXI_PLACES = ("waits at red", "waits at green", "waits at yellow", "waits at blue", "rides")
"""Of the passenger; captions stand above grids of 200 pixels, so they are short."""


DEFAULT_DISCOUNT = 0.99
"""Where a run's config names none below 1: of what a policy that knows no values is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLayout:
    """How the states of an environment lie on a grid."""

    rows: int
    columns: int
    actions: Sequence[str]
    marks: Sequence[str]
    """`[rows * columns]` what stands there; a space for plain floor."""
    inactive_marks: frozenset[str]
    """Marks of cells in which nothing is decided."""
    slices: Sequence[tuple[str, NDArray[np.int64]]]
    """Title, and the state `[rows * columns]` of each cell."""
    mdp: FiniteMdp
    """The environment's table."""


def policy_map(folder: Path, config: Mapping[str, Json], *, step: int) -> PolicyMap:
    """The map of a saved policy, by its run's `config`. Raises DataError for a world that is no grid, or a policy that
    is not of its states."""
    layout = grid_layout(folder, config)
    if layout is None:
        raise DataError(f"{folder}: its world is no grid that can be drawn (FrozenLake, CliffWalking, Taxi, a map)")
    return policy_map_on(layout, folder, step=step)


def policy_map_on(layout: GridLayout, folder: Path, *, step: int) -> PolicyMap:
    """The same, of a world that is known to be a grid."""
    shares, worth, worth_is = policy_and_values(load_control_policy(folder), layout.mdp, str(folder))
    return PolicyMap(
        step=step,
        worth_is=worth_is,
        slices=[
            GridSlice(
                title=title,
                rows=layout.rows,
                columns=layout.columns,
                cells=[_cell(layout, place, int(state), shares, worth) for place, state in enumerate(states)],
            )
            for title, states in layout.slices
        ],
    )


def _cell(layout: GridLayout, place: int, state: int, shares: Floats, worth: Floats) -> GridCell:
    mark = layout.marks[place]
    if mark in layout.inactive_marks:
        return GridCell(mark=mark, worth=None, moves={})
    order: list[int] = np.argsort(-shares[state], kind="stable").tolist()
    moves = {layout.actions[action]: float(shares[state, action]) for action in order}
    return GridCell(
        mark=mark,
        worth=float(worth[state]) if np.isfinite(worth[state]) else None,
        moves={name: share for name, share in moves.items() if share >= MIN_SHARE},
    )


# ------------------------------------------------------------------------------------------ what the policy says


def policy_and_values(policy: HasNumpyPolicy, mdp: FiniteMdp, name: str) -> tuple[Floats, Floats, str]:
    """`[S, A]` what the policy does, `[S]` what it expects, and what that is in words.

    A policy that knows no values is given the exact ones of what it does. Raises DataError where it is of other states.
    """
    states = np.arange(mdp.states)
    try:
        shares = action_probabilities(policy, states, mdp.actions)
        found = state_values(policy, states)
    except (IndexError, ValueError, RuntimeError) as fault:
        raise DataError(f"{name}: the policy is not of the {mdp.states} states of its world: {fault}") from None
    if shares.shape != (mdp.states, mdp.actions):
        raise DataError(f"{name}: the policy is {list(shares.shape)}, its world {[mdp.states, mdp.actions]}")
    if found is not None:
        return shares, *found
    discount = mdp.discount if mdp.discount < 1 else DEFAULT_DISCOUNT
    exact = evaluate_policy(mdp.with_discount(discount), shares)
    return shares, exact, f"what the policy is worth, exactly (discount {discount:g})"


def action_probabilities(policy: HasNumpyPolicy, states: NDArray[np.int64], actions: int) -> Floats:
    """`[S, A]` probabilities where the policy has them; else the best actions, alike where several are."""
    acting = policy.numpy_policy()
    if isinstance(acting, NumpyCategoricalPolicy):
        logits = acting.network(acting.inputs.array(states)).astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)
    values = action_values(policy, states)
    if values is not None:
        best = values >= values.max(axis=1, keepdims=True) - 1e-9 * np.maximum(1.0, np.abs(values).max())
        return best / best.sum(axis=1, keepdims=True)
    if isinstance(policy, StateValues):
        return policy.target_policy
    chosen = acting.best(states).astype(np.int64)
    return np.eye(actions)[chosen]


def action_values(policy: HasNumpyPolicy, states: NDArray[np.int64]) -> Floats | None:
    """`[S, A]` values of actions, where the policy has any."""
    match policy:
        case ActionTable():
            return policy.q
        case QNetworkPolicy():
            with torch.no_grad():
                return policy.q_values(torch.from_numpy(states)).double().numpy()
        case DqnPolicy():
            with torch.no_grad():
                return policy.q_values(policy.average_return_outputs(torch.from_numpy(states))).double().numpy()
        case _:
            return None


def state_values(policy: HasNumpyPolicy, states: NDArray[np.int64]) -> tuple[Floats, str] | None:
    """`[S]` what the policy expects, and what that is; None where it does not say."""
    values = action_values(policy, states)
    if values is not None:
        return values.max(axis=1), "the value of its best action"
    if isinstance(policy, StateValues):
        return policy.v, "its value of the state"
    if isinstance(policy, ActorCritic) and policy.critic is not None:
        with torch.no_grad():
            return policy.value(torch.from_numpy(states)).double().numpy(), "what its critic expects"
    return None


# ------------------------------------------------------------------------------------------ where states lie


def grid_layout(folder: Path, config: Mapping[str, Json]) -> GridLayout | None:
    """None for a world that is no grid. Raises DataError for a config that is none."""
    algorithm = config.get("algorithm")
    told = algorithm.get("discount") if isinstance(algorithm, dict) else None
    discount = float(told) if isinstance(told, int | float) and 0 < told < 1 else DEFAULT_DISCOUNT
    finite, env = config.get("finite"), config.get("env")
    try:
        if isinstance(finite, dict):
            return _of_finite(FiniteConfig.model_validate(finite), discount)
        return _of_gym(GymConfig.model_validate(env), discount) if isinstance(env, dict) else None
    except ValidationError as error:
        raise DataError(f"{folder}: the world of its run cannot be read: {error}") from None


def _of_finite(config: FiniteConfig, discount: float) -> GridLayout | None:
    match config.world:
        case GymTableWorld(id=name, kwargs=kwargs):
            return _of_gym(GymConfig(id=name, kwargs=kwargs), discount)
        case GridWorld(rows=rows, pays=pays):
            return _rectangular_layout(rows, build_finite_mdp(config, discount=discount), idle=frozenset({"#", *pays}))
        case _:
            return None


def _of_gym(config: GymConfig, discount: float) -> GridLayout | None:
    if runs_isolated(config):  # a user's: it is not run in this process
        return None
    env = env_factory(config).make_one()
    try:
        inside = env.unwrapped
        match inside:
            case FrozenLakeEnv():
                rows = [bytes(row).decode() for row in inside.desc]
                return _rectangular_layout(rows, _table(config, discount), actions=LAKE, idle=frozenset("HG"))
            case CliffWalkingEnv():
                return _cliff(_table(config, discount))
            case TaxiEnv():
                return _taxi(_table(config, discount))
            case GridEnv():
                return _rectangular_layout(inside.rows, inside.mdp.with_discount(discount), idle=frozenset("#G"))
            case _:
                return None
    finally:
        env.close()


def _table(config: GymConfig, discount: float) -> FiniteMdp:
    return mdp_from_gymnasium(config.id, discount=discount, options=config.kwargs)


def _rectangular_layout(
    rows: Sequence[str], mdp: FiniteMdp, *, idle: frozenset[str], actions: Sequence[str] = LAKE
) -> GridLayout:
    """States in the order of the map, once or several times over."""
    height, width = len(rows), len(rows[0])
    cells = height * width
    several = max(1, mdp.states // cells)
    slices = [
        (f"{part + 1} of {several}" if several > 1 else "", part * cells + np.arange(cells)) for part in range(several)
    ]
    marks = [mark if mark not in ".F" else " " for row in rows for mark in row]
    return GridLayout(
        rows=height, columns=width, actions=actions, marks=marks, inactive_marks=idle, slices=slices, mdp=mdp
    )


def _cliff(mdp: FiniteMdp) -> GridLayout:
    rows = ["." * 12] * 3 + ["S" + "C" * 10 + "G"]
    return _rectangular_layout(rows, mdp, idle=frozenset("CG"), actions=CLIFF)


def _taxi(mdp: FiniteMdp) -> GridLayout:
    """A grid for each place of the passenger and each destination; ((row * 5 + column) * 5 + passenger) * 4 + goal."""
    marks = [" "] * 25
    for mark, place in zip("RGYB", (0, 4, 20, 23), strict=True):
        marks[place] = mark
    slices = [
        (f"{TAXI_PLACES[passenger]}, to {TAXI_PLACES[goal].removeprefix('waits at ')}",
         (np.arange(25) * 5 + passenger) * 4 + goal)
        for passenger in range(5)
        for goal in range(4)
        if passenger != goal
    ]  # fmt: skip
    return GridLayout(rows=5, columns=5, actions=TAXI, marks=marks, inactive_marks=frozenset(), slices=slices, mdp=mdp)
