"""Model of a controlled system as text: variables, actions, disturbances, and the next state as expressions.

Belongs here: the tables of a shield's file, and the model that they make. The same model is a finite game for
`grid.py`, a set of formulas for `invariant.py`, and a simulator for counterexamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector
from hone.decide.shield.expressions import FUNCTIONS, ShieldExpression, Values, parse_expression

Floats = NDArray[np.float64]
DURATION: Final = "dt"
"""Name of the time that has passed since the action, at most the step, in seconds."""
MAX_ACTIONS: Final = 64
MAX_OTHERS: Final = 6
"""Disturbances: their extremes are tried in all combinations."""


class VariableConfig(Config):
    """A variable of the state, which is also the name of the sensor that measures it."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    step: float = Field(gt=0)
    """Width of a cell of the grid; a safety game is solved on it."""
    worse: Literal["low", "high", "neither"]
    """Side that is more dangerous: a value between two cells counts as the more dangerous cell. Beyond the dangerous
    end nothing is known to be safe; beyond the other, the end counts. `neither`: the variable takes values of the grid
    only, such as the places of a board, and others are unsafe."""


class DisturbanceConfig(Config):
    """A quantity that others choose, adversarially, anew in each step: the assumption of the proof."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""


class ControlModelConfig(Config):
    """A controlled system. Expressions read constants, variables, disturbances, `let`, the columns of the action, and
    `dt`."""

    step_s: float = Field(gt=0)
    """Seconds between two decisions; `dt` in expressions."""
    constants: dict[str, float] = Field(default={})
    """Named numbers."""
    variables: dict[str, VariableConfig] = Field(min_length=1)
    """Variables of the state, in order."""
    actions: dict[str, dict[str, str]] = Field(min_length=1)
    """Name of an action -> values of its columns, as expressions over constants: `full_brake = { u = "-brake" }`."""
    disturbances: dict[str, DisturbanceConfig] = Field(default={})
    """Quantities that others choose."""
    let: dict[str, str] = Field(default={})
    """Named intermediate results, each from those above it."""
    next: dict[str, str]
    """Variable -> its value `dt` seconds later."""
    safe: str
    """Condition on the variables that must hold always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlModel:
    """A checked model: parsed expressions and numbers."""

    config: ControlModelConfig
    constants: Mapping[str, float]
    variables: tuple[str, ...]
    actions: tuple[str, ...]
    columns: tuple[Mapping[str, float], ...]
    """Values of each action's columns."""
    disturbances: tuple[str, ...]
    let: Mapping[str, ShieldExpression]
    next: Mapping[str, ShieldExpression]
    safe: ShieldExpression

    def corners(self) -> list[dict[str, float]]:
        """Extreme disturbances: each at its low or high end, in all combinations."""
        ends = [(self.config.disturbances[name].low, self.config.disturbances[name].high) for name in self.disturbances]
        return [dict(zip(self.disturbances, corner, strict=True)) for corner in product(*ends)]

    def after(
        self, state: Mapping[str, Values], action: int, disturbance: Mapping[str, float], *, dt: float | None = None
    ) -> dict[str, Values]:
        """Variables `dt` seconds (a step, unless given) after the action, for numbers or arrays of states."""
        return self.after_each(state, self.columns[action], disturbance, dt=dt)

    def after_each(
        self,
        state: Mapping[str, Values],
        columns: Mapping[str, Values],
        disturbance: Mapping[str, float],
        *,
        dt: float | None = None,
    ) -> dict[str, Values]:
        """As `after`, with the columns of an action given: numbers, or arrays that fit those of the state."""
        duration = self.config.step_s if dt is None else dt
        values: dict[str, Values] = {**self.constants, **columns, **state, **disturbance, DURATION: duration}
        for name, expression in self.let.items():
            values[name] = expression.over(values)
        return {name: self.next[name].over(values) for name in self.variables}

    def disturbed(self) -> tuple[str, ...]:
        """Variables whose next value depends on a disturbance."""
        reached = set(self.disturbances)
        for name, expression in self.let.items():
            if expression.names() & reached:
                reached.add(name)
        return tuple(name for name in self.variables if self.next[name].names() & reached)

    def is_safe(self, state: Mapping[str, Values]) -> Values:
        """Truth of the safety condition for numbers or arrays of states."""
        return self.safe.over({**self.constants, **state})

    def action_features(self) -> Floats | None:
        """`[K, f]` the columns of the actions, which measure how alike two actions are; None without columns."""
        names = sorted({name for columns in self.columns for name in columns})
        if not names:
            return None
        return np.array([[columns.get(name, 0.0) for name in names] for columns in self.columns])


