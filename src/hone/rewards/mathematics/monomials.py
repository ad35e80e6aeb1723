"""Terms as a rational coefficient times a monomial: factors with exponents. Like terms share their monomial.

Roots of numbers are reduced: `\\sqrt{18}` is 3 times the monomial of `\\sqrt{2}`, and so is `6/\\sqrt{2}`.
"""

from fractions import Fraction
from typing import TypeAlias

from hone.rewards.mathematics.limits import MAX_EXPONENT
from hone.rewards.mathematics.tree import MathNode, MathOperation, NumberLiteral

Monomial: TypeAlias = frozenset[tuple[str, Fraction]]

MAX_MONOMIALS = 64
"""Most monomials of an expanded product; a longer one is a factor of its own."""
MAX_DRAWN_BITS = 2000
"""Longest number, in bits, that is drawn out of a root."""
_TRIAL_FACTORS = 1000


def rational(node: MathNode) -> Fraction | None:
    """The value of a number, of a fraction of two numbers, or of a power of ten; None for anything else."""
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
            short = base == 10 and exponent.denominator == 1 and abs(exponent) <= MAX_EXPONENT
            return base ** int(exponent) if short else None
        case _:
            return None


def factors_of(node: MathNode) -> tuple[list[MathNode], list[MathNode]]:
    """Factors of a term, above and below the line. A rational number is one factor."""
    if rational(node) is not None or not isinstance(node, MathOperation):
        return [node], []
    if node.name == "negation":
        return factors_of(node.operands[0])
    if node.name == "product":
        parts = [factors_of(one) for one in node.operands]
        return [one for part in parts for one in part[0]], [one for part in parts for one in part[1]]
    if node.name == "quotient":
        (above, below), (under, over) = factors_of(node.operands[0]), factors_of(node.operands[1])
        return above + over, below + under
    return [node], []


def coefficient(term: MathNode) -> Fraction:
    """The rational factor of a term, without its sign; of a root the part that can be drawn."""
    total = Fraction(1)
    above, below = factors_of(term)
    for one in above:
        degree, radicand = root_of_number(one)
        total *= _drawn(radicand.numerator, degree)[0] if degree else rational(one) or 1
    for one in below:
        total /= rational(one) or 1
    return abs(total)


def monomials(term: MathNode) -> list[Monomial]:
    """The monomials of a term once its brackets are expanded."""
    above, below = factors_of(term)
    found: list[Monomial] = [frozenset()]
    for factor in above:
        inner = _bracket(factor)
        if rational(factor) is None and len(inner) * len(found) <= MAX_MONOMIALS:
            found = [_times(one, other) for one in found for other in inner]
        elif rational(factor) is None:
            found = [_times(one, _single(factor, 1)) for one in found]
    for factor in below:
        if rational(factor) is None:
            found = [_times(one, _single(factor, -1)) for one in found]
    return found


def _bracket(factor: MathNode) -> list[Monomial]:
    """The monomials of a sum; of a power of a sum, the pure powers of its terms."""
    match factor:
        case MathOperation(name="sum", operands=terms):
            return [one for term in terms for one in monomials(term)]
        case MathOperation(name="power", operands=(MathOperation(name="sum", operands=terms), exponent)):
            raised = rational(exponent)
            if raised is None or raised.denominator != 1 or raised < 1:
                return [_single(factor, 1)]
            return [
                frozenset((base, power * raised) for base, power in one) for term in terms for one in monomials(term)
            ]
        case _:
            return [_single(factor, 1)]


def _single(factor: MathNode, sign: int) -> Monomial:
    """The monomial of one factor, a base with its exponent."""
    degree, radicand = root_of_number(factor)
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


def root_of_number(node: MathNode) -> tuple[int, Fraction]:
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
