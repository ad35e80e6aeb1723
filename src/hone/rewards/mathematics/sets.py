r"""Sets of numbers: intervals, points, their unions, intersections and differences, and families `a + k b` of them.

A set of real numbers is the sorted tuple of its borders: between the first and the second one lie its members, between
the third and the fourth one again, and so on. A border is a number and a side: (3, 0) lies directly below 3, (3, 1)
directly above. So `[1, 3)` is ((1, 0), (3, 0)), the point 3 is ((3, 0), (3, 1)), and every operation is one sweep.

A family for all integers has a period. Its borders are those between 0 and 1, in units of the period.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import and_, gt, or_
from typing import TypeAlias

from hone.rewards.mathematics.evaluation import real_value
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

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
INTERVALS = frozenset({"()", "[]", "(]", "[)"})
OPERATIONS = frozenset({"union", "intersection", "difference"})
INDEX_NAMES = frozenset("kmnlj")
"""Variables that stand for integers where a family declares none."""
MAX_PERIODS = 60
"""Most periods of a family that are written out."""
MAX_MEMBERS = 30
"""Most members of sets that are compared each with each."""
_NEAR = Fraction(1, 10**20)
_INFINITY = float("inf")

Border: TypeAlias = tuple[Fraction | float, int]
Borders: TypeAlias = tuple[Border, ...]
_ALL: Borders = ((-_INFINITY, 1), (_INFINITY, 0))
_UNIT: Borders = ((Fraction(0), 0), (Fraction(1), 0))


@dataclass(frozen=True, slots=True)
class _RealSet:
    """A set of real numbers, of a variable where one is named."""

    name: str
    borders: Borders
    period: Fraction = Fraction(0)
    """0: not periodic."""


def solved(node: MathNode) -> tuple[NamedSymbol, MathNode] | None:
    """Name and value of `x = value` or `value = x`, where the name does not occur in the value."""
    if not isinstance(node, ComparisonChain) or node.relations not in (("=",), ("in",)):
        return None
    left, right = node.sides
    if node.relations == ("=",) and not isinstance(left, NamedSymbol):
        left, right = right, left
    if isinstance(left, NamedSymbol) and not variables(right) & variables(left) and variables(left):
        return left, right
    return None


def turned(chain: ComparisonChain) -> ComparisonChain:
    """The chain from right to left: `3 > x` for `x < 3`."""
    relations = tuple(FLIPPED.get(one, one) for one in reversed(chain.relations))
    return ComparisonChain(relations, tuple(reversed(chain.sides)))


def as_interval(node: MathNode) -> ValueCollection | None:
    """The interval of `x < 3` or `1 <= x < 3`; a collection is itself."""
    if isinstance(node, ValueCollection):
        return node
    chain = _rising(node)
    return chain[1] if chain is not None else None


def _rising(node: MathNode) -> tuple[NamedSymbol, ValueCollection] | None:
    """Variable and interval of an inequality with one variable in the middle."""
    if not isinstance(node, ComparisonChain) or not all(one in FLIPPED for one in node.relations):
        return None
    chain = turned(node) if node.relations[0] in (">", ">=") else node
    if any(one not in ("<", "<=") for one in chain.relations):
        return None
    infinity = NamedSymbol("infty")
    sides, relations = chain.sides, chain.relations
    if len(sides) == 2:
        low_open = isinstance(sides[0], NamedSymbol) and variables(sides[0])
        sides = (MathOperation("negation", (infinity,)), *sides) if low_open else (*sides, infinity)
        relations = ("<", *relations) if low_open else (*relations, "<")
    if len(sides) != 3 or not isinstance(sides[1], NamedSymbol):
        return None
    ends = variables(sides[0]) | variables(sides[2])
    if not variables(sides[1]) or sides[1].name in ends or (ends and len(chain.sides) == 2):
        return None
    brackets = ("(" if relations[0] == "<" else "[") + (")" if relations[1] == "<" else "]")
    return sides[1], ValueCollection(brackets, (sides[0], sides[2]))


def same_set(reference: MathNode, answer: MathNode, same: Callable[[MathNode, MathNode], bool]) -> bool:
    """Whether two statements, sets or families have the same members. `same` compares two members. False where one of
    them is no set that this module can compute."""
    kinds = {one.kind for one in (reference, answer) if isinstance(one, ValueCollection)}
    if kinds & OPERATIONS:
        one, other = _members(reference, same), _members(answer, same)
        if one is not None and other is not None:
            return len(one) == len(other) and all(_contains(other, member, same) for member in one)
    reference, answer = _with_index(reference, answer), _with_index(answer, reference)
    if _same_family(reference, answer, same):
        return True
    if not any(isinstance(one, ValueCollection | ComparisonChain) for one in (reference, answer)):
        return False
    left, right = _real_set(reference), _real_set(answer)
    if left is None or right is None or (left.name and right.name and left.name != right.name):
        return False
    return _same_borders(left, right)


# ------------------------------------------------------------------------------------------------- sets of few members
def _members(node: MathNode, same: Callable[[MathNode, MathNode], bool]) -> list[MathNode] | None:
    """The members of a finite set; None for another one."""
    if not isinstance(node, ValueCollection):
        return None if isinstance(node, ComparisonChain) else [node]
    if len(node.items) > MAX_MEMBERS:
        return None
    if node.kind in ("set", "list"):
        unique: list[MathNode] = []
        for item in node.items:
            if not _contains(unique, item, same):
                unique.append(item)
        return unique
    if node.kind not in OPERATIONS:
        return None
    parts = [_members(item, same) for item in node.items if not isinstance(item, NamedSymbol)]
    if len(parts) < len(node.items) or any(part is None for part in parts):
        return None
    first, *others = [part for part in parts if part is not None]
    for other in others:
        if node.kind == "union":
            first = [*first, *(item for item in other if not _contains(first, item, same))]
        else:
            first = [item for item in first if _contains(other, item, same) == (node.kind == "intersection")]
    return first


def _contains(items: Sequence[MathNode], wanted: MathNode, same: Callable[[MathNode, MathNode], bool]) -> bool:
    return any(item == wanted or same(item, wanted) for item in items)


# ------------------------------------------------------------------------------------------------ sets of real numbers
def _real_set(node: MathNode) -> _RealSet | None:
    """The real numbers of a set or of a statement about one variable; None where there is none."""
    if isinstance(node, ComparisonChain):
        return _of_comparison(node)
    if not isinstance(node, ValueCollection):
        value = _point(node)
        return None if value is None else _RealSet("", ((value, 0), (value, 1)))
    if node.kind == "family":
        return _of_family(node)
    if node.kind in INTERVALS:
        return _of_interval(node.kind, *node.items) if len(node.items) == 2 else None
    if node == ValueCollection("Z", ()):
        return _RealSet("", ((Fraction(0), 0), (Fraction(0), 1)), Fraction(1))
    if node.kind in ("set", "list") and any(
        isinstance(item, ValueCollection) and item.kind != "family" for item in node.items
    ):
        return None  # a set of sets, or of points of the plane
    return _of_operation(node.kind, [_real_set(item) for item in node.items])


def _of_operation(kind: str, parts: list[_RealSet | None]) -> _RealSet | None:
    match kind:
        case "set" | "list" | "union" | "or":
            return _joined(parts, or_)
        case "intersection" | "and":
            both = _joined(parts, and_)
            # Nobody means nothing: `x < 1, x > 2` are two alternatives
            return _joined(parts, or_) if kind == "and" and both is not None and not both.borders else both
        case "difference":
            return _joined(parts, gt)
        case "complement":
            return _complement(parts[0])
        case "solutions":
            return None if parts[0] is None else _RealSet("", parts[0].borders, parts[0].period)
        case _:
            return None


def _point(node: MathNode) -> Fraction | None:
    """A real number, rounded where it is no fraction."""
    if isinstance(node, MeasuredQuantity) and node.dimensions == (("degree", 1),):
        node = MathOperation("degrees", (node.number,))
    if isinstance(node, MeasuredQuantity | ValueCollection | ComparisonChain) or variables(node):
        return None
    value = real_value(node)
    return None if value is None else _rounded(value, 40)


def _rounded(value: Fraction, digits: int = 25) -> Fraction:
    """The number itself where it is a short fraction, to a few digits less; else so many decimals."""
    short = value.limit_denominator(10**6)
    return short if abs(short - value) < Fraction(1, 10 ** (digits - 3)) else Fraction(round(value, digits))


def _of_comparison(node: ComparisonChain) -> _RealSet | None:
    if node.relations == ("!=",):
        equal = _real_set(ComparisonChain(("=",), node.sides))
        return _complement(equal)
    if (pair := solved(node)) is not None:
        values = _real_set(pair[1])
        return None if values is None else _RealSet(pair[0].name, values.borders, values.period)
    if (inequality := _rising(node)) is not None:
        name, interval = inequality
        values = _of_interval(interval.kind, *interval.items)
        return None if values is None else _RealSet(name.name, values.borders)
    return None


def _of_interval(kind: str, low: MathNode, high: MathNode) -> _RealSet | None:
    infinity = NamedSymbol("infty")
    below = -_INFINITY if low == MathOperation("negation", (infinity,)) else _point(low)
    above = _INFINITY if high == infinity else _point(high)
    if below is None or above is None:
        return None
    if (below == -_INFINITY and kind[0] == "[") or (above == _INFINITY and kind[1] == "]"):
        return None
    begin, end = (below, int(kind[0] == "(")), (above, int(kind[1] == "]"))
    return _RealSet("", (begin, end)) if begin < end else None  # (1, 1) is a point of the plane


def _complement(one: _RealSet | None) -> _RealSet | None:
    if one is None:
        return None
    return _RealSet(one.name, _swept(_UNIT if one.period else _ALL, one.borders, gt), one.period)


def _joined(parts: Sequence[_RealSet | None], keeps: Callable[[bool, bool], bool]) -> _RealSet | None:
    """The set of an operation on all parts; None where one of them is unknown, or speaks of another variable."""
    if not parts:
        return _RealSet("", ())
    total, *others = parts
    for other in others:
        if total is None or other is None or (total.name and other.name and total.name != other.name):
            return None
        pair = _with_one_period(total, other, keeps)
        if pair is None:
            return None
        one, two, period = pair
        total = _RealSet(total.name or other.name, _swept(one, two, keeps), period)
    return total


def _swept(one: Borders, other: Borders, keeps: Callable[[bool, bool], bool]) -> Borders:
    """Borders of the numbers that `keeps` wants, by whether they are in the one and in the other set."""
    result: list[Border] = []
    for border in sorted({*one, *other}):
        inside = keeps(bisect_right(one, border) % 2 == 1, bisect_right(other, border) % 2 == 1)
        if inside != (len(result) % 2 == 1):
            result.append(border)
    return tuple(result)


# ------------------------------------------------------------------------------------------------------------- families
def _same_family(reference: MathNode, answer: MathNode, same: Callable[[MathNode, MathNode], bool]) -> bool:
    """Whether two families with one index each are written alike, up to the index's name: also of natural numbers."""
    one, other = _index_of(reference), _index_of(answer)
    if one is None or other is None or one[2] != other[2]:
        return False
    (body, name, _), (second, second_name, _) = one, other
    if second_name != name and name in variables(second):
        return False
    return same(body, substituted(second, {second_name: NamedSymbol(name)}))


