"""Shields of a proved model: a table of allowed actions by cell, or the invariant one step ahead."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import ActionSet
from hone.decide.shield.grid import StateGrid
from hone.decide.shield.invariant import InvariantModel
from hone.decide.shield.sensors import ActionMatcher, Bools, Floats, SensorReader


@dataclass(frozen=True, slots=True, kw_only=True)
class GridShield:
    """Actions allowed by the winning region of a safety game, by a lookup in a table."""

    certificate: str
    grid: StateGrid
    reader: SensorReader
    matcher: ActionMatcher
    table: Bools
    """`[S + 1, A]` allowed actions of each cell; none in the last row, which stands for all that is outside."""

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Actions `[K]` after which a safe action exists again, whatever others do; none outside the region, and where
        a sensor is missing or not finite."""
        values = self.reader.read(context)
        number = -1 if values is None else self.grid.number(values)
        return self.matcher.match(self.table[number], actions)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action that is proved to keep every safe state safe."""
        del context
        return self.matcher.place_of_fallback(actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantShield:
    """Actions allowed by an inductive invariant: those after which it holds again under the worst disturbance."""

    certificate: str
    proved: InvariantModel
    worst: Mapping[str, float]
    """The worst disturbance, as proved."""
    columns: Mapping[str, Floats]
    """`[A]` values of the actions' columns."""
    reader: SensorReader
    matcher: ActionMatcher

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Actions `[K]` that lead back into the invariant; none outside it, and where a sensor is missing."""
        values = self.reader.read(context)
        if values is None:
            return np.zeros(len(actions), np.bool_)
        model = self.proved.model
        state = dict(zip(model.variables, values, strict=True))
        if not self.holds(state):
            return np.zeros(len(actions), np.bool_)
        after = model.after_each(state, self.columns, self.worst)
        flags = np.ones(len(model.actions), np.bool_)
        known = {**model.constants, **after}
        for condition in self.proved.invariant:
            flags &= np.asarray(condition.over(known), np.bool_)
        return self.matcher.match(flags, actions)

    def holds(self, state: Mapping[str, float]) -> bool:
        """True in a state of the invariant."""
        known = {**self.proved.model.constants, **state}
        return all(bool(condition.over(known)) for condition in self.proved.invariant)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action that is proved to keep the invariant."""
        del context
        return self.matcher.place_of_fallback(actions)
