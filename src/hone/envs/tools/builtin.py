"""Tools that come with hone: `hone:calculator` and `hone:python`."""

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

_MAX_CHARACTERS = 200
_MAX_DIGITS = 1000
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = MappingProxyType(
    {
        ast.USub: operator.neg,
        ast.UAdd: operator.pos,
    }
)


def calculator(expression: str) -> str:
    """Compute a sum, difference, product, quotient or power of numbers.

    Args:
        expression: Numbers, parentheses and + - * / // % **, such as (3 + 4) * 2
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters, at most {_MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no expression of numbers") from None
    value = _value(tree.body)
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def _value(node: ast.expr) -> float:
    """The value of an expression; a whole number stays one. Raises ValueError for any other kind of node."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not a number or one of + - * / // % **")


def _power(base: float, exponent: float) -> float:
    digits = abs(exponent) * len(str(abs(base)))
    if digits > _MAX_DIGITS:
        raise ValueError(f"{base}**{exponent} is too large")
    if base < 0 and not float(exponent).is_integer():
        raise ValueError(f"{base}**{exponent} is no real number")
    return base**exponent