def _index_of(node: MathNode) -> tuple[MathNode, str, MathNode] | None:
    """Body, index and its set of a family with one index."""
    match node:
        case ValueCollection(
            kind="family",
            items=(body, ComparisonChain(relations=("in",), sides=(NamedSymbol(name=name), domain))),
        ):
            return body, name, domain
        case _:
            return None


def _with_index(node: MathNode, other: MathNode) -> MathNode:
    r"""A value with an undeclared index, such as `2k\pi`, as a family where the other answer is one."""
    declared = _index_of(other)
    families = any(isinstance(one, ValueCollection) and one.kind == "family" for one in walk(node))
    if declared is None or families or declared[2] != ValueCollection("Z", ()):
        return node
    names = variables(node) & INDEX_NAMES
    if len(names) != 1:
        return node
    return ValueCollection("family", (node, ComparisonChain(("in",), (NamedSymbol(min(names)), declared[2]))))


def _of_family(node: ValueCollection) -> _RealSet | None:
    """The union over all integers, of bodies that are linear in the index, or linear in the even and in the odd one."""
    family = _index_of(node)
    if family is None or family[2] != ValueCollection("Z", ()):
        return None
    body, name, _ = family
    if isinstance(body, ValueCollection) and body.kind in ("list", "set", "union", "or", "and"):
        items = [ValueCollection("family", (item, *node.items[1:])) for item in body.items]
        excluded = body.kind == "and" and all(
            isinstance(item, ComparisonChain) and item.relations == ("!=",) for item in body.items
        )
        if excluded or body.kind != "and":
            return _joined([_real_set(item) for item in items], and_ if excluded else or_)
    if isinstance(body, ComparisonChain) and body.relations == ("!=",):
        equal = ValueCollection("family", (ComparisonChain(("=",), body.sides), *node.items[1:]))
        return _complement(_of_family(equal))
    for steps in (1, 2):
        parts = [_progression(body, name, range(start, start + 4 * steps, steps)) for start in range(steps)]
        if None not in parts:
            return _joined(parts, or_)
    return None


