"""Inner loops of tabular learning, step after step; compiled by numba where that is installed.

Only loops whose order matters, so that they cannot be array operations. Without numba the same functions run in Python,
with the same numbers to the last bit, about three hundred times slower.

A table is one flat array `x` `[K]`. A step has M features (1 for a table, one per tiling for a tile coder) and its
value is the sum over `x[cell[m]]`; the values of the J actions in the next observation are at `ahead[m] + j`. State
values are the case J = 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

ACCUMULATING, REPLACING, DUTCH = 0, 1, 2
"""Kinds of traces."""
NEGLIGIBLE = 1e-15
"""A trace below this is set to 0."""


class TabularSteps(NamedTuple):
    """N steps in the order in which they are learned from."""

    cell: Ints
    """`[N, M]` cells of the observation and action."""
    next_cell: Ints
    """`[N, M]` cells of the first action in the next observation."""
    reward: Floats
    """`[N]`"""
    discount: Floats
    """`[N]` discount; 0 at terminal states."""
    step_size: Floats
    """`[N]` step size; already divided by M."""


class TraceDecay(NamedTuple):
    """Decay of the eligibility traces."""

    decay: float
    """discount * lambda."""
    kind: int
    """`ACCUMULATING`, `REPLACING` or `DUTCH`."""
    previous_value: float
    """Value of the first step as estimated one step earlier (dutch traces); NaN: the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularKernels:
    """The loops below, compiled or not."""

    target_update: Callable[[Floats, Ints, Floats, Floats], float]
    weighted_importance_update: Callable[[Floats, Floats, Ints, Floats, Floats], float]
    expected_sarsa: Callable[[Floats, TabularSteps, Floats], float]
    q_learning: Callable[[Floats, TabularSteps, int], float]
    double_q_learning: Callable[[Floats, TabularSteps, int, Flags], float]
    eligibility_traces: Callable[[Floats, Floats, TabularSteps, Floats, TraceDecay], tuple[float, float]]
    dyna_planning: Callable[..., float]
    prioritised_sweeping: Callable[..., int]
    compiled: bool


def target_update(x: Floats, cell: Ints, target: Floats, rate: Floats) -> float:
    """x(cell) += rate * (target - x(cell)), step by step -> sum of |target - x|."""
    total = 0.0
    for n in range(len(target)):
        error = target[n]
        for m in range(cell.shape[1]):
            error -= x[cell[n, m]]
        for m in range(cell.shape[1]):
            x[cell[n, m]] += rate[n] * error
        total += abs(error)
    return total


def weighted_importance_update(x: Floats, mass: Floats, cell: Ints, target: Floats, weight: Floats) -> float:
    """Weighted mean of targets: mass(cell) += w; x(cell) += w / mass * (target - x) -> sum of |target - x|.

    Weighted importance sampling, incrementally (Sutton & Barto, 2018, section 5.6). `cell` `[N]`; steps with weight 0
    are skipped.
    """
    total = 0.0
    for n in range(len(target)):
        if weight[n] > 0.0:
            mass[cell[n]] += weight[n]
            error = target[n] - x[cell[n]]
            x[cell[n]] += weight[n] / mass[cell[n]] * error
            total += abs(error)
    return total


def expected_sarsa(x: Floats, steps: TabularSteps, weight: Floats) -> float:
    """error = r + factor * sum over j of weight_j * x(ahead + j) - x(cell); x(cell) += rate * error -> sum of |error|.

    `weight` `[N, J]`: probabilities of the next action for expected SARSA, a 1 at the one taken for SARSA; J = 1 is
    TD(0).
    """
    total = 0.0
    features, actions = steps.cell.shape[1], weight.shape[1]
    for n in range(len(steps.reward)):
        error = steps.reward[n]
        for j in range(actions):
            value = 0.0
            for m in range(features):
                value += x[steps.next_cell[n, m] + j]
            error += steps.discount[n] * weight[n, j] * value
        for m in range(features):
            error -= x[steps.cell[n, m]]
        for m in range(features):
            x[steps.cell[n, m]] += steps.step_size[n] * error
        total += abs(error)
    return total


def q_learning(x: Floats, steps: TabularSteps, actions: int) -> float:
    """error = r + factor * max over j of x(ahead + j) - x(cell); x(cell) += rate * error -> sum of |error| (Watkins,
    1989)."""
    total = 0.0
    features = steps.cell.shape[1]
    for n in range(len(steps.reward)):
        best = -np.inf
        for j in range(actions):
            value = 0.0
            for m in range(features):
                value += x[steps.next_cell[n, m] + j]
            best = max(best, value)
        error = steps.reward[n] + steps.discount[n] * best
        for m in range(features):
            error -= x[steps.cell[n, m]]
        for m in range(features):
            x[steps.cell[n, m]] += steps.step_size[n] * error
        total += abs(error)
    return total


def double_q_learning(x: Floats, steps: TabularSteps, actions: int, coin: Flags) -> float:
    """Two tables in one array `[2K]`: `coin` `[N]` selects the table to update, which chooses the next action; the
    other one evaluates it -> sum of |error| (van Hasselt, 2010). M = 1.
    """
    total = 0.0
    half = len(x) // 2
    for n in range(len(steps.reward)):
        mine = half if coin[n] else 0
        other = half - mine
        first = steps.next_cell[n, 0]
        best = 0
        for j in range(1, actions):
            if x[mine + first + j] > x[mine + first + best]:
                best = j
        error = steps.reward[n] + steps.discount[n] * x[other + first + best] - x[mine + steps.cell[n, 0]]
        x[mine + steps.cell[n, 0]] += steps.step_size[n] * error
        total += abs(error)
    return total


