"""Model of a controlled system as text: variables, actions, disturbances, and the next state as expressions.

Belongs here: the tables of a shield's file, and the model that they make. The same model is a finite game for
`game.py`, a set of formulas for `invariant.py`, and a simulator for counterexamples.

Expressions over named numbers, such as `gap + lead**2 / 16 >= 0`: parsed into a tree, never run as code.

The grammar is a part of Python's: numbers, names, `+ - * / **` (powers are whole numbers from 0 to 8), comparisons,
`and`, `or`, `not`, `A if C else B`, and the functions `min`, `max` and `abs`.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector, did_you_mean

# ---------------------------------------------------------------------------------------------------------- expressions


Values = NDArray[np.float64] | NDArray[np.bool_] | float | bool
FUNCTIONS: Final = ("abs", "max", "min")
COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")
MAX_POWER: Final = 8
MAX_CHARACTERS: Final = 2_000
MAX_DEPTH: Final = 60
"""Largest number of operations inside each other."""
_SIGNS: Final[Mapping[type[ast.AST], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.And: "and", ast.Or: "or",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NumberNode:
    """A number in the text."""

    value: float


@dataclass(frozen=True, slots=True)
class NameNode:
    """A name whose value is given at evaluation."""

    name: str


@dataclass(frozen=True, slots=True)
class OperationNode:
    """An operation on the values of its operands: `+`, `<`, `and`, `if` (condition, then, else), `min` ..."""

    kind: str
    operands: tuple["ExpressionNode", ...]


ExpressionNode = NumberNode | NameNode | OperationNode


@dataclass(frozen=True, slots=True)
class ShieldExpression:
    """A parsed expression and its text."""

    text: str
    tree: ExpressionNode
    condition: bool
    """True for a condition, False for a number."""

    def names(self) -> frozenset[str]:
        """Names that the expression reads."""
        return frozenset(_names(self.tree))

    def over(self, values: Mapping[str, Values]) -> Values:
        """Value for arrays `[...]` of one shape; a division by 0 gives an infinity or NaN."""
        with np.errstate(all="ignore"):  # a branch that `if` leaves out may divide by 0
            return _value(self.tree, values)

    def holds(self, values: Mapping[str, float]) -> bool:
        """Truth for finite numbers. Raises FloatingPointError, which names the expression, for a division by 0 or a
        number out of range."""
        try:
            with np.errstate(divide="raise", over="raise", invalid="raise"):
                return bool(_value(self.tree, values))
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} in `{self.text}`") from None


def parse_expression(
    text: str,
    *,
    place: str,
    known: frozenset[str] | None = None,
    condition: bool | None = None,
    conditions: frozenset[str] = frozenset(),
) -> ShieldExpression:
    """Parse `text`. Raises ConfigError that names `place`, for anything outside the grammar, for names not in `known`,
    and for a number where a `condition` is wanted or the other way round; `conditions` are names of conditions."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    try:
        tree = _node(ast.parse(text.strip(), mode="eval").body)
        kind = _is_condition(tree, conditions)
        if condition is not None and kind != condition:
            wanted = "a condition is wanted, such as `x >= 0`" if condition else "a number is wanted"
            raise ValueError(f"{'a condition' if kind else 'a number'}, where {wanted}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{place} = {text!r}: {why}") from None
    if (depth := _depth(tree)) > MAX_DEPTH:
        raise ConfigError(f"{place}: {depth} operations inside each other, at most {MAX_DEPTH} are allowed")
    parsed = ShieldExpression(text=text.strip(), tree=tree, condition=kind)
    unknown = sorted(parsed.names() - known) if known is not None else []
    if unknown:
        hint = did_you_mean(unknown[0], sorted(known or ()))
        raise ConfigError(f"{place} = {text!r}: unknown name {unknown[0]!r}{hint}")
    return parsed


