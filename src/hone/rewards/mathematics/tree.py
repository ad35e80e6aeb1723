"""Values that an answer may consist of: the nodes of a tree."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias


class MathSyntaxError(Exception):
    """The text is not an answer in final form; the message says which part is not."""


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number as written: integer, decimal, repeating decimal, mixed number or percentage."""

    value: Fraction
    digits: int = field(default=0, compare=False)
    """Significant digits of a decimal that may be rounded; 0 for an exact number."""


@dataclass(frozen=True, slots=True)
class NamedSymbol:
    """A variable or constant: `x`, `x_1`, `\\alpha`, `\\pi`, `e`, `i`."""

    name: str


@dataclass(frozen=True, slots=True)
class MathOperation:
    """An operation on values: `sum`, `product`, `quotient`, `power`, `root`, `negation`, or a function's name."""

    name: str
    operands: tuple["MathNode", ...]


@dataclass(frozen=True, slots=True)
class ValueCollection:
    """Several values: `list` and `set` (unordered), `union` of intervals, `matrix` of `row`s, or a pair of brackets
    such as `(]`: a tuple, or an interval with these ends."""

    kind: str
    items: tuple["MathNode", ...]


@dataclass(frozen=True, slots=True)
class ComparisonChain:
    """Sides joined by relations: `x = 5`, `1 < x <= 3`."""

    relations: tuple[str, ...]
    sides: tuple["MathNode", ...]


@dataclass(frozen=True, slots=True)
class MeasuredQuantity:
    """A number with a unit: the value is `number * factor` in the base units `dimensions`."""

    number: "MathNode"
    factor: Fraction
    dimensions: tuple[tuple[str, int], ...]


MathNode: TypeAlias = NumberLiteral | NamedSymbol | MathOperation | ValueCollection | ComparisonChain | MeasuredQuantity

_GREEK = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega pi
"""
GREEK_NAMES = tuple(_GREEK.split())
CONSTANTS = frozenset({"pi", "e", "i", "infty"})


def walk(node: MathNode) -> Iterator[MathNode]:
    """A node and all nodes below it."""
    yield node
    match node:
        case MathOperation(operands=below) | ValueCollection(items=below) | ComparisonChain(sides=below):
            pass
        case MeasuredQuantity(number=number):
            below = (number,)
        case _:
            below = ()
    for child in below:
        yield from walk(child)


def variables(node: MathNode) -> frozenset[str]:
    """Names of the variables in a tree, without constants."""
    return frozenset(one.name for one in walk(node) if isinstance(one, NamedSymbol)) - CONSTANTS


# --------------------------------------------------------------------------------------------------------------- limits

MAX_CHARS = 2000
MAX_NESTING = 50
MAX_DIGITS = 200
MAX_EXPONENT = 1000
MAX_FACTORIAL = 200

_TOWER = re.compile(r"\^\s*(?:[({][^(){}A-Za-z\\]*\^|-?[\d.]+\s*\^)")
_EXPONENT = re.compile(r"\^\s*[({]?\s*-?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+|[)}!\]])\s*!(?!=)")
_DIGITS = re.compile(r"\d+")


def why_too_large(expression: str) -> str:
    """Reason why an expression is not evaluated; empty when it may be."""
    if len(expression) > MAX_CHARS:
        return f"{len(expression)} characters, at most {MAX_CHARS}"
    depths = accumulate((letter in "([{") - (letter in ")]}") for letter in expression)
    if max(depths, default=0) > MAX_NESTING:
        return f"more than {MAX_NESTING} nested brackets"
    powers = expression.replace("**", "^")
    if _TOWER.search(powers):
        return "a power of a power"
    if any(len(text) > MAX_DIGITS for text in _DIGITS.findall(expression)):
        return f"a number of more than {MAX_DIGITS} digits"
    if any(int(text) > MAX_EXPONENT for text in _EXPONENT.findall(powers)):
        return f"an exponent above {MAX_EXPONENT}"
    if any(not text.isdecimal() or int(text) > MAX_FACTORIAL for text in _FACTORIAL.findall(expression)):
        return f"a factorial of an expression, or of more than {MAX_FACTORIAL}"
    return ""
