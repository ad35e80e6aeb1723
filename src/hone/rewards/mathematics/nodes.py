"""Constructors of nodes that the parser needs."""

from collections.abc import Sequence
from fractions import Fraction

from hone.rewards.mathematics.limits import MAX_EXPONENT
from hone.rewards.mathematics.tree import MathNode, MathOperation, MathSyntaxError, NumberLiteral, ValueCollection


def as_matrix(items: Sequence[MathNode]) -> ValueCollection:
    """A matrix of rows in square brackets: `[[1, 2], [3, 4]]`."""
    rows = tuple(ValueCollection("row", item.items) for item in items if isinstance(item, ValueCollection))
    if len({len(row.items) for row in rows}) != 1:
        raise MathSyntaxError("rows of different lengths")
    return ValueCollection("matrix", rows)


def scalar(node: MathNode) -> MathNode:
    """The node, when it is a single value. Raises MathSyntaxError for arithmetic with a set, tuple or matrix."""
    if isinstance(node, ValueCollection):
        raise MathSyntaxError("arithmetic with several values")
    return node


def negative(node: MathNode) -> MathNode:
    """The negative of a value; of a positive number as one literal."""
    if isinstance(node, NumberLiteral) and node.value > 0:
        return NumberLiteral(-node.value, node.digits)
    return MathOperation("negation", (node,))


def product(left: MathNode, right: MathNode) -> MathNode:
    """The product of two values; `1.5 * 10^3` is one literal."""
    power = _power_of_ten(right)
    if isinstance(left, NumberLiteral) and power is not None:
        return NumberLiteral(left.value * power, left.digits)
    before = left.operands if isinstance(left, MathOperation) and left.name == "product" else (left,)
    return MathOperation("product", tuple(scalar(one) for one in (*before, right)))


def _power_of_ten(node: MathNode) -> Fraction | None:
    """The value of `10^n`, the second factor in scientific notation."""
    match node:
        case MathOperation(name="power", operands=(NumberLiteral(value=base), NumberLiteral(value=exponent))):
            small = base == 10 and exponent.denominator == 1 and abs(exponent) <= MAX_EXPONENT
            return Fraction(10) ** int(exponent) if small else None
        case _:
            return None


def percent(node: MathNode) -> MathNode:
    """A hundredth of a value."""
    if isinstance(node, NumberLiteral):
        return NumberLiteral(node.value / 100, node.digits)
    return MathOperation("quotient", (scalar(node), NumberLiteral(Fraction(100))))
