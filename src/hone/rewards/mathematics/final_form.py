"""Final form: which operations an answer leaves undone.

Numbers, fractions, roots that do not simplify, `\\pi`, powers of `e`, sums and products of unlike terms, and powers of
ten are final. `2+3`, `4/2`, `\\sqrt{9}`, `5!`, `2^{10}`, `x+x` or a function of a number are not: work is left.
"""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from hone.rewards.mathematics.tree import (
    CONSTANTS,
    MathNode,
    MathOperation,
    NamedSymbol,
    NumberLiteral,
    variables,
    walk,
)

UNREDUCED = "fraction that is not in lowest terms"
_ONE_DEGREE = {
    **dict.fromkeys(("log", "ln"), "logarithm"),
    **dict.fromkeys(("sin", "cos", "tan", "cot", "sec", "csc"), "trigonometric function"),
    **dict.fromkeys(("arcsin", "arccos", "arctan"), "inverse trigonometric function"),
    **dict.fromkeys(("sinh", "cosh", "tanh"), "hyperbolic function"),
    **{name: name for name in ("factorial", "binomial", "absolute value", "floor", "ceiling", "determinant")},
    "degrees": "angle in degrees",
}


def undone_operations(node: MathNode) -> frozenset[str]:
    """Names of the operations in a tree that are left undone; empty for an answer in final form."""
    return frozenset(name for one in walk(node) if isinstance(one, MathOperation) for name in _undone(one))


def lacks(answer: MathNode, reference: MathNode) -> frozenset[str]:
    """Undone operations of an answer that its reference does not have."""
    missing = undone_operations(answer) - undone_operations(reference)
    return missing - {UNREDUCED} if _has_fraction(reference) else missing


def rational(node: MathNode) -> Fraction | None:
    """The value of a number or of a fraction of two numbers; None for anything else."""
    match node:
        case NumberLiteral(value=value):
            return value
        case MathOperation(name="negation", operands=(inner,)):
            value = rational(inner)
            return None if value is None else -value
        case MathOperation(name="quotient", operands=(over, under)):
            above, below = rational(over), rational(under)
            return above / below if above is not None and below else None
        case _:
            return None


def _has_fraction(node: MathNode) -> bool:
    return any(
        (isinstance(one, MathOperation) and one.name == "quotient")
        or (isinstance(one, NumberLiteral) and one.value.denominator != 1 and not one.digits)
        for one in walk(node)
    )


def _undone(node: MathOperation) -> Iterator[str]:
    match node:
        case MathOperation(name="sum", operands=terms):
            keys = Counter(_like(term) for term in terms)
            if max(keys.values(), default=0) > 1:
                yield "sum"
        case MathOperation(name="product"):
            yield from _undone_product(node)
        case MathOperation(name="negation", operands=(inner,)):
            value = rational(inner)
            if (value is not None and value <= 0) or (isinstance(inner, MathOperation) and inner.name == "negation"):
                yield "sign"
        case MathOperation(name="quotient", operands=(over, under)):
            yield from _undone_quotient(over, under)
            yield from _undone_product(node)
        case MathOperation(name="power", operands=(base, exponent)):
            yield from _undone_power(base, exponent)
        case MathOperation(name="root", operands=(radicand, degree)):
            yield from _undone_root(radicand, rational(degree))
        case MathOperation(name=name):
            yield _ONE_DEGREE.get(name, name)


def _like(term: MathNode) -> str:
    """A key that like terms share: the term without its rational factor."""
    above, below = _factors(term)
    kept = sorted(repr(one) for one in above if rational(one) is None)
    under = sorted(repr(one) for one in below if rational(one) is None)
    return "*".join(kept) + ("/" + "*".join(under) if under else "")


def _factors(node: MathNode) -> tuple[list[MathNode], list[MathNode]]:
    """Factors of a term: above and below the line. A rational number is one factor."""
    if rational(node) is not None or not isinstance(node, MathOperation):
        return [node], []
    if node.name == "negation":
        return _factors(node.operands[0])
    if node.name == "product":
        parts = [_factors(one) for one in node.operands]
        return [one for part in parts for one in part[0]], [one for part in parts for one in part[1]]
    if node.name == "quotient":
        (above, below), (under, over) = _factors(node.operands[0]), _factors(node.operands[1])
        return above + over, below + under
    return [node], []


def _undone_product(node: MathOperation) -> Iterator[str]:
    above, below = _factors(node)
    if rational(node) is not None:
        return
    numbers = [one for one in above if _is_numeric(one)]
    under = [one for one in below if _is_numeric(one)]
    if len(numbers) > 1 or len(under) > 1:
        yield "product"
    roots = [one for one in above + below if _is_root(one)]
    sums = [one for one in above + below if isinstance(one, MathOperation) and one.name == "sum" and not variables(one)]
    symbols = Counter(name for one in above + below for name in _symbol_base(one))
    if len(roots) > 1 or len(sums) > 1 or max(symbols.values(), default=0) > 1:
        yield "product"


def _is_numeric(node: MathNode) -> bool:
    return rational(node) is not None or _ten_power(node)


def _ten_power(node: MathNode) -> bool:
    return (
        isinstance(node, MathOperation)
        and node.name == "power"
        and node.operands[0] == NumberLiteral(Fraction(10))
        and isinstance(node.operands[1], NumberLiteral)
        and node.operands[1].value.denominator == 1
    )


def _is_root(node: MathNode) -> bool:
    """A root of a number."""
    if not isinstance(node, MathOperation) or variables(node):
        return False
    exponent = rational(node.operands[1]) if node.name == "power" else None
    return node.name == "root" or (exponent is not None and exponent.denominator != 1)


def _symbol_base(node: MathNode) -> list[str]:
    if isinstance(node, NamedSymbol):
        return [node.name]
    if isinstance(node, MathOperation) and node.name == "power" and isinstance(node.operands[0], NamedSymbol):
        return [node.operands[0].name]
    return []


def _undone_quotient(over: MathNode, under: MathNode) -> Iterator[str]:
    above, below = rational(over), rational(under)
    if below is not None and above is not None:
        if not below or above.denominator != 1 or below.denominator != 1 or above % below == 0:
            yield "division"
        elif math.gcd(above.numerator, below.numerator) != 1:
            yield UNREDUCED
    elif variables(under):
        yield "division by an expression"


def _undone_power(base: MathNode, exponent: MathNode) -> Iterator[str]:
    known, raised = rational(base), rational(exponent)
    if variables(exponent) or variables(base):
        if raised in (0, 1):
            yield "power"
        elif raised is not None and raised.denominator != 1:
            yield "root of an expression"
        if (raised is not None and raised < 0) or (isinstance(exponent, MathOperation) and exponent.name == "negation"):
            yield "division by an expression"
        return
    if known is not None and raised is not None:
        if raised.denominator != 1:
            yield from _undone_root(base, Fraction(raised.denominator))
        elif known != 10:
            yield "power"
    elif isinstance(base, NamedSymbol) and base.name in CONSTANTS - {"i"} and raised not in (None, 0, 1):
        return
    else:
        yield "power"


def _undone_root(radicand: MathNode, degree: Fraction | None) -> Iterator[str]:
    if variables(radicand):
        yield "root of an expression"
        return
    known = rational(radicand)
    if known is None or degree is None or degree.denominator != 1:
        return
    number = int(degree)
    if known < 0 or (_perfect(known.numerator, number) and _perfect(known.denominator, number)):
        yield "root"


def _perfect(number: int, degree: int) -> bool:
    """Whether a natural number is a power with this exponent. By bisection: exact for any size."""
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low**degree == number
