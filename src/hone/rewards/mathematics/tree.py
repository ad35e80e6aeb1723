"""Values that an answer may consist of: the nodes of a tree."""

import re
from collections.abc import Iterator, Mapping
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
    """Several values, or a set:

    - `list` and `set` (unordered), `matrix` of `row`s, a pair of brackets such as `(]`: a tuple, or an interval with
      these ends;
    - `union`, `intersection`, `difference`, `complement` and `cartesian` product of sets; `Z`, `N`, `Q` and `C` without
      items;
    - `and`, `or`: comparisons that hold together, or of which one holds; `solutions`: the values that fulfil the only
      item, a statement; `family`: the first item for all values of the indices that the others declare.
    """

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


def substituted(node: MathNode, values: Mapping[str, MathNode]) -> MathNode:
    """The tree with values in the place of variables."""
    match node:
        case NamedSymbol(name=name):
            return values.get(name, node)
        case MathOperation(name=name, operands=below):
            return MathOperation(name, tuple(substituted(one, values) for one in below))
        case ValueCollection(kind=kind, items=below):
            return ValueCollection(kind, tuple(substituted(one, values) for one in below))
        case ComparisonChain(relations=relations, sides=below):
            return ComparisonChain(relations, tuple(substituted(one, values) for one in below))
        case MeasuredQuantity(number=number, factor=factor, dimensions=dimensions):
            return MeasuredQuantity(substituted(number, values), factor, dimensions)
        case NumberLiteral():
            return node


# --------------------------------------------------------------------------------------------------------------- limits

MAX_CHARS = 2000
MAX_NESTING = 50
MAX_DIGITS = 200
MAX_EXPONENT = 1000
MAX_FACTORIAL = 200

_TOWER = re.compile(r"\^\s*(?:[({][^(){}A-Za-z\\]*\^|-?[\d.]+\s*\^)")
_EXPONENT = re.compile(r"\^\s*[({]?\s*-?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+|[)}!\]])\s*!(?!=)")
_FACTORIAL_OF_VARIABLES = re.compile(r"\((?=[^()]*(?<![A-Za-z\\])[A-Za-z](?![A-Za-z]))[^()\\]*\)\s*!(?!\s*!)")
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
    factorials = _FACTORIAL.findall(_FACTORIAL_OF_VARIABLES.sub("", expression))
    if any(not text.isdecimal() or int(text) > MAX_FACTORIAL for text in factorials):
        return f"a factorial of an expression, or of more than {MAX_FACTORIAL}"
    return ""
