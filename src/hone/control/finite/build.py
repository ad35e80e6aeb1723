"""Construction of finite Markov decision processes: Gymnasium's tables, grid maps, chains, random processes, logs.

Belongs here: builders of a `FiniteMdp`. States of a grid are numbered row by row, so that values `[S]` can be drawn
as a grid.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from hone.control.environments.make import call_user_code, find_spec
from hone.control.finite.model import FiniteMdp, Floats, MdpOutcomes, make_mdp
from hone.core.episodes import Episodes
from hone.core.errors import DataError, ErrorCollector
from hone.core.ragged import Ints
from hone.core.random import generator

GymnasiumTable: TypeAlias = "Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]"
"""Gymnasium's `P`: state -> action -> [(probability, next state, reward, terminated)]."""

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Left, down, right, up, as in Gymnasium's grids: change of row and column."""


def mdp_from_table(table: GymnasiumTable, *, start: Floats, discount: float, limit: int | None = None) -> FiniteMdp:
    """Build from Gymnasium's `P` and `initial_state_distrib`. Raises DataError for invalid numbers."""
    rows = [
        (state, action, *outcome)
        for state, actions in table.items()
        for action, outcomes in actions.items()
        for outcome in outcomes
    ]
    if not rows:
        raise DataError("the table has no outcomes")
    columns = [
        (state, action, after, probability, reward, ends) for state, action, probability, after, reward, ends in rows
    ]
    return make_mdp(
        _outcomes(columns),
        states=len(table),
        actions=max(action for _, action, *_ in columns) + 1,
        start=np.asarray(start),
        discount=discount,
        limit=limit,
    )


def mdp_from_gymnasium(name: str, *, discount: float, options: Mapping[str, Any] | None = None) -> FiniteMdp:
    """Build from a tabular environment of Gymnasium (FrozenLake, Taxi, CliffWalking) or hone, with its time limit.

    Raises ConfigError for an unregistered name, UserCodeError if it cannot be created, DataError for an environment
    without a table.
    """
    spec = find_spec(name, key="finite.world.id")
    env = call_user_code(name, lambda: gymnasium.make(spec.id, **(options or {})))
    try:
        inside: Any = env.unwrapped
        try:
            table, start = inside.P, inside.initial_state_distrib
        except AttributeError as missing:
            raise DataError(
                f"{name} has no table of its outcomes (P, initial_state_distrib), so it cannot be used under [finite]; "
                "give it as [env] id"
            ) from missing
        limit = None if env.spec is None else env.spec.max_episode_steps
        return mdp_from_table(table, start=start, discount=discount, limit=limit)
    finally:
        env.close()


def grid_mdp(
    rows: Sequence[str],
    *,
    discount: float,
    step: float = 0.0,
    rewards: Mapping[str, float] | None = None,
    slip: float = 0.0,
    limit: int | None = None,
) -> FiniteMdp:
    """Build a grid from its map: `#` wall, `S` start, `.` floor, and letters that terminate with their `rewards`.

    Moves are left, down, right, up; with probability `slip` the move is one of the two at right angles; a move into a
    wall or out of the map stays. Each move adds the reward `step`. Raises DataError for an invalid map.
    """
    prizes = {"G": 1.0} if rewards is None else dict(rewards)
    if not rows or len({len(row) for row in rows}) != 1:
        raise DataError(f"the rows of the map have lengths {[len(row) for row in rows]}: they must be equal")
    cells = np.array([list(row) for row in rows])
    unknown = sorted(set(cells.ravel().tolist()) - {"#", "S", ".", *prizes})
    faults = ErrorCollector(DataError)
    if unknown:
        faults.add(f"the map has the marks {''.join(unknown)!r}, which are neither #, S, . nor in `rewards`")
    if "S" not in cells:
        faults.add("the map has no S, the start of an episode")
    faults.raise_if_any()
    height, width = cells.shape
    floor = np.argwhere((cells == "S") | (cells == "."))
    columns: list[tuple[int, int, int, float, float, bool]] = []
    for row, column in floor:
        for action in range(4):
            for turn, chance in ((0, 1 - slip), (1, slip / 2), (3, slip / 2)):
                down, right = MOVES[(action + turn) % 4]
                there = (row + down, column + right)
                inside = 0 <= there[0] < height and 0 <= there[1] < width and cells[there] != "#"
                there = there if inside else (row, column)
                mark = str(cells[there])
                number, after = row * width + column, there[0] * width + there[1]
                columns.append((number, action, after, chance, step + prizes.get(mark, 0.0), mark in prizes))
    starts = (cells == "S").astype(np.float64).ravel()
    return make_mdp(
        _outcomes(columns), states=height * width, actions=4, start=starts / starts.sum(), discount=discount,
        limit=limit,
    )  # fmt: skip