def control_model(config: ControlModelConfig) -> ControlModel:
    """Parse and check a model. Raises ConfigError with every fault."""
    faults = ErrorCollector(ConfigError)
    columns = {name for action in config.actions.values() for name in action}
    _check_names(config, columns, faults)
    _check_numbers(config, faults)
    constants = frozenset(config.constants)
    known = constants | set(config.variables)

    def parse(text: str, place: str, names: frozenset[str]) -> ShieldExpression:
        try:
            return parse_expression(text, place=place, known=names)
        except ConfigError as fault:
            faults.extend(fault.messages)
            return parse_expression("0", place=place)

    values: list[dict[str, float]] = []
    for action, given in config.actions.items():
        parsed = {name: parse(text, f"actions.{action}.{name}", constants) for name, text in given.items()}
        values.append({name: _number(one, config, f"actions.{action}.{name}", faults) for name, one in parsed.items()})
        if missing := sorted(columns - set(given)):
            faults.add(f"actions.{action}: no value for {', '.join(missing)}, which another action has")
    scope = frozenset(known | columns | set(config.disturbances) | {DURATION})
    let: dict[str, ShieldExpression] = {}
    for name, text in config.let.items():
        let[name] = parse(text, f"let.{name}", scope | frozenset(let))
    scope |= frozenset(let)
    after = {name: parse(text, f"next.{name}", scope) for name, text in config.next.items()}
    safe = parse(config.safe, "safe", frozenset(known))
    faults.raise_if_any()
    return ControlModel(
        config=config, constants=dict(config.constants), variables=tuple(config.variables),
        actions=tuple(config.actions), columns=tuple(values), disturbances=tuple(config.disturbances), let=let,
        next=after, safe=safe,
    )  # fmt: skip


def _number(expression: ShieldExpression, config: ControlModelConfig, place: str, faults: ErrorCollector) -> float:
    value = float(expression.over(dict(config.constants)))
    if not np.isfinite(value):
        faults.add(f"{place} = {expression.text!r} is {value}")
    return value


def _check_names(config: ControlModelConfig, columns: set[str], faults: ErrorCollector) -> None:
    taken: dict[str, str] = {DURATION: "the duration", **dict.fromkeys(FUNCTIONS, "a function")}
    groups: Sequence[tuple[str, Sequence[str]]] = (
        ("constants", list(config.constants)), ("variables", list(config.variables)),
        ("disturbances", list(config.disturbances)), ("actions' columns", sorted(columns)), ("let", list(config.let)),
    )  # fmt: skip
    for group, names in groups:
        for name in names:
            if not name.isidentifier():
                faults.add(f"{group}: {name!r} is not a name: letters, digits and _ only")
            elif name in taken:
                faults.add(f"{group}: {name} is already the name of {taken[name]}")
            taken[name] = f"one of {group}"
    if missing := [name for name in config.variables if name not in config.next]:
        faults.add(f"next: no expression for {', '.join(missing)}")
    if extra := [name for name in config.next if name not in config.variables]:
        faults.add(f"next: {', '.join(extra)} is no variable")
    for group, count, most in (
        ("actions", len(config.actions), MAX_ACTIONS), ("disturbances", len(config.disturbances), MAX_OTHERS),
    ):  # fmt: skip
        if count > most:
            faults.add(f"{group}: {count}, at most {most} are allowed")


def _check_numbers(config: ControlModelConfig, faults: ErrorCollector) -> None:
    for name, variable in config.variables.items():
        cells = (variable.high - variable.low) / variable.step
        if variable.low >= variable.high:
            faults.add(f"variables.{name}: low {variable.low:g} is not below high {variable.high:g}")
        elif abs(cells - round(cells)) > 1e-6:
            faults.add(f"variables.{name}: from {variable.low:g} to {variable.high:g} is no whole number of steps "
                       f"{variable.step:g}")  # fmt: skip
    for name, disturbance in config.disturbances.items():
        if disturbance.low > disturbance.high:
            faults.add(f"disturbances.{name}: low {disturbance.low:g} is above high {disturbance.high:g}")
