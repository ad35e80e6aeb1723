"""Expressions over named numbers, such as `gap + lead**2 / 16 >= 0`: parsed into a tree, never run as code.

Belongs here: the grammar, its parser, and the evaluation on numpy arrays. `invariant.py` translates the same tree for
z3, so that what is proved and what is looked up are one text.

The grammar is a part of Python's: numbers, names, `+ - * / **` (powers are whole numbers from 0 to 8), comparisons,
`and`, `or`, `not`, `A if C else B`, and the functions `min`, `max` and `abs`.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError, did_you_mean

Values = NDArray[np.float64] | NDArray[np.bool_] | float | bool
FUNCTIONS: Final = ("abs", "max", "min")
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

    def names(self) -> frozenset[str]:
        """Names that the expression reads."""
        return frozenset(_names(self.tree))

    def over(self, values: Mapping[str, Values]) -> Values:
        """Value for arrays `[...]` of one shape; a division by 0 gives an infinity or NaN."""
        with np.errstate(all="ignore"):  # a branch that `if` leaves out may divide by 0
            return _value(self.tree, values)

    def holds(self, values: Mapping[str, float]) -> bool:
        """Truth for finite numbers. Raises FloatingPointError for a division by 0 or a number out of range."""
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return bool(_value(self.tree, values))


def parse_expression(text: str, *, place: str, known: frozenset[str] | None = None) -> ShieldExpression:
    """Parse `text`. Raises ConfigError that names `place`, for anything outside the grammar and for names not in
    `known`."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    try:
        tree = _node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{place} = {text!r}: {why}") from None
    if (depth := _depth(tree)) > MAX_DEPTH:
        raise ConfigError(f"{place}: {depth} operations inside each other, at most {MAX_DEPTH} are allowed")
    parsed = ShieldExpression(text=text.strip(), tree=tree)
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
            return _minus(inner) if isinstance(op, ast.USub) else OperationNode("not", (inner,))
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


def _minus(node: ExpressionNode) -> ExpressionNode:
    return NumberNode(-node.value) if isinstance(node, NumberNode) else OperationNode("-", (NumberNode(0.0), node))


def _arithmetic(kind: str, left: ExpressionNode, right: ExpressionNode) -> ExpressionNode:
    whole = isinstance(right, NumberNode) and right.value in range(MAX_POWER + 1)
    if kind == "**" and not whole:
        raise ValueError(f"a power must be a whole number from 0 to {MAX_POWER}")
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


def _meanings() -> Mapping[str, Callable[..., Any]]:
    return {
        "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "**": np.power,
        "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
        "and": _fold(np.logical_and), "or": _fold(np.logical_or), "not": np.logical_not,
        "min": _fold(np.minimum), "max": _fold(np.maximum), "abs": np.abs,
    }  # fmt: skip


OPERATIONS: Final = _meanings()
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