def eligibility_traces(  # noqa: C901, PLR0912 - one loop
    x: Floats, trace: Floats, steps: TabularSteps, weight: Floats, fading: TraceDecay
) -> tuple[float, float]:
    """`expected_sarsa` with eligibility traces `[K]`, on an episode or a piece -> sum of |error|, `before` for the next
    piece.

    e *= decay; e(cell) += 1 | = 1 | += 1 - rate * e(cell); x += rate * error * e. With dutch traces the step is x +=
    rate * (error + v - before) * e and x(cell) -= rate * (v - before): true online TD(lambda) (van Seijen & Sutton,
    2014; van Seijen et al., 2016).
    """
    total, before = 0.0, fading.previous_value
    features = steps.cell.shape[1]
    active = np.empty(len(x), dtype=np.int64)
    count = 0
    for i in np.flatnonzero(trace):
        active[count] = i
        count += 1
    for n in range(len(steps.reward)):
        rate, now, beyond, marks = steps.step_size[n], 0.0, 0.0, 0.0
        k = 0
        while k < count:
            trace[active[k]] *= fading.decay
            if trace[active[k]] < NEGLIGIBLE:
                trace[active[k]] = 0.0
                count -= 1
                active[k] = active[count]
            else:
                k += 1
        for m in range(features):
            now += x[steps.cell[n, m]]
            marks += trace[steps.cell[n, m]]
        for m in range(features):
            i = steps.cell[n, m]
            if trace[i] == 0.0:
                active[count] = i
                count += 1
            if fading.kind == ACCUMULATING:
                trace[i] += 1.0
            elif fading.kind == REPLACING:
                trace[i] = 1.0
            else:
                trace[i] += 1.0 - rate * marks
        for j in range(weight.shape[1]):
            for m in range(features):
                beyond += weight[n, j] * x[steps.next_cell[n, m] + j]
        error = steps.reward[n] + steps.discount[n] * beyond - now
        late = now - before if fading.kind == DUTCH and not np.isnan(before) else 0.0
        for k in range(count):
            x[active[k]] += rate * (error + late) * trace[active[k]]
        for m in range(features):
            x[steps.cell[n, m]] -= rate * late
        before = beyond
        total += abs(error)
    return total, before


def dyna_planning(x: Floats, model: Any, picks: Floats, actions: int, rate: float) -> float:  # noqa: ANN401 - `models.Seen`, which imports this file
    """One simulated step of Q-learning per pick `[P, 2]` in [0, 1): a visited pair, and one of its outcomes in
    proportion to its count -> sum of |error| (Sutton, 1990).
    """
    total = 0.0
    for n in range(len(picks)):
        cell = model.taken_cells[int(picks[n, 0] * len(model.taken_cells))]
        left = picks[n, 1] * model.visits[cell]
        slot = 0
        while left >= model.counts[cell, slot]:
            left -= model.counts[cell, slot]
            slot += 1
        first = model.next_cell[cell, slot]
        error = model.reward[cell, slot] + model.discount[cell, slot] * x[first : first + actions].max() - x[cell]
        x[cell] += rate * error
        total += abs(error)
    return total


def prioritised_sweeping(x: Floats, priority: Floats, model: Any, actions: int, most: int, least: float) -> int:  # noqa: ANN401
    """Expected backups of the pairs of highest priority `[K]`, at most `most` -> their number (Moore & Atkeson, 1993).

    A change of a state's value by d raises the priority of each predecessor pair to p(it leads there) * factor * d, if
    that is more than `least`.
    """
    for done in range(most):
        cell = int(priority.argmax())
        if priority[cell] <= least:
            return done
        priority[cell] = 0.0
        state = cell // actions * actions
        was = x[state : state + actions].max()
        value = 0.0
        for slot in range(model.counts.shape[1]):
            first = model.next_cell[cell, slot]
            target = model.reward[cell, slot] + model.discount[cell, slot] * x[first : first + actions].max()
            value += model.counts[cell, slot] / model.visits[cell] * target
        x[cell] = value
        change = abs(x[state : state + actions].max() - was)
        entry = model.first_predecessor[state // actions]
        while entry >= 0:
            slots = model.counts.shape[1]
            earlier, slot = entry // slots, entry % slots
            share = model.counts[earlier, slot] / model.visits[earlier] * model.discount[earlier, slot]
            if share * change > max(least, priority[earlier]):
                priority[earlier] = share * change
            entry = model.link[entry]
    return most


@cache
def kernels() -> TabularKernels:
    """The loops, compiled where numba is installed (`pip install 'hone-rl[control]'`). The first call takes a second or
    two, once per machine: numba caches the compiled code beside this file.
    """
    try:
        import numba  # noqa: PLC0415 - optional, and takes half a second to import
    except ImportError:
        return python_kernels()
    return _all_kernels(numba.njit(cache=True, nogil=True), compiled=True)


def python_kernels() -> TabularKernels:
    """The loops without compilation."""
    return _all_kernels(lambda loop: loop, compiled=False)


def _all_kernels(make: Callable[[Any], Any], *, compiled: bool) -> TabularKernels:
    return TabularKernels(
        target_update=make(target_update),
        weighted_importance_update=make(weighted_importance_update),
        expected_sarsa=make(expected_sarsa),
        q_learning=make(q_learning),
        double_q_learning=make(double_q_learning),
        eligibility_traces=make(eligibility_traces),
        dyna_planning=make(dyna_planning),
        prioritised_sweeping=make(prioritised_sweeping),
        compiled=compiled,
    )
