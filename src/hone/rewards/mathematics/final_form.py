"""Final form: which operations an answer leaves undone.

Numbers, fractions, roots that do not simplify, `\\pi`, powers of `e`, sums and products of unlike terms, and powers of
ten are final. `2+3`, `4/2`, `\\sqrt{9}`, `5!`, `2^{10}`, `x+x` or a function of a number are not: work is left.
"""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import TypeAlias

from hone.rewards.mathematics.tree import (
    CONSTANTS,
    MAX_EXPONENT,
    ComparisonChain,
    MathNode,
    MathOperation,
    NamedSymbol,
    NumberLiteral,
    variables,
    walk,
)

# ------------------------------------------------------------------------------------------------------------ monomials
# Terms as a rational coefficient times a monomial: factors with exponents. Like terms share their monomial.
#
# Roots of numbers are reduced: `\sqrt{18}` is 3 times the monomial of `\sqrt{2}`, and so is `6/\sqrt{2}`.

Monomial: TypeAlias = frozenset[tuple[str, Fraction]]

MAX_MONOMIALS = 64
"""Most monomials of an expanded product; a longer one is a factor of its own."""
MAX_DRAWN_BITS = 2000
"""Longest number, in bits, that is drawn out of a root."""
_TRIAL_FACTORS = 1000


def rational(node: MathNode) -> Fraction | None:
    """The value of a number, of a fraction of two numbers, of a power of ten, or of a negative power of an integer;
    None for anything else."""
    match node:
        case NumberLiteral(value=value):
            return value
        case MathOperation(name="negation", operands=(inner,)):
            value = rational(inner)
            return None if value is None else -value
        case MathOperation(name="quotient", operands=(over, under)):
            above, below = rational(over), rational(under)
            return above / below if above is not None and below else None
        case MathOperation(name="power", operands=(NumberLiteral(value=base), NumberLiteral(value=exponent))):
            short = exponent.denominator == 1 and abs(exponent) <= MAX_EXPONENT
            return base ** int(exponent) if short and (base == 10 or _is_reciprocal(base, exponent)) else None
        case _:
            return None


def _is_reciprocal(base: Fraction, exponent: Fraction) -> bool:
    """Whether a power is a way to write a fraction: `2^{-3}`."""
    return base.denominator == 1 and abs(base) > 1 and exponent < 0 and exponent.denominator == 1


def _factors_of(node: MathNode) -> tuple[list[MathNode], list[MathNode]]:
    """Factors of a term, above and below the line. A rational number is one factor."""
    if rational(node) is not None or not isinstance(node, MathOperation):
        return [node], []
    if node.name == "negation":
        return _factors_of(node.operands[0])
    if node.name == "product":
        parts = [_factors_of(one) for one in node.operands]
        return [one for part in parts for one in part[0]], [one for part in parts for one in part[1]]
    if node.name == "quotient":
        (above, below), (under, over) = _factors_of(node.operands[0]), _factors_of(node.operands[1])
        return above + over, below + under
    return [node], []


def _coefficient(term: MathNode) -> Fraction:
    """The rational factor of a term, without its sign; of a root the part that can be drawn."""
    total = Fraction(1)
    above, below = _factors_of(term)
    for one in above:
        degree, radicand = _root_of_number(one)
        total *= _drawn(radicand.numerator, degree)[0] if degree else rational(one) or 1
    for one in below:
        total /= rational(one) or 1
    return abs(total)


def _monomials(term: MathNode) -> list[Monomial]:
    """The monomials of a term once its brackets are expanded."""
    above, below = _factors_of(term)
    products: list[Monomial] = [frozenset()]
    for factor in above:
        inner = _bracket(factor)
        if rational(factor) is None and len(inner) * len(products) <= MAX_MONOMIALS:
            products = [_times(one, other) for one in products for other in inner]
        elif rational(factor) is None:
            products = [_times(one, _single(factor, 1)) for one in products]
    for factor in below:
        if rational(factor) is None:
            products = [_times(one, _single(factor, -1)) for one in products]
    return products


def _bracket(factor: MathNode) -> list[Monomial]:
    """The monomials of a sum; of a power of a sum, the pure powers of its terms."""
    match factor:
        case MathOperation(name="sum", operands=terms):
            return [one for term in terms for one in _monomials(term)]
        case MathOperation(name="power", operands=(MathOperation(name="sum", operands=terms), exponent)):
            raised = rational(exponent)
            if raised is None or raised.denominator != 1 or raised < 1:
                return [_single(factor, 1)]
            return [
                frozenset((base, power * raised) for base, power in one) for term in terms for one in _monomials(term)
            ]
        case _:
            return [_single(factor, 1)]


