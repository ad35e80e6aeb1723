"""Actions and values of a saved policy in each cell of a grid environment.

Belongs here: which environments are grids, and the cell of a state. `report.policy_map` draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.control.environments.make import GymConfig, env_factory, runs_isolated
from hone.control.evaluate.returns import load_control_policy
from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.config import FiniteConfig, GridWorld, GymTableWorld, build_finite_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy
from hone.control.networks.actor_critic import ActorCritic, QNetworkPolicy
from hone.control.networks.numpy_policies import HasNumpyPolicy, NumpyCategoricalPolicy
from hone.control.networks.q_networks import DqnPolicy
from hone.control.suite.grid_worlds import GridEnv
from hone.control.tables.tables import ActionTable, StateValues
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.records import GridCell, GridSlice, PolicyMap

Floats = NDArray[np.float64]

_MIN_SHARE = 0.1
"""Smallest probability of an action that is drawn."""
LAKE = ("left", "down", "right", "up")
CLIFF = ("up", "right", "down", "left")
_TAXI = ("down", "up", "right", "left", "pick up", "drop off")
_TAXI_PLACES = ("waits at red", "waits at green", "waits at yellow", "waits at blue", "rides")
"""Passenger positions; short, because grids are 200 pixels wide."""


_DEFAULT_DISCOUNT = 0.99
"""Discount factor for exact values of a policy without values, if the run's config has none below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridLayout:
    """Grid layout of the states of an environment."""

    rows: int
    columns: int
    actions: Sequence[str]
    marks: Sequence[str]
    """Mark `[rows * columns]` of each cell; a space for plain floor."""
    inactive_marks: frozenset[str]
    """Marks of cells without a decision."""
    slices: Sequence[tuple[str, NDArray[np.int64]]]
    """Title and state `[rows * columns]` of each cell, per grid."""
    mdp: FiniteMdp
    """Transition table of the environment."""


def policy_map(folder: Path, config: Mapping[str, Json], *, step: int) -> PolicyMap:
    """Make the map of a saved policy by its run's `config`. Raises DataError for an environment that is not a grid, or
    a policy with other states."""
    layout = grid_layout(folder, config)
    if layout is None:
        raise DataError(f"{folder}: its environment is not a supported grid (FrozenLake, CliffWalking, Taxi, a map)")
    return policy_map_on(layout, folder, step=step)


def policy_map_on(layout: _GridLayout, folder: Path, *, step: int) -> PolicyMap:
    """Make the map of a saved policy on a known grid."""
    shares, worth, worth_is = _policy_and_values(load_control_policy(folder), layout.mdp, str(folder))
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


def _cell(layout: _GridLayout, place: int, state: int, shares: Floats, worth: Floats) -> GridCell:
    mark = layout.marks[place]
    if mark in layout.inactive_marks:
        return GridCell(mark=mark, worth=None, moves={})
    order: list[int] = np.argsort(-shares[state], kind="stable").tolist()
    moves = {layout.actions[action]: float(shares[state, action]) for action in order}
    return GridCell(
        mark=mark,
        worth=float(worth[state]) if np.isfinite(worth[state]) else None,
        moves={name: share for name, share in moves.items() if share >= _MIN_SHARE},
    )


# ------------------------------------------------------------------------------------------ actions and values


def _policy_and_values(policy: HasNumpyPolicy, mdp: FiniteMdp, name: str) -> tuple[Floats, Floats, str]:
    """Action probabilities `[S, A]`, values `[S]`, and the meaning of the values in words.

    A policy without values gets its exact ones. Raises DataError if it has other states.
    """
    states = np.arange(mdp.states)
    try:
        shares = action_probabilities(policy, states, mdp.actions)
        known_values = _state_values(policy, states)
    except (IndexError, ValueError, RuntimeError) as fault:
        raise DataError(
            f"{name}: the policy does not fit the {mdp.states} states of its environment: {fault}"
        ) from None
    if shares.shape != (mdp.states, mdp.actions):
        raise DataError(f"{name}: the policy is {list(shares.shape)}, its environment {[mdp.states, mdp.actions]}")
    if known_values is not None:
        return shares, *known_values
    discount = mdp.discount if mdp.discount < 1 else _DEFAULT_DISCOUNT
    exact = evaluate_policy(mdp.with_discount(discount), shares)
    return shares, exact, f"the exact value of the policy (discount {discount:g})"


def action_probabilities(policy: HasNumpyPolicy, states: NDArray[np.int64], actions: int) -> Floats:
    """Action probabilities `[S, A]`; of a deterministic policy, equal shares of the best actions."""
    acting = policy.numpy_policy()
    if isinstance(acting, NumpyCategoricalPolicy):
        logits = acting.network(acting.inputs.array(states)).astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)
    values = _action_values(policy, states)
    if values is not None:
        best = values >= values.max(axis=1, keepdims=True) - 1e-9 * np.maximum(1.0, np.abs(values).max())
        return best / best.sum(axis=1, keepdims=True)
    if isinstance(policy, StateValues):
        return policy.target_policy
    chosen = acting.best(states).astype(np.int64)
    return np.eye(actions)[chosen]


