"""Values of expressions: exact for rational arithmetic, else complex numbers of mpmath with as many digits as needed.

Two expressions are equal when they agree at fixed points, to 50 digits: an identity test (Schwartz 1980; Zippel 1979)
that costs a millisecond, knows every function below and cannot run away, where a symbolic simplifier may.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import mpmath
from mpmath.libmp import NoConvergence

from hone.rewards.mathematics.tree import MathNode, MathOperation, NamedSymbol, NumberLiteral, walk

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
    if isinstance(exponent, Fraction) and exponent.denominator % 2 and exponent.denominator > 1 and _is_negative(base):
        size = _power(-base, exponent)  # the real root, as schools define it and as `\sqrt[3]{x}` is
        return -size if exponent.numerator % 2 else size
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
    if _is_negative(radicand) and degree % 2:
        return -mpmath.root(-radicand, int(degree))
    return mpmath.root(radicand, int(degree))


def _is_negative(value: Value) -> bool:
    return value < 0 if isinstance(value, Fraction) else bool(mpmath.im(value) == 0 and mpmath.re(value) < 0)


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


def same_value(left: MathNode, right: MathNode, names: frozenset[str]) -> bool | None:
    """Whether two expressions in the variables `names` are equal wherever the left one is real (where it is never real:
    wherever it has a value). None when the left one has no value anywhere.

    A `log` without a base is natural. Where both expressions have one, and no logarithm with a base, it may also be
    decimal in both: `1 - \\log 5` is `\\log 2`."""
    decimal = _has_log(left, bare=True) and _has_log(right, bare=True)
    decimal = decimal and not _has_log(left, bare=False) and not _has_log(right, bare=False)
    with mpmath.workdps(_working_digits(left, right) + _GUARD_DIGITS):
        results = [_same_at_points(left, right, names, base) for base in ((0, 10) if decimal else (0,))]
    return True if True in results else results[0]


def _has_log(node: MathNode, *, bare: bool) -> bool:
    """Whether a tree has a `log` without a base; with `bare` false: a logarithm whose base is certain."""
    logs = [one for one in walk(node) if isinstance(one, MathOperation) and one.name in ("log", "ln")]
    return any((one.name == "log" and len(one.operands) == 1) == bare for one in logs)


def _working_digits(*nodes: MathNode) -> int:
    """Decimal digits of the arithmetic: enough for the longest numbers, and 50 more."""
    numbers = [one.value for node in nodes for one in walk(node) if isinstance(one, NumberLiteral)]
    bits = sum(max(value.numerator.bit_length(), value.denominator.bit_length()) for value in numbers)
    return min(_PRECISE_DIGITS + bits // 3, MAX_DIGITS)


def _same_at_points(left: MathNode, right: MathNode, names: frozenset[str], log_base: int) -> bool | None:
    complex_ones: list[bool] = []
    real_ones: list[bool] = []
    points: list[dict[str, Value]] = [
        {
            name: (sign or (-1) ** place) * magnitude * mpmath.exp(mpmath.mpf(place + 1) / 7)  # transcendental
            for place, name in enumerate(sorted(names))
        }
        for magnitude, sign in (_POINTS if names else _POINTS[:1])
    ]
    if any(isinstance(one, MathOperation) and one.name in ("floor", "ceiling") for one in walk(left)):
        points += [{name: Fraction(whole + place) for place, name in enumerate(sorted(names))} for whole in (-4, 3)]
    for point in points:
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


def real_value(node: MathNode) -> Fraction | None:
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
