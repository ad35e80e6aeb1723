"""Equality of two answers as trees: collections by their items, quantities by their units, numbers by their digits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import mpmath
from mpmath.libmp import NoConvergence

from hone.rewards.mathematics.final_form import rational
from hone.rewards.mathematics.tree import (
    ComparisonChain,
    MathNode,
    MathOperation,
    MeasuredQuantity,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
    variables,
    walk,
)

# ----------------------------------------------------------------------------------------------------------- evaluation
# Values of expressions: exact for rational arithmetic, else complex numbers of mpmath with as many digits as needed.
#
# Two expressions are equal when they agree at fixed points, to 50 digits: an identity test (Schwartz 1980; Zippel 1979)
# that costs a millisecond, knows every function below and cannot run away, where a symbolic simplifier may.

MAX_BITS = 100_000
"""Longest exact power, in bits; longer ones are rounded."""
MAX_ARGUMENT = 1_000_000
"""Largest exponent and argument of a function."""
MAX_DIGITS = 1000
"""Most decimal digits of inexact arithmetic."""
_PRECISE_DIGITS = 50
_GUARD_DIGITS = 15

Value: TypeAlias = Any  # Fraction, or mpmath's mpf and mpc, which have no types


class _UndefinedValueError(Exception):
    """The expression has no value at this point, or one that is too large."""


def evaluate(node: MathNode, point: Mapping[str, Value], *, log_base: int = 0) -> Value:
    """The value at a point: a Fraction, or an mpmath number at the present `mpmath.mp.dps`. `log_base` is the base of
    `log` where none is written; 0 is the natural logarithm. Raises _UndefinedValueError."""
    try:
        return _value(node, point, log_base)
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, NoConvergence) as error:
        raise _UndefinedValueError(str(error)) from None


def _value(node: MathNode, point: Mapping[str, Value], log_base: int) -> Value:
    match node:
        case NumberLiteral(value=value):
            return value
        case NamedSymbol(name=name):
            return point[name] if name in point else _CONSTANTS[name]()
        case MathOperation(name="log", operands=operands):
            values = [_inexact(_value(operand, point, log_base)) for operand in operands]
            return mpmath.log(*values) if len(values) == 2 or not log_base else mpmath.log(values[0], log_base)
        case MathOperation(name=name, operands=operands):
            if name not in _ARITHMETIC:
                raise _UndefinedValueError(f"{name} of a collection")
            return _ARITHMETIC[name](*(_value(operand, point, log_base) for operand in operands))
        case _:
            raise _UndefinedValueError("a collection has no value")


def _inexact(value: Value) -> Value:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _pair(left: Value, right: Value) -> tuple[Value, Value]:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left, right
    return _inexact(left), _inexact(right)


def _sum(*values: Value) -> Value:
    total: Value = Fraction(0)
    for value in values:
        left, right = _pair(total, value)
        total = left + right
    return total


def _product(*values: Value) -> Value:
    total: Value = Fraction(1)
    for value in values:
        left, right = _pair(total, value)
        total = left * right
    return total


def _quotient(left: Value, right: Value) -> Value:
    left, right = _pair(left, right)
    return left / right


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent.numerator) <= MAX_BITS:
            return base**exponent.numerator
    base, exponent = _inexact(base), _inexact(exponent)
    _check_size(exponent)
    if base == 0 and mpmath.re(exponent) <= 0:
        raise _UndefinedValueError("a power of zero")
    if mpmath.isinf(base) or mpmath.isinf(exponent):
        raise _UndefinedValueError("a power of infinity")
    if base != 0:
        _check_size(exponent * mpmath.log(base))
    return mpmath.power(base, exponent)


def _root(radicand: Value, degree: Value) -> Value:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= 1000:
        return _power(radicand, _quotient(Fraction(1), degree))
    radicand = _inexact(radicand)
    if mpmath.im(radicand) == 0 and mpmath.re(radicand) < 0 and degree % 2:
        return -mpmath.root(-radicand, int(degree))  # the real root, as schools define it
    return mpmath.root(radicand, int(degree))


def _check_size(value: Value) -> None:
    if abs(value) > MAX_ARGUMENT:
        raise _UndefinedValueError("a number that is too large")


def _of_one(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        value = _inexact(value)
        _check_size(value)
        return function(value)

    return apply


def _of_real(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        value = _inexact(value)
        if mpmath.im(value) != 0:
            raise _UndefinedValueError("rounding of a complex number")
        return function(mpmath.re(value))

    return apply


def _binomial(above: Value, below: Value) -> Value:
    above, below = _inexact(above), _inexact(below)
    _check_size(abs(above) + abs(below))
    return mpmath.binomial(above, below)


_CONSTANTS: dict[str, Callable[[], Value]] = {
    "pi": lambda: +mpmath.mp.pi,
    "e": lambda: +mpmath.mp.e,
    "i": lambda: mpmath.mpc(0, 1),
    "infty": lambda: mpmath.inf,
}
_ARITHMETIC: dict[str, Callable[..., Value]] = {
    "sum": _sum,
    "product": _product,
    "negation": lambda value: -value,
    "quotient": _quotient,
    "power": _power,
    "root": _root,
    "absolute value": abs,
    "factorial": _of_one(mpmath.factorial),
    "binomial": _binomial,
    "degrees": lambda value: _inexact(value) * mpmath.pi / 180,
    "floor": _of_real(mpmath.floor),
    "ceiling": _of_real(mpmath.ceil),
    "ln": lambda value: mpmath.log(_inexact(value)),
    "sin": _of_one(mpmath.sin),
    "cos": _of_one(mpmath.cos),
    "tan": _of_one(mpmath.tan),
    "cot": _of_one(mpmath.cot),
    "sec": _of_one(mpmath.sec),
    "csc": _of_one(mpmath.csc),
    "arcsin": _of_one(mpmath.asin),
    "arccos": _of_one(mpmath.acos),
    "arctan": _of_one(mpmath.atan),
    "sinh": _of_one(mpmath.sinh),
    "cosh": _of_one(mpmath.cosh),
    "tanh": _of_one(mpmath.tanh),
}

_POINTS = (  # magnitude and sign of the variables at each point
    (0.3, 1),
    (1.7, 1),
    (11.0, 1),
    (0.4, -1),
    (2.3, -1),
    (7.0, 0),
)


def _same_value(left: MathNode, right: MathNode, names: frozenset[str]) -> bool | None:
    """Whether two expressions in the variables `names` are equal wherever the left one is real (where it is never real:
    wherever it has a value). None when the left one has no value anywhere. `log` is natural in both, or decimal in
    both."""
    with mpmath.workdps(_working_digits(left, right) + _GUARD_DIGITS):
        results = [_same_at_points(left, right, names, base) for base in (0, 10)]
    return True if True in results else results[0]


def _working_digits(*nodes: MathNode) -> int:
    """Decimal digits of the arithmetic: enough for the longest numbers, and 50 more."""
    numbers = [one.value for node in nodes for one in walk(node) if isinstance(one, NumberLiteral)]
    bits = sum(max(value.numerator.bit_length(), value.denominator.bit_length()) for value in numbers)
    return min(_PRECISE_DIGITS + bits // 3, MAX_DIGITS)


def _same_at_points(left: MathNode, right: MathNode, names: frozenset[str], log_base: int) -> bool | None:
    complex_ones: list[bool] = []
    real_ones: list[bool] = []
    for magnitude, sign in _POINTS if names else _POINTS[:1]:
        point = {
            name: (sign or (-1) ** place) * magnitude * mpmath.exp(mpmath.mpf(place + 1) / 7)  # transcendental
            for place, name in enumerate(sorted(names))
        }
        try:
            expected = evaluate(left, point, log_base=log_base)
        except _UndefinedValueError:
            continue
        real = mpmath.im(_inexact(expected)) == 0
        (real_ones if real else complex_ones).append(_agrees(expected, right, point, log_base))
    decisive = real_ones or complex_ones
    return all(decisive) if decisive else None


def _agrees(expected: Value, right: MathNode, point: Mapping[str, Value], log_base: int) -> bool:
    try:
        actual = evaluate(right, point, log_base=log_base)
    except _UndefinedValueError:
        return False
    if isinstance(expected, Fraction) and isinstance(actual, Fraction):
        return expected == actual
    expected, actual = _inexact(expected), _inexact(actual)
    if mpmath.isinf(expected) or mpmath.isinf(actual):
        return expected == actual
    scale = max(abs(expected), abs(actual))
    return bool(abs(expected - actual) <= scale * mpmath.mpf(10) ** -_PRECISE_DIGITS)


def _real_value(node: MathNode) -> Fraction | None:
    """The value of an expression without variables, to 50 digits; None where it is not real or not finite."""
    digits = _working_digits(node)
    with mpmath.workdps(digits):
        try:
            value = evaluate(node, {})
        except _UndefinedValueError:
            return None
        if isinstance(value, Fraction):
            return value
        real = mpmath.im(value) == 0 and mpmath.isfinite(mpmath.re(value))
        return Fraction(str(mpmath.nstr(mpmath.re(value), digits))) if real else None


# ------------------------------------------------------------------------------------------------------------ same form
def _ordered(node: MathNode) -> str:
    """A text that two expressions share exactly when they differ in the order of terms and factors only."""
    value = rational(node)
    if value is not None:
        return str(value)
    match node:
        case NamedSymbol(name=name):
            return name
        case MathOperation(name="sum"):
            return _joined("+", _terms(node))
        case MathOperation(name="product" | "quotient" | "negation"):
            number, factors = _factors(node)
            return _joined("*", [*([] if number == 1 else [str(number)]), *factors])
        case MathOperation(name="root", operands=(radicand, degree)):
            inverse = MathOperation("quotient", (NumberLiteral(Fraction(1)), degree))
            return f"power({_ordered(radicand)},{_ordered(inverse)})"
        case MathOperation(name=name, operands=operands):
            return f"{name}({','.join(_ordered(operand) for operand in operands)})"
        case _:
            return repr(node)


def _joined(sign: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({sign.join(sorted(parts))})"


def _terms(node: MathNode) -> list[str]:
    if isinstance(node, MathOperation) and node.name == "sum":
        return [term for one in node.operands for term in _terms(one)]
    return [_ordered(node)]


def _factors(node: MathNode) -> tuple[Fraction, list[str]]:
    """The rational factor, and the others in words; a factor below the line as a power of -1."""
    value = rational(node)
    if value is not None:
        return value, []
    match node:
        case MathOperation(name="negation", operands=(inner,)):
            number, factors = _factors(inner)
            return -number, factors
        case MathOperation(name="product", operands=operands):
            parts = [_factors(one) for one in operands]
            number = Fraction(1)
            for part in parts:
                number *= part[0]
            return number, [factor for part in parts for factor in part[1]]
        case MathOperation(name="quotient", operands=(over, under)):
            (above, factors), (below, inverses) = _factors(over), _factors(under)
            if below:
                return above / below, [*factors, *(f"power({factor},-1)" for factor in inverses)]
            return Fraction(1), [_ordered(over), f"power({_ordered(under)},-1)"]
        case _:
            return Fraction(1), [_ordered(node)]


# ------------------------------------------------------------------------------------------------------------- equality

ROUNDED_DIGITS = 4
"""A decimal with at least so many significant digits may be a rounded value."""
FLOAT_DIGITS = 15
"""A decimal with at least so many significant digits is a floating-point number printed in full."""
SHORTEST_ROUNDING = 6
"""Significant digits that an answer to a floating-point number needs."""
MAX_PAIRED = 30
"""Items of an unordered collection that are compared each with each."""

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_UNORDERED = frozenset({"list", "set", "union"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityRules:
    """How strictly two answers are compared."""

    ignore_units: bool = False
    relative_tolerance: float = 0.0
    same_form: bool = False
    """Expressions must be the same up to the order of terms and factors."""
    any_form: bool = False
    """Operations may be left undone."""


def same_answer(reference: MathNode, answer: MathNode, rules: EqualityRules) -> bool:
    """Whether an answer is the reference's value."""
    reference, answer = _as_membership(reference), _as_membership(answer)
    reference, answer = _without_name(reference, answer), _without_name(answer, reference)
    match reference, answer:
        case ComparisonChain(), ComparisonChain():
            return _same_comparison(reference, answer, rules)
        case (ComparisonChain(), ValueCollection()) | (ValueCollection(), ComparisonChain()):
            one, other = _as_interval(reference), _as_interval(answer)
            return one is not None and other is not None and _same_collection(one, other, rules)
        case ValueCollection(), ValueCollection():
            return _same_collection(reference, answer, rules)
        case (ValueCollection(kind="set", items=(only,)), _) if not isinstance(only, ValueCollection):
            return same_answer(only, answer, rules)
        case (_, ValueCollection(kind="set", items=(only,))) if not isinstance(only, ValueCollection):
            return same_answer(reference, only, rules)
        case (MeasuredQuantity(), _) | (_, MeasuredQuantity()):
            return _same_quantity(reference, answer, rules)
        case (ComparisonChain() | ValueCollection(), _) | (_, ComparisonChain() | ValueCollection()):
            return False
        case _:
            return _same_number(reference, answer, rules)