def chain_mdp(
    length: int, *, discount: float, slip: float = 0.0, small: float = 0.0, large: float = 1.0, limit: int | None = None
) -> FiniteMdp:
    """Build a chain of `length` states with the start in the middle: action 0 goes left, 1 right, unless it slips.

    The episode terminates with the reward `small` beyond the left end and `large` beyond the right end. Under the
    uniform policy with slip 0 it is the random walk of Sutton & Barto (2018, example 6.2): state i has the value
    (i + 1) / (length + 1).
    """
    columns: list[tuple[int, int, int, float, float, bool]] = []
    for state in range(length):
        for action in range(2):
            for side, chance in ((action, 1 - slip), (1 - action, slip)):
                after = state + (1 if side else -1)
                ends = not 0 <= after < length
                columns.append((state, action, min(max(after, 0), length - 1), chance,
                                (large if side else small) if ends else 0.0, ends))  # fmt: skip
    start = np.zeros(length)
    start[length // 2] = 1.0
    return make_mdp(_outcomes(columns), states=length, actions=2, start=start, discount=discount, limit=limit)


def garnet_mdp(
    *, states: int, actions: int, branching: int, seed: int, discount: float, ending: float = 0.0
) -> FiniteMdp:
    """Build a random process (Garnet: Archibald, McKinnon & Thomas, 1995).

    Each pair leads to `branching` different states with probabilities from a uniform Dirichlet distribution, has a
    standard normal reward, and terminates with probability `ending`. The start is uniform.
    """
    draws = generator(seed, "garnet", states, actions, branching)
    pairs = states * actions
    after = draws.random((pairs, states)).argsort(axis=1)[:, :branching]
    weight = draws.dirichlet(np.ones(branching), pairs)
    paid = np.repeat(draws.standard_normal(pairs), branching)
    pair = np.repeat(np.arange(pairs), branching)
    parts = [(weight.ravel() * (1 - ending), False), (weight.ravel() * ending, True)]
    return make_mdp(
        MdpOutcomes(
            state=np.tile(pair // actions, 2),
            action=np.tile(pair % actions, 2),
            next_state=np.tile(after.ravel(), 2),
            probability=np.concatenate([part for part, _ in parts]),
            reward=np.tile(paid, 2),
            terminates=np.repeat([ends for _, ends in parts], pairs * branching),
        ),
        states=states, actions=actions, start=np.full(states, 1 / states), discount=discount,
    )  # fmt: skip


def mdp_from_log(
    episodes: Episodes, *, states: int, actions: int, discount: float, limit: int | None = None
) -> FiniteMdp:
    """Estimate a process from a log of states `[N]` and actions `[N]` by maximum likelihood: frequencies, mean rewards.

    Untried actions are not available. An outcome that leads to a state without a logged action terminates there. The
    start distribution is that of the log. Raises DataError for an empty log and for numbers outside 0 .. states - 1.
    """
    if episodes.decisions == 0 or episodes.final is None:
        raise DataError("the log has no decisions with final observations")
    steps = episodes.transitions()
    assert steps.final is not None
    state, action = _numbers(steps.observations, states, "state"), _numbers(steps.chosen, actions, "action")
    after = _numbers(steps.final, states, "final state")
    tried = np.zeros(states, dtype=np.bool_)
    tried[state] = True
    ends = steps.terminated | ~tried[after]
    cell = ((state * actions + action) * states + after) * 2 + ends
    kinds, kind, seen = np.unique(cell, return_inverse=True, return_counts=True)
    paid = np.bincount(kind, weights=steps.reward) / seen
    pair, rest = np.divmod(kinds, 2 * states)
    first = _numbers(episodes.observations[episodes.offsets[:-1][episodes.lengths > 0]], states, "state")
    return make_mdp(
        MdpOutcomes(
            state=pair // actions,
            action=pair % actions,
            next_state=rest // 2,
            probability=seen / np.bincount(pair, weights=seen)[pair],
            reward=paid,
            terminates=(rest % 2).astype(np.bool_),
        ),
        states=states, actions=actions, start=np.bincount(first, minlength=states) / len(first), discount=discount,
        limit=limit,
    )  # fmt: skip


def _outcomes(columns: Sequence[tuple[int, int, int, float, float, bool]]) -> MdpOutcomes:
    """`(state, action, next state, probability, reward, terminates)` for each outcome, as arrays."""
    state, action, after, probability, reward, ends = (np.array(column) for column in zip(*columns, strict=True))
    return MdpOutcomes(
        state=state.astype(np.int64),
        action=action.astype(np.int64),
        next_state=after.astype(np.int64),
        probability=probability.astype(np.float64),
        reward=reward.astype(np.float64),
        terminates=ends.astype(np.bool_),
    )


def _numbers(values: Any, count: int, name: str) -> Ints:  # noqa: ANN401 - any array of numbers
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"{name} is {numbers.dtype}{list(numbers.shape)} in the log, expected integers [N]")
    outside = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(outside):
        raise DataError(f"row {outside[0]}: {name} is {numbers[outside[0]]}, expected 0 .. {count - 1}")
    return numbers.astype(np.int64)