def _single(factor: MathNode, sign: int) -> Monomial:
    """The monomial of one factor, a base with its exponent."""
    degree, radicand = _root_of_number(factor)
    if degree:
        reduced = _drawn(radicand.numerator * radicand.denominator ** (degree - 1), degree)[1]
        return frozenset({(f"root {degree} of {reduced}", Fraction(1))}) if reduced != 1 else frozenset()
    if isinstance(factor, MathOperation) and factor.name in ("power", "root"):
        exponent = rational(factor.operands[1])
        if exponent:
            raised = exponent if factor.name == "power" else 1 / exponent
            return frozenset({(repr(factor.operands[0]), sign * raised)})
    return frozenset({(repr(factor), Fraction(sign))})


def _times(left: Monomial, right: Monomial) -> Monomial:
    total: dict[str, Fraction] = dict(left)
    for base, power in right:
        total[base] = total.get(base, Fraction(0)) + power
    return frozenset((base, power) for base, power in total.items() if power)


def _root_of_number(node: MathNode) -> tuple[int, Fraction]:
    r"""Degree and radicand of a root of a positive number, `\sqrt[3]{2}` or `2^{1/3}`; degree 0 for anything else."""
    if not isinstance(node, MathOperation) or node.name not in ("root", "power"):
        return 0, Fraction(0)
    radicand, exponent = (rational(one) for one in node.operands)
    if radicand is None or not exponent or radicand <= 0:
        return 0, Fraction(0)
    degree = exponent if node.name == "root" else 1 / exponent
    if degree.denominator != 1 or not 2 <= degree <= MAX_EXPONENT:
        return 0, Fraction(0)
    return int(degree), radicand


def _drawn(number: int, degree: int) -> tuple[int, int]:
    r"""The natural factor that can be drawn out of a root, and the rest: 2 and 3 of `\sqrt{12}`; small factors only."""
    outer = 1
    if number.bit_length() > MAX_DRAWN_BITS:
        return outer, number
    for factor in range(2, _TRIAL_FACTORS):
        power = factor**degree
        if power > number:
            break
        while number % power == 0:
            number //= power
            outer *= factor
    return outer, number


# ----------------------------------------------------------------------------------------------------------- final form

UNREDUCED = "fraction that is not in lowest terms"
_ONE_DEGREE = {
    **dict.fromkeys(("log", "ln"), "logarithm"),
    **dict.fromkeys(("sin", "cos", "tan", "cot", "sec", "csc"), "trigonometric function"),
    **dict.fromkeys(("arcsin", "arccos", "arctan"), "inverse trigonometric function"),
    **dict.fromkeys(("sinh", "cosh", "tanh"), "hyperbolic function"),
    **{name: name for name in ("factorial", "binomial", "absolute value", "floor", "ceiling", "determinant")},
    "degrees": "angle in degrees",
}


_CLOSED_IN_VARIABLES = frozenset({"factorial", "binomial", "absolute value", "floor", "ceiling"})
"""Operations that are final where they have a variable: `|x|`, `n!`."""


def _undone_operations(node: MathNode) -> frozenset[str]:
    """Names of the operations in a tree that are left undone; empty for an answer in final form."""
    return frozenset(
        name
        for one in walk(node)
        if isinstance(one, MathOperation)
        for name in _undone(one)
        if name not in _CLOSED_IN_VARIABLES or not variables(one)
    )


def lacks(answer: MathNode, reference: MathNode) -> frozenset[str]:
    """Undone operations of an answer that its reference does not have."""
    allowed = set(_undone_operations(reference))
    for one in walk(reference):
        match one:
            case MathOperation(name="binomial"):
                allowed |= {"factorial", "division", "product", "division by an expression"}
            case MathOperation(name="tan" | "cot" | "sec" | "csc" | "sinh" | "cosh" | "tanh"):
                allowed.add("division by an expression")
            case MathOperation(name="power", operands=(NamedSymbol(name="e"), exponent)) if NamedSymbol("i") in walk(
                exponent
            ):
                allowed.add("trigonometric function")
            case ComparisonChain(relations=("=",)) if len(variables(one)) > 1:
                allowed |= {"division by an expression", "sum of fractions", "power", "sum"}
            case _:
                pass
    if "trigonometric function" in allowed and NamedSymbol("i") in walk(reference):
        allowed.add("power")  # the polar form, with e
    missing = _undone_operations(answer) - allowed
    has_fraction = any(
        (isinstance(one, MathOperation) and one.name == "quotient")
        or (isinstance(one, NumberLiteral) and one.value.denominator != 1 and not one.digits)
        for one in walk(reference)
    )
    return missing - {UNREDUCED} if has_fraction else missing


def _undone(node: MathOperation) -> Iterator[str]:
    if node.name != "negation" and any(_is_infinite(one) for one in node.operands):
        yield "calculation with infinity"
    match node:
        case MathOperation(name="sum", operands=terms):
            yield from _undone_sum(terms)
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