def _progression(body: MathNode, name: str, indices: range) -> _RealSet | None:
    """The periodic set whose members at some indices lie at equal distances; None where they do not."""
    rows = [_real_set(substituted(body, {name: NumberLiteral(Fraction(index))})) for index in indices]
    sets = [row for row in rows if row is not None and not row.period]
    if len(sets) < len(rows) or len({(len(one.borders), one.name) for one in sets}) > 1 or not sets[0].borders:
        return None
    columns = list(zip(*(one.borders for one in sets), strict=True))
    values = [value for column in columns for value, _ in column]
    if any(isinstance(value, float) for value in values) or any(len({side for _, side in one}) > 1 for one in columns):
        return None
    steps = [Fraction(after[0]) - Fraction(before[0]) for column in columns for before, after in pairwise(column)]
    if any(abs(step - steps[0]) > _NEAR for step in steps):
        return None
    period = abs(steps[0])
    if period < _NEAR:
        return sets[0]
    borders: Borders = ()
    for begin, end in zip(sets[0].borders[::2], sets[0].borders[1::2], strict=True):
        borders = _swept(borders, _wrapped(begin, end, period), or_)
    return _RealSet(sets[0].name, borders, period)


def _wrapped(begin: Border, end: Border, period: Fraction) -> Borders:
    """A stretch of numbers in units of the period, between 0 and 1."""
    low, high = _rounded(Fraction(begin[0]) / period), _rounded(Fraction(end[0]) / period)
    if high - low >= 1:
        without = high - low == 1 and (begin[1], end[1]) == (1, 0)  # all but one point
        return _swept(_UNIT, ((low % 1, 0), (low % 1, 1)), gt) if without else _UNIT
    shift = low // 1
    first, last = (low - shift, begin[1]), (high - shift, end[1])
    if last <= (Fraction(1), 0):
        return (first, last)
    rest = (last[0] - 1, last[1])
    head: Borders = () if first >= (Fraction(1), 0) else (first, (Fraction(1), 0))
    return _swept(head, ((Fraction(0), 0), rest), or_)


