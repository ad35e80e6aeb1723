"""Formulas of a model: its next values with everything that they read written out, and the divisions in them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hone.core.errors import ConfigError
from hone.decide.shield.model import DURATION, ControlModel, ExpressionNode, NameNode, NumberNode, OperationNode

MAX_PARTS: Final = 20_000
"""Names and numbers of a next value with everything that it reads written out."""
MAX_NESTED: Final = 150
"""Operations inside each other, written out."""


def next_trees(model: ControlModel, *, duration_s: float | None = None) -> list[dict[str, ExpressionNode]]:
    """Next value of each variable under each action, over variables and disturbances: constants, `let` and the columns
    of the action are written out, and `dt` where it is given. Actions share the parts that are alike for all of them.
    Raises ConfigError for a value of too many parts."""
    numbers = {**model.constants, **({} if duration_s is None else {DURATION: duration_s})}
    shared: dict[str, ExpressionNode] = {name: NumberNode(value) for name, value in numbers.items()}
    apart = {name for columns in model.columns for name in columns}
    formulas = {**model.let, **{f"next.{name}": model.next[name] for name in model.variables}}
    for name, expression in formulas.items():
        if expression.names() & apart:
            apart.add(name)
        else:
            shared[name] = _written_out(expression.tree, shared)
    every: list[dict[str, ExpressionNode]] = []
    sizes: dict[int, tuple[int, int]] = {}
    for columns in model.columns:
        values = {**shared, **{name: NumberNode(value) for name, value in columns.items()}}
        for name, expression in formulas.items():
            if name in apart:
                values[name] = _written_out(expression.tree, values)
        every.append({name: values[f"next.{name}"] for name in model.variables})
        for name, tree in every[-1].items():
            parts, depth = _size(tree, sizes)
            if parts > MAX_PARTS or depth > MAX_NESTED:
                raise ConfigError(
                    f"next.{name} has {parts} parts, {depth} inside each other, with all of `let` written out; at most "
                    f"{MAX_PARTS} and {MAX_NESTED} are allowed"
                )
    return every


def safe_tree(model: ControlModel) -> ExpressionNode:
    """The safety condition over variables, with constants written out."""
    return _written_out(model.safe.tree, {name: NumberNode(value) for name, value in model.constants.items()})


def _written_out(node: ExpressionNode, values: Mapping[str, ExpressionNode]) -> ExpressionNode:
    match node:
        case NumberNode():
            return node
        case NameNode(name=name):
            return values.get(name, node)
        case OperationNode(kind=kind, operands=operands):
            return OperationNode(kind, tuple(_written_out(one, values) for one in operands))


def _size(node: ExpressionNode, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Number of names and numbers, and of operations inside each other; shared parts are worked out once."""
    if not isinstance(node, OperationNode):
        return 1, 0
    if id(node) not in known:
        sizes = [_size(one, known) for one in node.operands]
        known[id(node)] = (sum(parts for parts, _ in sizes), 1 + max(depth for _, depth in sizes))
    return known[id(node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A division in an expression, and the conditions under which its value is used."""

    divisor: ExpressionNode
    path: tuple[ExpressionNode, ...]
    words: str


def divisions(node: ExpressionNode, path: tuple[ExpressionNode, ...] = ()) -> Iterator[Division]:
    """Every division of an expression whose divisor is not a number other than 0; operands of `and` and `or` count as
    read in their order."""
    if not isinstance(node, OperationNode):
        return
    if node.kind == "if":
        condition, then, otherwise = node.operands
        yield from divisions(condition, path)
        yield from divisions(then, (*path, condition))
        yield from divisions(otherwise, (*path, OperationNode("not", (condition,))))
        return
    if node.kind == "/" and not (isinstance(node.operands[1], NumberNode) and node.operands[1].value):
        yield Division(divisor=node.operands[1], path=path, words=_spell(node))
    for operand in node.operands:
        yield from divisions(operand, path)
        if node.kind in ("and", "or"):
            path = (*path, operand if node.kind == "and" else OperationNode("not", (operand,)))


def _spell(node: ExpressionNode) -> str:
    """Text of an expression."""
    match node:
        case NumberNode(value=value):
            return f"{value:g}"
        case NameNode(name=name):
            return name
        case OperationNode(kind="-", operands=(NumberNode(value=0.0), operand)):
            return f"-{_spell(operand)}"
        case OperationNode(kind="if", operands=(condition, then, otherwise)):
            return f"({_spell(then)} if {_spell(condition)} else {_spell(otherwise)})"
        case OperationNode(kind=kind, operands=operands) if kind in ("min", "max", "abs"):
            return f"{kind}({', '.join(map(_spell, operands))})"
        case OperationNode(kind="not", operands=(operand,)):
            return f"not {_spell(operand)}"
        case OperationNode(kind=kind, operands=operands):
            return "(" + f" {kind} ".join(map(_spell, operands)) + ")"