def _as_membership(node: MathNode) -> MathNode:
    """`x = 1, x = 2` or `x = 1, 2` as `x in {1, 2}`, and `x < 1 or x > 2` as `x in` a union; anything else as it is."""
    if not isinstance(node, ValueCollection) or node.kind != "list":
        return node
    solved = [_solved(item) for item in node.items]
    first = solved[0]
    if first is not None and isinstance(node.items[0], ComparisonChain) and node.items[0].relations == ("=",):
        if all(one is None or one[0] == first[0] for one in solved) and not any(
            one is None and isinstance(item, ComparisonChain) for one, item in zip(solved, node.items, strict=True)
        ):
            values = [item if one is None else one[1] for one, item in zip(solved, node.items, strict=True)]
            return ComparisonChain(("in",), (first[0], ValueCollection("list", tuple(values))))
        return node
    intervals = [_as_interval(item) for item in node.items if isinstance(item, ComparisonChain)]
    names = sorted(variables(node))
    if len(intervals) == len(node.items) and None not in intervals and len(names) == 1:
        union = ValueCollection("union", tuple(one for one in intervals if one is not None))
        return ComparisonChain(("in",), (NamedSymbol(names[0]), union))
    return node


def _solved(node: MathNode) -> tuple[NamedSymbol, MathNode] | None:
    """Name and value of `x = value` or `value = x`, where the name does not occur in the value."""
    if not isinstance(node, ComparisonChain) or node.relations not in (("=",), ("in",)):
        return None
    left, right = node.sides
    if node.relations == ("=",) and not isinstance(left, NamedSymbol):
        left, right = right, left
    if isinstance(left, NamedSymbol) and not variables(right) & variables(left) and variables(left):
        return left, right
    return None