def _with_one_period(
    one: _RealSet, other: _RealSet, keeps: Callable[[bool, bool], bool]
) -> tuple[Borders, Borders, Fraction] | None:
    """Borders of two sets on one scale, and its period; None where there is no common one."""
    if one.period and other.period:
        ratio = (one.period / other.period).limit_denominator(MAX_PERIODS)
        if ratio.numerator > MAX_PERIODS or abs(ratio - one.period / other.period) > _NEAR:
            return None
        copies = ratio.denominator
        return _repeated(one, copies), _repeated(other, ratio.numerator), one.period * copies
    if not one.period and not other.period:
        return one.borders, other.borders, Fraction(0)
    single, periodic = (other, one) if one.period else (one, other)
    if single.borders == _ALL:
        pair = (_UNIT, periodic.borders) if other.period else (periodic.borders, _UNIT)
        return *pair, periodic.period
    if keeps is or_ or not single.borders or (keeps is gt and one.period):
        return None
    written = _written_out(periodic, single.borders[0][0], single.borders[-1][0])
    if written is None:
        return None
    return (single.borders, written, Fraction(0)) if other.period else (written, single.borders, Fraction(0))


def _repeated(one: _RealSet, copies: int) -> Borders:
    """The borders of so many periods, in units of all of them."""
    return _in_a_row(((Fraction(value) + copy) / copies, side) for copy in range(copies) for value, side in one.borders)


def _written_out(one: _RealSet, low: Fraction | float, high: Fraction | float) -> Borders | None:
    """The borders of a periodic set around a bounded stretch; None for one that is long."""
    if isinstance(low, float) or isinstance(high, float) or (high - low) / one.period > MAX_PERIODS:
        return None
    return _in_a_row(
        (_rounded((Fraction(value) + copy) * one.period), side)
        for copy in range(low // one.period, high // one.period + 1)
        for value, side in one.borders
    )


def _in_a_row(borders: Iterable[Border]) -> Borders:
    """Sorted borders, without those between two parts that touch."""
    result: list[Border] = []
    for border in borders:
        if result and result[-1] == border:
            result.pop()
        else:
            result.append(border)
    return tuple(result)


def _same_borders(left: _RealSet, right: _RealSet) -> bool:
    if bool(left.period) != bool(right.period):
        return False
    pair = _with_one_period(left, right, or_)
    if pair is None or len(pair[0]) != len(pair[1]):
        return False
    return all(
        one[1] == other[1] and (one[0] == other[0] or abs(one[0] - other[0]) < _NEAR)
        for one, other in zip(pair[0], pair[1], strict=True)
    )
