"""Update rules on tables, one class per rule with its state, and the learner that applies one.

Rules for values linear in features are in `linear.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from hone.control.tables.explore import count_bonus
from hone.control.tables.kernels import Flags, Floats, TabularKernels, TabularSteps, TraceDecay, kernels
from hone.control.tables.models import TabularModel
from hone.control.tables.tables import ActionTable, StateValues, Table
from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.ragged import Ints, owner_of
from hone.core.random import generator
from hone.core.state import State, array, integer, substate

# ---------------------------------------------------------------------------------------------------------------- batch


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
    bonus = count_bonus(table.explore, table.visits[steps.cell].min(axis=1)) if isinstance(table, ActionTable) else None
    if bonus is not None:
        steps = steps._replace(reward=steps.reward + bonus)
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


# ---------------------------------------------------------------------------------------------------------------- learn


T = TypeVar("T", bound=Table)
_NextActionWeights: TypeAlias = Callable[[Table, TabularBatch], Floats]
"""Weights `[N, J]` of the next actions."""


class UpdateRule(Protocol):
    """Update rule of a table."""

    backups: int
    """Number of value updates so far, simulated steps included."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        """Change the table in place -> sum of |error| over the steps."""
        ...

    def state(self) -> State:
        """Everything a resumed run needs."""
        ...

    def restore(self, state: State) -> None:
        """Load a state that `state` returned."""


@dataclass
class TabularLearner(Generic[T]):
    """Learner that applies an update rule to a table."""

    policy: T
    rule: UpdateRule
    rate: RateConfig
    predicts_values: bool = False
    """True if the credit function needs the table's values."""
    first_visits: bool = False
    """Learn from the first visit of a cell in each episode only; episodes must be whole."""
    observed: int = 0

    def values(self, episodes: Episodes) -> Values:
        """Values of observation and action `[N]`, and of the final observations `[E]` under the behaviour policy."""
        return _predict_table_values(self.policy, episodes) if self.predicts_values else NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Raises DivergedError when a value is not finite any more."""
        batch = tabular_batch(self.policy, episodes, credits, self.rate, first_visits_only=self.first_visits)
        error = self.rule.learn(self.policy, batch)
        if not np.isfinite(error):
            raise DivergedError(
                f"update after {self.observed} steps: the error of the values is {error}; a smaller rate, or a "
                "method that is sound off policy, keeps them finite"
            )
        self.observed += episodes.decisions
        return {
            **credits.metrics,
            "td/error": error / max(1, episodes.decisions),
            "table/backups": float(self.rule.backups),
            "table/steps": float(self.observed),
        }

    def state(self) -> State:
        return {"observed": self.observed, "rule": self.rule.state()}

    def restore(self, state: State) -> None:
        self.observed = integer(state, "observed")
        self.rule.restore(substate(state, "rule"))


def _predict_table_values(table: Table, episodes: Episodes) -> Values:
    """Values of observation and action `[N]`, and of the final observations `[E]` under the behaviour policy."""
    assert episodes.final is not None
    if isinstance(table, StateValues):
        value, final = table.v[episodes.observations.astype(np.int64)], table.v[episodes.final.astype(np.int64)]
    else:
        turn, last = int(episodes.version[0]), table.features.cell(episodes.final)
        taken = episodes.chosen.astype(np.int64) - table.first_action
        value = table.values(table.features.cell(episodes.observations))[np.arange(len(taken)), taken]
        final = (table.exploration_probabilities(last, turn) * table.values(last)).sum(axis=1)
    return Values(value=value.astype(np.float32), final=final.astype(np.float32))


# ------------------------------------------------------------------------------------- towards targets of credit


@dataclass(kw_only=True)
class _KernelRule:
    """Base of the update rules that run one of the compiled loops; it counts backups."""

    backups: int = 0
    loops: TabularKernels = field(default_factory=kernels)

    def state(self) -> State:
        return {"backups": self.backups}

    def restore(self, state: State) -> None:
        self.backups = integer(state, "backups")


@dataclass(kw_only=True)
class TargetRule(_KernelRule):
    """x += rate * (target - x): Monte Carlo, n-step returns, lambda-returns."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        rows = np.flatnonzero(batch.scored)
        self.backups += len(rows)
        return self.loops.target_update(
            table.x, batch.steps.cell[rows], batch.target[rows], batch.steps.step_size[rows]
        )