def _without_name(node: MathNode, other: MathNode) -> MathNode:
    """The value of `x = value`, where the other answer is a value without a name."""
    solved = _solved(node)
    if solved is None:
        return node
    name, value = solved
    if isinstance(other, ComparisonChain):
        inequality = isinstance(value, ValueCollection) and other.relations[0] in _FLIPPED
        return value if inequality and variables(other) == {name.name} else node
    return node if name.name in variables(other) else value


def _same_comparison(reference: ComparisonChain, answer: ComparisonChain, rules: EqualityRules) -> bool:
    one, other = _solved(reference), _solved(answer)
    if one is not None and other is not None and _same_name(one[0], other[0]):
        return same_answer(one[1], other[1], rules)
    if reference.relations == answer.relations == ("=",):
        if rules.same_form or (one is not None and not variables(one[1])):
            return False
        return _proportional(reference, answer)
    left, right = _as_interval(reference), _as_interval(answer)
    if left is not None and right is not None:
        return variables(reference) == variables(answer) and _same_collection(left, right, rules)
    return any(
        reference.relations == turned.relations
        and all(same_answer(*pair, rules) for pair in zip(reference.sides, turned.sides, strict=True))
        for turned in (answer, _turned(answer))
    )


def _same_name(one: NamedSymbol, other: NamedSymbol) -> bool:
    """Whether two names are the same: `y` and `f(x)` are."""
    return one == other or (one.name == "y" and other.name.endswith("(x)")) or (one.name, other.name) == ("f(x)", "y")