def _node(node: ast.expr) -> ExpressionNode:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) <= 1e15:
            return NumberNode(float(number))
        case ast.Name(id=name):
            return NameNode(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _arithmetic(_SIGNS[type(op)], _node(left), _node(right))
        case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
            inner = _node(operand)
            if isinstance(op, ast.Not):
                return OperationNode("not", (inner,))
            return (
                NumberNode(-inner.value)
                if isinstance(inner, NumberNode)
                else OperationNode("-", (NumberNode(0.0), inner))
            )
        case ast.BoolOp(op=op, values=values):
            return OperationNode(_SIGNS[type(op)], tuple(map(_node, values)))
        case ast.Compare():
            return _comparison(node)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return OperationNode("if", (_node(test), _node(body), _node(orelse)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            return OperationNode(name, tuple(map(_node, args)))
        case _:
            raise ValueError(f"`{ast.unparse(node)}` is not allowed; known functions: {', '.join(FUNCTIONS)}")


def _arithmetic(kind: str, left: ExpressionNode, right: ExpressionNode) -> ExpressionNode:
    whole = isinstance(right, NumberNode) and right.value in range(MAX_POWER + 1)
    if kind == "**" and not whole:
        raise ValueError(f"a power must be a whole number from 0 to {MAX_POWER}")
    if kind == "/" and isinstance(right, NumberNode) and right.value == 0:
        raise ValueError("a division by 0")
    return OperationNode(kind, (left, right))


def _comparison(node: ast.Compare) -> ExpressionNode:
    sides = [_node(side) for side in (node.left, *node.comparators)]
    pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
    parts: list[ExpressionNode] = []
    for op, left, right in pairs:
        if type(op) not in _SIGNS:
            raise ValueError("comparisons are < <= > >= == !=")
        parts.append(OperationNode(_SIGNS[type(op)], (left, right)))
    return parts[0] if len(parts) == 1 else OperationNode("and", tuple(parts))


def _is_condition(node: ExpressionNode, conditions: frozenset[str]) -> bool:
    """True for a condition. Raises ValueError for a number used as one, or a condition used as a number."""
    if not isinstance(node, OperationNode):
        return isinstance(node, NameNode) and node.name in conditions
    kinds = [_is_condition(one, conditions) for one in node.operands]
    if node.kind == "if":
        if not kinds[0]:
            raise ValueError("a number between `if` and `else`, where a condition is wanted")
        if kinds[1] != kinds[2]:
            raise ValueError("`if` chooses between a number and a condition")
        return kinds[1]
    logical = node.kind in ("and", "or", "not")
    if any(kind != logical for kind in kinds):
        raise ValueError(f"`{node.kind}` needs {'conditions' if logical else 'numbers'}; write `1 if C else 0` for the "
                         "number of a condition C")  # fmt: skip
    return logical or node.kind in COMPARISONS


def _names(node: ExpressionNode) -> set[str]:
    match node:
        case NumberNode():
            return set()
        case NameNode(name=name):
            return {name}
        case OperationNode(operands=operands):
            return set[str]().union(*map(_names, operands))


def _depth(node: ExpressionNode) -> int:
    return 1 + max(map(_depth, node.operands)) if isinstance(node, OperationNode) else 0


def _fold(combine: Callable[[Values, Values], Values]) -> Callable[..., Values]:
    def folded(first: Values, *others: Values) -> Values:
        for other in others:
            first = combine(first, other)
        return first

    return folded


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "**": np.power,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "and": _fold(np.logical_and), "or": _fold(np.logical_or), "not": np.logical_not,
    "min": _fold(np.minimum), "max": _fold(np.maximum), "abs": np.abs,
}  # fmt: skip
"""Name of an operation, but `if` -> its meaning on numbers and arrays."""


def _value(node: ExpressionNode, values: Mapping[str, Values]) -> Values:
    match node:
        case NumberNode(value=value):
            return value
        case NameNode(name=name):
            return values[name]
        case OperationNode(kind="if", operands=(condition, then, otherwise)):
            met = _value(condition, values)
            if isinstance(met, bool | np.bool_):
                return _value(then if met else otherwise, values)
            return np.where(met, _value(then, values), _value(otherwise, values))
        case OperationNode(kind=kind, operands=operands):
            return OPERATIONS[kind](*(_value(operand, values) for operand in operands))


# ---------------------------------------------------------------------------------------------------------------- model


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

    def parse(text: str, place: str, names: frozenset[str], *, condition: bool | None = False) -> ShieldExpression:
        conditions = frozenset(name for name, one in let.items() if one.condition)
        try:
            return parse_expression(text, place=place, known=names, condition=condition, conditions=conditions)
        except ConfigError as fault:
            faults.extend(fault.messages)
            return parse_expression("0", place=place)

    let: dict[str, ShieldExpression] = {}

    values: list[dict[str, float]] = []
    for action, texts in config.actions.items():
        parsed = {name: parse(text, f"actions.{action}.{name}", constants) for name, text in texts.items()}
        values.append({name: _number(one, config, f"actions.{action}.{name}", faults) for name, one in parsed.items()})
        if missing := sorted(columns - set(texts)):
            faults.add(f"actions.{action}: no value for {', '.join(missing)}, which another action has")
    scope = frozenset(known | columns | set(config.disturbances) | {DURATION})
    for name, text in config.let.items():
        let[name] = parse(text, f"let.{name}", scope | frozenset(let), condition=None)
    scope |= frozenset(let)
    after = {name: parse(text, f"next.{name}", scope) for name, text in config.next.items()}
    safe = parse(config.safe, "safe", frozenset(known), condition=True)
    faults.raise_if_any()
    return ControlModel(
        config=config, constants=dict(config.constants), variables=tuple(config.variables),
        actions=tuple(config.actions), columns=tuple(values), disturbances=tuple(config.disturbances), let=let,
        next=after, safe=safe,
    )  # fmt: skip


def _number(expression: ShieldExpression, config: ControlModelConfig, place: str, faults: ErrorCollector) -> float:
    value = float(expression.over(dict(config.constants)))
    if not np.isfinite(value):
        faults.add(f"{place} = {expression.text!r} is {value}: a division by 0, or a number out of range")
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


# ----------------------------------------------------------------------------------------------------------------- spec


class ActionRule(Config):
    """A condition without which actions are not allowed."""

    actions: list[str] = Field(min_length=1)
    """The actions."""
    only_if: str
    """Condition over sensors and constants: `gap >= 2 * speed`."""


class RuleShieldConfig(Config):
    """Rules without a model: a person vouches for them, and nothing is proved but that the fallback is never
    forbidden."""

    kind: Literal["rules"]
    """Names this alternative."""
    sensors: list[str] = Field(min_length=1)
    """Features of the context that rules read."""
    actions: list[str] = Field(min_length=1)
    """All actions; an action that is not listed is never allowed."""
    fallback: str
    """Action that is taken where no action is known to be safe; no rule forbids it."""
    rules: list[ActionRule] = Field(min_length=1)
    """An action is allowed if all of its conditions hold."""
    constants: dict[str, float] = Field(default={})
    """Named numbers."""


class GameShieldConfig(Config):
    """A safety game on the grid of a model."""

    kind: Literal["game"]
    """Names this alternative."""
    fallback: str
    """Action that is taken where no action is known to be safe; it is proved to keep every safe state safe."""
    model: ControlModelConfig
    """The system."""


class InvariantShieldConfig(Config):
    """An inductive invariant of a model, proved for all real numbers."""

    kind: Literal["invariant"]
    """Names this alternative."""
    fallback: str
    """Action that is taken where no action is known to be safe; it is proved to keep the invariant."""
    invariant: list[str] = Field(min_length=1)
    """Conditions over variables and constants that hold together."""
    model: ControlModelConfig
    """The system; steps of its grid are only drawn."""


ShieldSpec: TypeAlias = Annotated[
    RuleShieldConfig | GameShieldConfig | InvariantShieldConfig, Field(discriminator="kind")
]
_SPEC: TypeAdapter[ShieldSpec] = TypeAdapter(ShieldSpec)


def shield_spec(values: Mapping[str, object], *, place: str) -> ShieldSpec:
    """Check the tables of a shield. Raises ConfigError with every fault, each naming `place` and the key."""
    try:
        return _SPEC.validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError(*(
            f"{place}: {'.'.join(map(str, fault['loc'][1:])) or 'kind'}: {fault['msg']}" for fault in error.errors()
        )) from None  # fmt: skip