@dataclass(kw_only=True)
class WeightedImportanceSampling(_KernelRule):
    """Off-policy Monte Carlo with weighted importance sampling.

    Action values are learned of the greedy policy, with w_t = product over k > t of [a_k is greedy] / b(a_k); state
    values of their target policy, with k >= t (Sutton & Barto, 2018, sections 5.5 to 5.7).
    """

    mass: Floats = field(default_factory=lambda: np.zeros(0))
    """`[K]` sum of weights so far."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        if not len(self.mass):
            self.mass = np.zeros(len(table.x))
        cell = batch.steps.cell[:, 0]
        if isinstance(table, StateValues):
            wanted, itself = table.target_policy[cell, batch.action], True
        else:
            wanted = (table.values(batch.steps.cell - batch.action[:, None]).argmax(axis=1) == batch.action).astype(
                float
            )
            itself = False
        weight = suffix_products(wanted / np.exp(batch.logp), batch.offsets, include_self=itself) * batch.scored
        backwards = np.arange(len(cell))[::-1].copy()  # the end of an episode is learned first, as in the source
        self.backups += int((weight > 0).sum())
        return self.loops.weighted_importance_update(
            table.x, self.mass, cell[backwards], batch.target[backwards], weight[backwards]
        )

    def state(self) -> State:
        return {"backups": self.backups, "mass": self.mass}

    def restore(self, state: State) -> None:
        self.backups, self.mass = integer(state, "backups"), array(state, "mass").astype(np.float64)


# ----------------------------------------------------------------------------------------- temporal differences


@dataclass(kw_only=True)
class ExpectedSarsa(_KernelRule):
    """TD(0), SARSA and expected SARSA, which differ in the weights of the next actions."""

    next_weights: _NextActionWeights = expected_sarsa_weights

    def learn(self, table: Table, batch: TabularBatch) -> float:
        self.backups += len(batch.action)
        return self.loops.expected_sarsa(table.x, batch.steps, self.next_weights(table, batch))


@dataclass(kw_only=True)
class QLearningRule(_KernelRule):
    """Q-learning (Watkins, 1989)."""

    actions: int

    def learn(self, table: Table, batch: TabularBatch) -> float:
        self.backups += len(batch.action)
        return self.loops.q_learning(table.x, batch.steps, self.actions)


@dataclass(kw_only=True)
class DoubleQLearning(_KernelRule):
    """Double Q-learning (van Hasselt, 2010); the table has two tables."""

    actions: int
    seed: int
    updates: int = 0

    def learn(self, table: Table, batch: TabularBatch) -> float:
        self.updates += 1
        self.backups += len(batch.action)
        coin = generator(self.seed, "coin", self.updates).random(len(batch.action)) < 0.5
        return self.loops.double_q_learning(table.x, batch.steps, self.actions, coin)

    def state(self) -> State:
        return {"updates": self.updates, "backups": self.backups}

    def restore(self, state: State) -> None:
        self.updates, self.backups = integer(state, "updates"), integer(state, "backups")


@dataclass(kw_only=True)
class EligibilityTraces(_KernelRule):
    """TD(lambda) and SARSA(lambda), online; an episode's traces are kept from one piece of it to the next."""

    decay: float
    """discount * lambda."""
    trace: int
    """`ACCUMULATING`, `REPLACING` or `DUTCH`."""
    next_weights: _NextActionWeights = sarsa_weights
    open_traces: dict[int, tuple[Floats, float]] = field(default_factory=dict[int, "tuple[Floats, float]"])
    """Traces `[K]` of unfinished episodes, and the previous estimate of their next value."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        weight, total = self.next_weights(table, batch), 0.0
        kept: dict[int, tuple[Floats, float]] = {}
        for piece in range(len(batch.group)):
            rows = slice(int(batch.offsets[piece]), int(batch.offsets[piece + 1]))
            group = int(batch.group[piece])
            trace, before = self.open_traces.get(group) or (np.zeros(len(table.x)), np.nan)
            cell, ahead, reward, discount, step_size = batch.steps
            part = TabularSteps(cell[rows], ahead[rows], reward[rows], discount[rows], step_size[rows])
            fading = TraceDecay(decay=self.decay, kind=self.trace, previous_value=before)
            error, before = self.loops.eligibility_traces(table.x, trace, part, weight[rows], fading)
            total += error
            if not batch.ended[piece]:
                # Where the next action was not known there is no estimate of its value.
                kept[group] = trace, before if weight.shape[1] == 1 else np.nan
        self.open_traces = kept
        self.backups += len(batch.action)
        return total

    def state(self) -> State:
        groups = sorted(self.open_traces)
        traces = [self.open_traces[group][0] for group in groups]
        return {
            "backups": self.backups,
            "groups": np.array(groups, dtype=np.int64),
            "traces": np.stack(traces) if traces else np.zeros((0, 0)),
            "before": np.array([self.open_traces[group][1] for group in groups], dtype=np.float64),
        }

    def restore(self, state: State) -> None:
        self.backups = integer(state, "backups")
        traces, before = array(state, "traces").astype(np.float64), array(state, "before").astype(np.float64)
        groups = array(state, "groups").astype(np.int64).tolist()
        self.open_traces = {group: (traces[k].copy(), float(before[k])) for k, group in enumerate(groups)}


# ------------------------------------------------------------------------------------------------- planning


@dataclass(kw_only=True)
class DynaQ(_KernelRule):
    """Dyna-Q (Sutton, 1990): Q-learning on each step, and on `planning` simulated steps after it."""

    actions: int
    seed: int
    planning: int
    rate: float
    model: TabularModel
    updates: int = 0

    def learn(self, table: Table, batch: TabularBatch) -> float:
        steps, known = batch.steps, batch.scored
        error = self.loops.q_learning(table.x, steps, self.actions)
        self.model.observe(steps.cell[known, 0], steps.next_cell[known, 0], steps.reward[known], steps.discount[known])
        self.updates += 1
        imagined = self.planning * len(batch.action) if self.model.taken else 0
        picks = generator(self.seed, "imagine", self.updates).random((imagined, 2))
        self.loops.dyna_planning(table.x, self.model.arrays(), picks, self.actions, self.rate)
        self.backups += len(batch.action) + imagined
        return error

    def state(self) -> State:
        return {"updates": self.updates, "backups": self.backups, "model": self.model.state()}

    def restore(self, state: State) -> None:
        self.updates, self.backups = integer(state, "updates"), integer(state, "backups")
        self.model.restore(substate(state, "model"))


@dataclass(kw_only=True)
class PrioritisedSweeping(_KernelRule):
    """Prioritised sweeping (Moore & Atkeson, 1993): expected backups of a learned model, highest priority first."""

    actions: int
    planning: int
    min_priority: float
    model: TabularModel
    priority: Floats = field(default_factory=lambda: np.zeros(0))
    """`[K]` estimated error of each pair's value against its backup."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        if not len(self.priority):
            self.priority = np.zeros(len(table.x))
        steps, known = batch.steps, batch.scored
        self.model.observe(steps.cell[known, 0], steps.next_cell[known, 0], steps.reward[known], steps.discount[known])
        cells = np.unique(steps.cell[known])
        urgency = np.abs(self.model.expected_backup(table.x, cells) - table.x[cells])
        self.priority[cells] = np.maximum(self.priority[cells], np.where(urgency > self.min_priority, urgency, 0.0))
        most = self.planning * len(batch.action)
        self.backups += self.loops.prioritised_sweeping(
            table.x, self.priority, self.model.arrays(), self.actions, most, self.min_priority
        )
        return float(urgency.sum())

    def state(self) -> State:
        return {"backups": self.backups, "priority": self.priority, "model": self.model.state()}

    def restore(self, state: State) -> None:
        self.backups, self.priority = integer(state, "backups"), array(state, "priority").astype(np.float64)
        self.model.restore(substate(state, "model"))
