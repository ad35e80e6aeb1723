"""Update rules on tables, one class per rule with its state, and the learner that applies one.

Rules for values linear in features are in `linear.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from hone.control.tables.batch import (
    RateConfig,
    TabularBatch,
    expected_sarsa_weights,
    sarsa_weights,
    suffix_products,
    tabular_batch,
)
from hone.control.tables.kernels import Floats, TabularKernels, TabularSteps, TraceDecay, kernels
from hone.control.tables.models import TabularModel
from hone.control.tables.tables import StateValues, Table
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.random import generator
from hone.core.state import State, array, integer, substate

T = TypeVar("T", bound=Table)
NextActionWeights: TypeAlias = Callable[[Table, TabularBatch], Floats]
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
class KernelRule:
    """Base of the update rules that run one of the compiled loops; it counts backups."""

    backups: int = 0
    loops: TabularKernels = field(default_factory=kernels)

    def state(self) -> State:
        return {"backups": self.backups}

    def restore(self, state: State) -> None:
        self.backups = integer(state, "backups")


@dataclass(kw_only=True)
class TargetRule(KernelRule):
    """x += rate * (target - x): Monte Carlo, n-step returns, lambda-returns."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        rows = np.flatnonzero(batch.scored)
        self.backups += len(rows)
        return self.loops.target_update(
            table.x, batch.steps.cell[rows], batch.target[rows], batch.steps.step_size[rows]
        )


@dataclass(kw_only=True)
class WeightedImportanceSampling(KernelRule):
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
class ExpectedSarsa(KernelRule):
    """TD(0), SARSA and expected SARSA, which differ in the weights of the next actions."""

    next_weights: NextActionWeights = expected_sarsa_weights

    def learn(self, table: Table, batch: TabularBatch) -> float:
        self.backups += len(batch.action)
        return self.loops.expected_sarsa(table.x, batch.steps, self.next_weights(table, batch))


@dataclass(kw_only=True)
class QLearningRule(KernelRule):
    """Q-learning (Watkins, 1989)."""

    actions: int

    def learn(self, table: Table, batch: TabularBatch) -> float:
        self.backups += len(batch.action)
        return self.loops.q_learning(table.x, batch.steps, self.actions)


@dataclass(kw_only=True)
class DoubleQLearning(KernelRule):
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


def _slice_steps(steps: TabularSteps, rows: slice) -> TabularSteps:
    """Some of the steps, in order; views."""
    return TabularSteps(
        cell=steps.cell[rows], next_cell=steps.next_cell[rows], reward=steps.reward[rows],
        discount=steps.discount[rows],
        step_size=steps.step_size[rows],
    )  # fmt: skip


@dataclass(kw_only=True)
class EligibilityTraces(KernelRule):
    """TD(lambda) and SARSA(lambda), online; an episode's traces are kept from one piece of it to the next."""

    decay: float
    """discount * lambda."""
    trace: int
    """`ACCUMULATING`, `REPLACING` or `DUTCH`."""
    next_weights: NextActionWeights = sarsa_weights
    open_traces: dict[int, tuple[Floats, float]] = field(default_factory=dict[int, "tuple[Floats, float]"])
    """Traces `[K]` of unfinished episodes, and the previous estimate of their next value."""

    def learn(self, table: Table, batch: TabularBatch) -> float:
        weight, total = self.next_weights(table, batch), 0.0
        kept: dict[int, tuple[Floats, float]] = {}
        for piece in range(len(batch.group)):
            rows = slice(int(batch.offsets[piece]), int(batch.offsets[piece + 1]))
            group = int(batch.group[piece])
            trace, before = self.open_traces.get(group) or (np.zeros(len(table.x)), np.nan)
            part = _slice_steps(batch.steps, rows)
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
class DynaQ(KernelRule):
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
class PrioritisedSweeping(KernelRule):
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
