"""Equations and inequalities up to rearrangement, and expressions up to their arbitrary constants."""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

from hone.rewards.mathematics.evaluation import real_value, same_value
from hone.rewards.mathematics.sets import turned
from hone.rewards.mathematics.tree import (
    ComparisonChain,
    MathNode,
    MathOperation,
    MeasuredQuantity,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
    substituted,
    variables,
    walk,
)

MAX_CONSTANTS = 3
"""Most arbitrary constants whose names are exchanged."""
_ARBITRARY = re.compile(r"C|[Cc]_[0-9]")
_RENAMED = re.compile(r"[CcK]|[CcKkAB]_[0-9]")
_RENAMED_PAIR = re.compile(r"[A-DKcabk]|[A-Za-z]_[0-9]")
_ONE = NumberLiteral(Fraction(1))


# ------------------------------------------------------------------------------------------------------------ equations
def same_relation(reference: ComparisonChain, answer: ComparisonChain) -> bool:
    """Whether two equations, or two inequalities, are the same up to rearrangement: `y = 2x` and `2y - 4x = 0`, also
    with cleared denominators: `y = 1/x` and `xy = 1`. An inequality may be multiplied by positive numbers only."""
    if len(reference.relations) != 1 or len(answer.relations) != 1:
        return False
    if answer.relations[0][0] != reference.relations[0][0] and reference.relations[0] != "=":
        answer = turned(answer)
    if reference.relations != answer.relations or reference.relations[0] not in ("=", "<", "<=", ">", ">="):
        return False
    sides = (*reference.sides, *answer.sides)
    if any(isinstance(one, ValueCollection | MeasuredQuantity) for side in sides for one in walk(side)):
        return False
    one, other = _difference(*reference.sides), _difference(*answer.sides)
    names = variables(one)
    if variables(other) != names or not names:
        return False
    factor = _factor_between(one, other, names)
    if reference.relations != ("=",):
        return factor is not None and factor > 0
    return factor is not None or _factor_between(_fraction(one)[0], _fraction(other)[0], names) is not None


def _difference(left: MathNode, right: MathNode) -> MathNode:
    return MathOperation("sum", (left, MathOperation("negation", (right,))))


def _factor_between(one: MathNode, other: MathNode, names: frozenset[str]) -> Fraction | None:
    """The number that one expression is times the other; None where they are not proportional."""
    point = {name: NumberLiteral(Fraction(7 + 4 * place, 3)) for place, name in enumerate(sorted(names))}
    above, below = (real_value(substituted(node, point)) for node in (one, other))
    if not above or not below:
        return None
    scaled = MathOperation("product", (NumberLiteral(above / below), other))
    return above / below if same_value(one, scaled, names) is True else None


def _fraction(node: MathNode) -> tuple[MathNode, MathNode]:
    """Numerator and denominator of an expression as one fraction."""
    match node:
        case MathOperation(name="negation", operands=(inner,)):
            above, below = _fraction(inner)
            return MathOperation("negation", (above,)), below
        case MathOperation(name="sum", operands=terms):
            total, under = _fraction(terms[0])
            for term in terms[1:]:
                above, below = _fraction(term)
                if below == under:
                    total = MathOperation("sum", (total, above))
                    continue
                total = MathOperation("sum", (_times(total, below), _times(above, under)))
                under = _times(under, below)
            return total, under
        case MathOperation(name="product", operands=factors):
            total, under = _ONE, _ONE
            for factor in factors:
                above, below = _fraction(factor)
                total, under = _times(total, above), _times(under, below)
            return total, under
        case MathOperation(name="quotient", operands=(over, divisor)):
            (above, below), (upper, lower) = _fraction(over), _fraction(divisor)
            return _times(above, lower), _times(below, upper)
        case MathOperation(name="power", operands=(base, NumberLiteral(value=exponent))) if exponent.denominator == 1:
            above, below = _fraction(base)
            if exponent < 0:
                above, below, exponent = below, above, -exponent
            return _raised(above, exponent), _raised(below, exponent)
        case _:
            return node, _ONE


def _times(left: MathNode, right: MathNode) -> MathNode:
    if left == _ONE or right == _ONE:
        return right if left == _ONE else left
    return MathOperation("product", (left, right))


def _raised(base: MathNode, exponent: Fraction) -> MathNode:
    return base if base == _ONE else MathOperation("power", (base, NumberLiteral(exponent)))


# -------------------------------------------------------------------------------------------------- arbitrary constants
def same_up_to_constants(reference: MathNode, answer: MathNode) -> bool:
    r"""Whether two expressions are equal but for arbitrary constants of the reference, `C` or `C_1`: their names, and
    what a constant that is added takes up. `\frac{x^2}{2} + C` is `\frac{x^2 + 1}{2} + c`."""
    constants = sorted(name for name in variables(reference) if _ARBITRARY.fullmatch(name))
    if not constants or len(constants) > MAX_CONSTANTS:
        return False
    for renamed in _renamed(reference, answer, constants):
        if same_value(reference, renamed, variables(reference)) is True:
            return True
        if len(constants) == 1 and _same_antiderivative(reference, renamed, constants[0]):
            return True
    return False


def _renamed(reference: MathNode, answer: MathNode, constants: list[str]) -> Iterator[MathNode]:
    """The answer with its constants under the reference's names, in every order."""
    others = variables(reference) - set(constants)
    names = sorted(variables(answer) - others)
    pattern = _RENAMED if len(constants) == 1 else _RENAMED_PAIR
    if len(names) == len(constants) and all(pattern.fullmatch(name) for name in names):
        for order in permutations(constants):
            pairs = zip(names, order, strict=True)
            yield substituted(answer, {name: NamedSymbol(constant) for name, constant in pairs})


def _same_antiderivative(reference: MathNode, answer: MathNode, constant: str) -> bool:
    """Whether two sums with this constant as a term, and nowhere else, differ by a number."""
    rests: list[MathNode] = []
    for node in (reference, answer):
        if not isinstance(node, MathOperation) or node.name != "sum" or NamedSymbol(constant) not in node.operands:
            return False
        terms = tuple(term for term in node.operands if constant not in variables(term))
        if len(terms) != len(node.operands) - 1:
            return False
        rests.append(MathOperation("sum", terms))
    one, other = rests
    names = variables(one)
    if variables(other) != names or not names:
        return False
    gap = _difference(one, other)
    point = {name: NumberLiteral(Fraction(7 + 4 * place, 3)) for place, name in enumerate(sorted(names))}
    return same_value(one, MathOperation("sum", (other, substituted(gap, point))), names) is True