def _turned(chain: ComparisonChain) -> ComparisonChain:
    relations = tuple(_FLIPPED.get(one, one) for one in reversed(chain.relations))
    return ComparisonChain(relations, tuple(reversed(chain.sides)))


def _proportional(reference: ComparisonChain, answer: ComparisonChain) -> bool:
    """Whether two equations differ by a number as factor: `y = 2x` and `2y - 4x = 0`."""
    if any(isinstance(side, ValueCollection | MeasuredQuantity) for side in (*reference.sides, *answer.sides)):
        return False
    one, other = (
        MathOperation("sum", (chain.sides[0], MathOperation("negation", (chain.sides[1],))))
        for chain in (reference, answer)
    )
    names = variables(one)
    if variables(other) != names or not names:
        return False
    point = {name: NumberLiteral(Fraction(7 + 4 * place, 3)) for place, name in enumerate(sorted(names))}
    above, below = (_real_value(_substituted(node, point)) for node in (one, other))
    if not above or not below:
        return False
    return _same_value(one, MathOperation("product", (NumberLiteral(above / below), other)), names) is True


def _substituted(node: MathNode, point: dict[str, NumberLiteral]) -> MathNode:
    match node:
        case NamedSymbol(name=name):
            return point.get(name, node)
        case MathOperation(name=name, operands=operands):
            return MathOperation(name, tuple(_substituted(operand, point) for operand in operands))
        case _:
            return node


