"""Episodes as steps on a table, and the weights of the next actions in expected SARSA and SARSA.

The update rules are in `learn.py`.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pydantic import Field

from hone.control.tables.explore import count_bonus
from hone.control.tables.kernels import Flags, Floats, TabularSteps
from hone.control.tables.tables import ActionTable, StateValues, Table
from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, owner_of


class RateConfig(Config):
    """Step sizes: max(minimum, rate / visits^power), with the number of visits of the updated pair (or state)."""

    rate: float = Field(default=0.1, gt=0)
    """Step size at the first visit, and always if `power` is 0."""
    power: float = Field(default=0.0, ge=0, le=1)
    """Above 0.5 and at most 1 the estimates converge (Robbins & Monro, 1951); 0 tracks an environment that changes."""
    minimum: float = Field(default=0.0, ge=0)
    """Lower bound of the step size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularBatch:
    """Steps of E pieces of episodes, one piece after another."""

    steps: TabularSteps
    action: Ints
    """`[N]` action of each step; in a table of actions counted from 0."""
    offsets: Ints
    """`[E+1]`"""
    group: Ints
    """`[E]` the episode number of each piece."""
    ended: Flags
    """`[E]` whether the piece ends its episode."""
    target: Floats
    """`[N]` value targets of the credit; empty where it gives none."""
    logp: Floats
    """`[N]` nats, under the behaviour policy."""
    scored: Flags
    """`[N]` flags of the steps that are learned from; not those of a failed environment, without a score."""
    iteration: int
    """Iteration of the policy that collected the steps."""

    @property
    def last_steps(self) -> Ints:
        """`[E]` last step of each piece."""
        return self.offsets[1:] - 1


def tabular_batch(
    table: Table, episodes: Episodes, credits: Credits, rate: RateConfig, *, first_visits_only: bool = False
) -> TabularBatch:
    """Steps of `episodes`, each with its step size; counts the visits. With `first_visits_only`, only the first visit
    of a cell in each episode is counted and learned from.
    """
    assert episodes.final is not None
    now, last = _cells(table, episodes.observations), _cells(table, episodes.final)
    taken, cell = episodes.chosen.astype(np.int64), now
    if isinstance(table, ActionTable):
        taken = taken - table.first_action
        cell = now + taken[:, None]
    ahead = np.empty_like(now)
    ahead[:-1] = now[1:]
    ahead[episodes.offsets[1:] - 1] = last
    known = episodes.scored[episodes.owner]
    if first_visits_only:
        known = known & first_visits(cell[:, 0], episodes.offsets)
    nothing = np.zeros(0)
    steps = TabularSteps(
        cell=np.ascontiguousarray(cell),
        next_cell=ahead,
        reward=credits.advantage.astype(np.float64),
        discount=np.zeros(len(cell)) if credits.discount is None else credits.discount.astype(np.float64),
        step_size=step_sizes(table.visits, cell, rate, known),
    )
    if isinstance(table, ActionTable):
        steps = _with_bonus(table, steps)
    return TabularBatch(
        steps=steps,
        action=taken,
        offsets=episodes.offsets,
        group=episodes.group,
        ended=episodes.terminated | episodes.truncated,
        target=nothing if credits.target is None else credits.target.astype(np.float64),
        logp=episodes.logp.astype(np.float64),
        scored=known,
        iteration=int(episodes.version[0]),
    )


def step_sizes(count: Ints, cell: Ints, rate: RateConfig, known: Flags) -> Floats:
    """`[N]` step sizes for cells `[N, M]`, divided by M; adds the visits to `count` `[K]`. Masked steps have 0."""
    first = cell[:, 0]
    size = np.full(len(first), rate.rate)
    if rate.power:
        visits = count[first[known]] + 1 + rank_among_equals(first[known])
        size[known] = np.maximum(rate.minimum, rate.rate * visits ** (-rate.power))
    count += np.bincount(cell[known].ravel(), minlength=len(count))
    return np.where(known, size, 0.0) / cell.shape[1]


def rank_among_equals(values: Ints) -> Ints:
    """Count of earlier equal values, for each `[n]`.

    >>> rank_among_equals(np.array([7, 3, 7, 7]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    fresh = np.append(True, np.diff(values[order]) != 0)
    begins = np.flatnonzero(fresh)
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values)) - begins[fresh.cumsum() - 1]
    return rank


def expected_sarsa_weights(table: Table, batch: TabularBatch) -> Floats:
    """`[N, J]` probabilities of the next action under the behaviour policy: expected SARSA."""
    if isinstance(table, StateValues):
        return np.ones((len(batch.action), 1))
    return np.ascontiguousarray(table.exploration_probabilities(batch.steps.next_cell, batch.iteration))


def sarsa_weights(table: Table, batch: TabularBatch) -> Floats:
    """`[N, J]` a 1 at the next action: SARSA. Where a piece ends without termination, the next action is not known, and
    the row holds the probabilities of the behaviour policy.
    """
    if isinstance(table, StateValues):
        return np.ones((len(batch.action), 1))
    weight = np.zeros((len(batch.action), table.features.actions))
    weight[np.arange(len(weight) - 1), batch.action[1:]] = 1.0
    last = batch.last_steps
    weight[last] = table.exploration_probabilities(batch.steps.next_cell[last], batch.iteration)
    return weight


def first_visits(cell: Ints, offsets: Ints) -> Flags:
    """`[N]` flags of steps that are the first of their episode with their cell `[N]`."""
    pair = owner_of(offsets) * (int(cell.max(initial=0)) + 1) + cell
    first = np.zeros(len(cell), dtype=np.bool_)
    first[np.unique(pair, return_index=True)[1]] = True
    return first


def suffix_products(ratio: Floats, offsets: Ints, *, include_self: bool) -> Floats:
    """`[N]` product of the ratios from each step to the end of its episode, with or without its own."""
    product = np.empty_like(ratio)
    for begin, end in pairwise(offsets):
        product[begin:end] = ratio[begin:end][::-1].cumprod()[::-1]
        if not include_self:
            product[begin : end - 1] = product[begin + 1 : end]
            product[end - 1] = 1.0
    return product


def _cells(table: Table, seen: np.ndarray) -> Ints:
    if isinstance(table, ActionTable):
        return table.features.cell(seen)
    return seen.astype(np.int64)[:, None]


def _with_bonus(table: ActionTable, steps: TabularSteps) -> TabularSteps:
    bonus = count_bonus(table.explore, table.visits[steps.cell].min(axis=1))
    return steps if bonus is None else steps._replace(reward=steps.reward + bonus)