def _action_values(policy: HasNumpyPolicy, states: NDArray[np.int64]) -> Floats | None:
    """Action values `[S, A]`, or None."""
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


def _state_values(policy: HasNumpyPolicy, states: NDArray[np.int64]) -> tuple[Floats, str] | None:
    """State values `[S]` and their meaning, or None."""
    values = _action_values(policy, states)
    if values is not None:
        return values.max(axis=1), "the value of its best action"
    if isinstance(policy, StateValues):
        return policy.v, "its value of the state"
    if isinstance(policy, ActorCritic) and policy.critic is not None:
        with torch.no_grad():
            return policy.value(torch.from_numpy(states)).double().numpy(), "the value of its critic"
    return None


# ------------------------------------------------------------------------------------------ layout


def grid_layout(folder: Path, config: Mapping[str, Json]) -> _GridLayout | None:
    """Layout of a run's environment; None if it is not a grid. Raises DataError for an invalid config."""
    algorithm = config.get("algorithm")
    setting = algorithm.get("discount") if isinstance(algorithm, dict) else None
    discount = float(setting) if isinstance(setting, int | float) and 0 < setting < 1 else _DEFAULT_DISCOUNT
    finite, env = config.get("finite"), config.get("env")
    try:
        if isinstance(finite, dict):
            match (world := FiniteConfig.model_validate(finite)).world:
                case GymTableWorld(id=name, kwargs=kwargs):
                    return _of_gym(GymConfig(id=name, kwargs=kwargs), discount)
                case GridWorld(rows=rows, rewards=pays):
                    mdp = build_finite_mdp(world, discount=discount)
                    return _rectangular_layout(rows, mdp, idle=frozenset({"#", *pays}))
                case _:
                    return None
        return _of_gym(GymConfig.model_validate(env), discount) if isinstance(env, dict) else None
    except ValidationError as error:
        raise DataError(f"{folder}: the environment of its run cannot be read: {error}") from None


def _of_gym(config: GymConfig, discount: float) -> _GridLayout | None:
    if runs_isolated(config):  # a user's environment is not run in this process
        return None
    env = env_factory(config).make_one()
    table = partial(mdp_from_gymnasium, config.id, discount=discount, options=config.kwargs)
    try:
        inside = env.unwrapped
        match inside:
            case FrozenLakeEnv():
                rows = [bytes(row).decode() for row in inside.desc]
                return _rectangular_layout(rows, table(), actions=LAKE, idle=frozenset("HG"))
            case CliffWalkingEnv():
                rows = ["." * 12] * 3 + ["S" + "C" * 10 + "G"]
                return _rectangular_layout(rows, table(), idle=frozenset("CG"), actions=CLIFF)
            case TaxiEnv():
                return _taxi(table())
            case GridEnv():
                return _rectangular_layout(inside.rows, inside.mdp.with_discount(discount), idle=frozenset("#G"))
            case _:
                return None
    finally:
        env.close()


def _rectangular_layout(
    rows: Sequence[str], mdp: FiniteMdp, *, idle: frozenset[str], actions: Sequence[str] = LAKE
) -> _GridLayout:
    """Layout of states in the order of the map, repeated if there are several grids."""
    height, width = len(rows), len(rows[0])
    cells = height * width
    several = max(1, mdp.states // cells)
    slices = [
        (f"{part + 1} of {several}" if several > 1 else "", part * cells + np.arange(cells)) for part in range(several)
    ]
    marks = [mark if mark not in ".F" else " " for row in rows for mark in row]
    return _GridLayout(
        rows=height, columns=width, actions=actions, marks=marks, inactive_marks=idle, slices=slices, mdp=mdp
    )


def _taxi(mdp: FiniteMdp) -> _GridLayout:
    """One grid per passenger position and destination; state = ((row * 5 + column) * 5 + passenger) * 4 + goal."""
    marks = [" "] * 25
    for mark, place in zip("RGYB", (0, 4, 20, 23), strict=True):
        marks[place] = mark
    slices = [
        (f"{_TAXI_PLACES[passenger]}, to {_TAXI_PLACES[goal].removeprefix('waits at ')}",
         (np.arange(25) * 5 + passenger) * 4 + goal)
        for passenger in range(5)
        for goal in range(4)
        if passenger != goal
    ]  # fmt: skip
    return _GridLayout(
        rows=5, columns=5, actions=_TAXI, marks=marks, inactive_marks=frozenset(), slices=slices, mdp=mdp
    )