def _as_interval(node: MathNode) -> ValueCollection | None:
    """The interval of `x < 3` or `1 <= x < 3`; a collection is itself."""
    if isinstance(node, ValueCollection):
        return node
    if not isinstance(node, ComparisonChain) or not all(one in _FLIPPED for one in node.relations):
        return None
    chain = _turned(node) if node.relations[0] in (">", ">=") else node
    if any(one not in ("<", "<=") for one in chain.relations):
        return None
    infinity = NamedSymbol("infty")
    sides, relations = chain.sides, chain.relations
    if len(sides) == 2:
        low_open = isinstance(sides[0], NamedSymbol) and variables(sides[0])
        sides = (MathOperation("negation", (infinity,)), *sides) if low_open else (*sides, infinity)
        relations = ("<", *relations) if low_open else (*relations, "<")
    if len(sides) != 3 or not variables(sides[1]) or variables(sides[0]) or variables(sides[2]):
        return None
    if not isinstance(sides[1], NamedSymbol):
        return None
    brackets = ("(" if relations[0] == "<" else "[") + (")" if relations[1] == "<" else "]")
    return ValueCollection(brackets, (sides[0], sides[2]))


def _same_collection(reference: ValueCollection, answer: ValueCollection, rules: EqualityRules) -> bool:
    kinds = {reference.kind, answer.kind}
    if reference.kind in _UNORDERED and (len(kinds) == 1 or kinds == {"list", "set"}):
        # Equality in any order; a set holds each value once
        wanted, answers = list(reference.items), list(answer.items)
        if "set" in (reference.kind, answer.kind):
            wanted, answers = list(dict.fromkeys(wanted)), list(dict.fromkeys(answers))
        for item in list(wanted):
            if item in answers:
                wanted.remove(item)
                answers.remove(item)
        names = {solved[0] for item in reference.items if (solved := _solved(item)) is not None}
        names_are_lost = len(names) > 1 and not all(isinstance(item, ComparisonChain) for item in answer.items)
        if len(wanted) != len(answers) or len(wanted) > MAX_PAIRED or names_are_lost:
            return False
        for item in wanted:
            match = next((place for place, one in enumerate(answers) if same_answer(item, one, rules)), None)
            if match is None:
                return False
            del answers[match]
        return True
    return (
        len(kinds) == 1
        and len(reference.items) == len(answer.items)
        and all(same_answer(*pair, rules) for pair in zip(reference.items, answer.items, strict=True))
    )