def _is_infinite(node: MathNode) -> bool:
    if isinstance(node, MathOperation) and node.name == "negation":
        return _is_infinite(node.operands[0])
    return node == NamedSymbol("infty")


def _undone_sum(terms: tuple[MathNode, ...]) -> Iterator[str]:
    """Like terms, also behind brackets (`x + x`, `3(x+2) + 4(x-1)`, `\\sqrt{18} - \\sqrt{2}`), and two fractions."""
    if any(rational(term) == 0 for term in terms):
        yield "sum"
    keys = Counter(key for term in terms for key in set(_monomials(term)))
    if max(keys.values(), default=0) > 1:
        yield "sum"
    if sum(any(variables(one) for one in _factors_of(term)[1]) for term in terms) > 1:
        yield "sum of fractions"
    if sum(_is_logarithm(term) for term in terms) > 1:
        yield "sum of logarithms"


def _is_logarithm(term: MathNode) -> bool:
    """A logarithm of a number, without a factor."""
    if isinstance(term, MathOperation) and term.name == "negation":
        return _is_logarithm(term.operands[0])
    return isinstance(term, MathOperation) and term.name in ("log", "ln") and rational(term.operands[0]) is not None


def _undone_product(node: MathOperation) -> Iterator[str]:
    above, below = _factors_of(node)
    if rational(node) is not None:
        return
    if any(rational(one) in (0, 1) for one in above) and len(above) > 1:
        yield "product"
    numbers = [sum(rational(one) is not None for one in side) for side in (above, below)]
    roots = [one for one in above + below if _root_of_number(one)[0]]
    sums = [one for one in above + below if isinstance(one, MathOperation) and one.name == "sum" and not variables(one)]
    symbols = Counter(name for one in above + below for name in _symbol_base(one))
    if max(*numbers, len(roots), len(sums), *symbols.values()) > 1:
        yield "product"


def _symbol_base(node: MathNode) -> list[str]:
    if isinstance(node, NamedSymbol):
        return [node.name]
    if isinstance(node, MathOperation) and node.name == "power" and isinstance(node.operands[0], NamedSymbol):
        return [node.operands[0].name]
    return []


def _undone_quotient(over: MathNode, under: MathNode) -> Iterator[str]:
    if variables(under):
        yield "division by an expression"
        return
    above, below = rational(over), rational(under)
    if below is None:
        if isinstance(under, MathOperation) and under.name == "sum":
            yield "division by a sum"
        return
    if below == 0 or (above is not None and (above.denominator != 1 or below.denominator != 1)):
        yield "division"
        return
    terms = over.operands if isinstance(over, MathOperation) and over.name == "sum" else (over,)
    factors = [abs(above)] if above is not None else [_coefficient(term) for term in terms]
    if below.denominator == 1 and all(one.denominator == 1 for one in factors):
        common = math.gcd(int(below), *(int(one) for one in factors))
        if common == abs(below):
            yield "division"
        elif common != 1:
            yield UNREDUCED


def _undone_power(base: MathNode, exponent: MathNode) -> Iterator[str]:
    known, raised = rational(base), rational(exponent)
    if variables(exponent) or variables(base):
        yield from _undone_power_of_variables(base, exponent)
    elif known is not None and raised is not None:
        if raised.denominator != 1:
            yield from _undone_root(base, Fraction(raised.denominator))
        elif known != 10 and not _is_reciprocal(known, raised):
            yield "power"
    elif not (isinstance(base, NamedSymbol) and base.name in CONSTANTS - {"i"} and raised not in (None, 0, 1)):
        yield "power"


def _undone_power_of_variables(base: MathNode, exponent: MathNode) -> Iterator[str]:
    raised = rational(exponent)
    if raised is not None and raised.denominator != 1:
        yield "root of an expression"
    elif raised is not None and isinstance(base, MathOperation):
        scaled = base.name in ("product", "quotient") and _coefficient(base) != 1
        root = base.name == "power" and (rational(base.operands[1]) or 0).denominator != 1
        if (base.name in ("power", "negation") and not root) or scaled:
            yield "power"
    if raised in (0, 1):
        yield "power"
    if (raised is not None and raised < 0) or (isinstance(exponent, MathOperation) and exponent.name == "negation"):
        yield "division by an expression"


def _undone_root(radicand: MathNode, degree: Fraction | None) -> Iterator[str]:
    if variables(radicand):
        yield "root of an expression"
        return
    known = rational(radicand)
    if known is None or degree is None or degree.denominator != 1:
        return
    number = int(degree)
    if known < 0 and number % 2:
        known = -known
    if (
        not 2 <= number <= MAX_EXPONENT
        or known < 0
        or (_perfect(known.numerator, number) and _perfect(known.denominator, number))
    ):
        yield "root"


def _perfect(number: int, degree: int) -> bool:
    """Whether a natural number is a power with this exponent. By bisection: exact for any size."""
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low**degree == number