def _same_quantity(reference: MathNode, answer: MathNode, rules: EqualityRules) -> bool:
    """Equality of quantities. A unit that only the answer has is accepted; one that only the reference has is not."""
    if isinstance(reference, ValueCollection | ComparisonChain) or isinstance(
        answer, ValueCollection | ComparisonChain
    ):
        return False
    if not isinstance(reference, MeasuredQuantity):
        number = answer.number if isinstance(answer, MeasuredQuantity) and not variables(answer) else answer
        if isinstance(number, MeasuredQuantity):
            return False
        return same_answer(reference, number, rules)
    if not isinstance(answer, MeasuredQuantity):
        return rules.ignore_units and same_answer(reference.number, answer, rules)
    if rules.ignore_units and reference.dimensions != answer.dimensions:
        return same_answer(reference.number, answer.number, rules)
    if reference.dimensions != answer.dimensions:
        return False
    return same_answer(
        _scaled(reference.number, Fraction(1)), _scaled(answer.number, answer.factor / reference.factor), rules
    )


def _scaled(node: MathNode, factor: Fraction) -> MathNode:
    if isinstance(node, NumberLiteral):
        return NumberLiteral(node.value * factor, node.digits)
    return node if factor == 1 else MathOperation("product", (NumberLiteral(factor), node))


def _same_number(reference: MathNode, answer: MathNode, rules: EqualityRules) -> bool:
    """Equality of two numbers or expressions: exact, except where the reference is a decimal that may be rounded."""
    if rules.same_form:
        return _ordered(reference) == _ordered(answer)
    names = variables(reference)
    if not variables(answer) <= names:
        return False
    if isinstance(reference, NumberLiteral) and (reference.digits >= ROUNDED_DIGITS or rules.relative_tolerance):
        return _rounds_to(reference, answer, rules.relative_tolerance)
    if rules.relative_tolerance and not names:
        expected, actual = _real_value(reference), _real_value(answer)
        if expected is None or actual is None:
            return _same_value(reference, answer, frozenset()) is True
        return abs(actual - expected) <= Fraction(rules.relative_tolerance) * abs(expected)
    if not rules.any_form and rational(reference) is not None and rational(answer) is None:
        return False  # a root or constant that cancels is work left undone
    return _same_value(reference, answer, names) is True


def _rounds_to(reference: NumberLiteral, answer: MathNode, tolerance: float) -> bool:
    """Whether an answer rounds to a decimal at its last digit; or, where that is a floating-point number printed in
    full, is this number rounded to at least six digits."""
    exact = _real_value(answer)
    if exact is None:
        return False
    expected = reference.value
    error = abs(exact - expected)
    if error == 0 or error <= Fraction(tolerance) * abs(expected):
        return True
    if reference.digits < ROUNDED_DIGITS:
        return False
    if error <= _half_unit(expected, reference.digits):
        return True
    if reference.digits < FLOAT_DIGITS:
        return False
    digits = answer.digits if isinstance(answer, NumberLiteral) else 0
    rounded = digits >= SHORTEST_ROUNDING and error <= _half_unit(exact, digits)
    return rounded or error <= abs(expected) / 10**12


def _half_unit(value: Fraction, digits: int) -> Fraction:
    """Half a unit of the last of so many significant digits."""
    if value == 0:
        return Fraction(0)
    exponent = len(str(abs(value.numerator))) - len(str(value.denominator))
    if abs(value) < Fraction(10) ** exponent:
        exponent -= 1
    return Fraction(10) ** (exponent - digits + 1) / 2
