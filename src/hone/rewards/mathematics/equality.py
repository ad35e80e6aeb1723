"""Equality of two answers as trees: collections by their items, quantities by their units, numbers by their digits."""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from hone.rewards.mathematics.equations import same_relation, same_up_to_constants
from hone.rewards.mathematics.evaluation import real_value, same_value
from hone.rewards.mathematics.final_form import rational
from hone.rewards.mathematics.sets import FLIPPED, as_interval, same_set, solved, turned
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

_PARAMETERS = frozenset({"t", "s", "u", "lambda", "mu"})
_UNORDERED = frozenset({"list", "set", "union", "intersection", "and", "or"})


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
    if _same_parts(reference, answer, rules):
        return True
    sets = any(isinstance(one, ValueCollection | ComparisonChain) for one in (reference, answer))
    return sets and not rules.same_form and same_set(reference, answer, partial(same_answer, rules=rules))


def _same_parts(reference: MathNode, answer: MathNode, rules: EqualityRules) -> bool:
    """Equality of two answers, of collections item by item."""
    reference, answer = _as_membership(reference, answer), _as_membership(answer, reference)
    reference, answer = _without_name(reference, answer), _without_name(answer, reference)
    reference = _as_point(reference, answer)
    answer = _as_point(answer, reference)
    reference, answer = _as_components(reference, answer), _as_components(answer, reference)
    match reference, answer:
        case ComparisonChain(), ComparisonChain():
            return _same_comparison(reference, answer, rules)
        case (ComparisonChain(), ValueCollection()) | (ValueCollection(), ComparisonChain()):
            one, other = as_interval(reference), as_interval(answer)
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


def _as_membership(node: MathNode, other: MathNode) -> MathNode:
    """`x = 1, x = 2` or `x = 1, 2` as `x in {1, 2}`; also `x_1 = 1, x_2 = 2`. Anything else as it is, and beside a
    tuple."""
    if isinstance(other, ValueCollection) and other.kind in ("()", "matrix"):
        return node
    if not isinstance(node, ValueCollection) or node.kind != "list":
        return node
    pairs = [solved(item) for item in node.items]
    first = pairs[0]
    if first is None or not isinstance(node.items[0], ComparisonChain) or node.items[0].relations != ("=",):
        return node
    name = first[0].name.partition("_")[0]
    if any(pair is None and isinstance(item, ComparisonChain) for pair, item in zip(pairs, node.items, strict=True)):
        return node
    if all(pair is None or pair[0] == first[0] for pair in pairs) or all(
        pair is not None and pair[0].name == f"{name}_{place}" for place, pair in enumerate(pairs, start=1)
    ):
        values = [item if pair is None else pair[1] for pair, item in zip(pairs, node.items, strict=True)]
        return ComparisonChain(("in",), (NamedSymbol(name), ValueCollection("list", tuple(values))))
    return node


def _as_point(node: MathNode, other: MathNode) -> MathNode:
    """`x = 1, y = 2` as `(1, 2)`, and `(x, y) = (1, 2)` as its values, where the other answer is a tuple or names the
    coordinates. The names are in alphabetical order."""
    match node:
        case ComparisonChain(
            relations=("=",), sides=(ValueCollection(kind="()", items=names), ValueCollection() as values)
        ):
            if len(names) != len(values.items) or not all(isinstance(name, NamedSymbol) for name in names):
                return node
            if isinstance(other, ValueCollection) and other.kind in ("()", "matrix"):
                return values
            chains = zip(names, values.items, strict=True)
            return ValueCollection("list", tuple(ComparisonChain(("=",), pair) for pair in chains))
        case ComparisonChain(
            relations=("in",), sides=(ValueCollection(kind="()", items=names), ValueCollection() as values)
        ) if all(isinstance(name, NamedSymbol) for name in names):
            return values
        case ValueCollection(kind="list", items=items) if isinstance(other, ValueCollection) and other.kind == "()":
            pairs = {pair[0].name: pair[1] for item in items if (pair := solved(item)) is not None}
            if len(pairs) < len(items) or len(items) != len(other.items):
                return node
            return ValueCollection("()", tuple(pairs[name] for name in sorted(pairs)))
        case ValueCollection(kind="matrix", items=rows) if not isinstance(other, ValueCollection) or other.kind in (
            "()",
            "list",
        ):
            columns = [one for row in rows if isinstance(row, ValueCollection) for one in row.items]
            return ValueCollection("()", tuple(columns)) if 1 in (len(rows), len(columns) // len(rows)) else node
        case _:
            return node


def _as_components(node: MathNode, other: MathNode) -> MathNode:
    """`3i - 2j` as `(3, -2)`, where the other answer is a tuple of two or three values."""
    size = len(other.items) if isinstance(other, ValueCollection) and other.kind == "()" else 0
    if size not in (2, 3) or not isinstance(node, MathOperation | NamedSymbol):
        return node
    names = "ijk"[:size]
    if not any(isinstance(one, NamedSymbol) and one.name in "ijk" for one in walk(node)):
        return node
    values: list[MathNode] = []
    for one in ("", *names):  # 1 in the place of one unit vector, and 0 in the place of the others
        value = substituted(node, {name: NumberLiteral(Fraction(name == one)) for name in names})
        exact = None if variables(value) else real_value(value)
        values.append(value if exact is None or exact.denominator > 10**12 else NumberLiteral(exact))
    return ValueCollection("()", tuple(values[1:])) if values[0] == NumberLiteral(Fraction(0)) else node


def _without_name(node: MathNode, other: MathNode) -> MathNode:
    """The value of `x = value`, where the other answer is a value without a name."""
    pair = solved(node)
    if pair is None:
        return node
    name, value = pair
    if isinstance(other, ComparisonChain):
        inequality = isinstance(value, ValueCollection) and other.relations[0] in FLIPPED
        return value if inequality and variables(other) == {name.name} else node
    return node if name.name in variables(other) else value


def _same_comparison(reference: ComparisonChain, answer: ComparisonChain, rules: EqualityRules) -> bool:
    one, other = solved(reference), solved(answer)
    if one is not None and other is not None:
        name, second = one[0].name, other[0].name
        if name == second or (name == "y" and second.endswith("(x)")) or (name, second) == ("f(x)", "y"):
            return same_answer(one[1], other[1], rules)
    if reference.relations == answer.relations == ("=",):
        if rules.same_form or (one is not None and not variables(one[1])):
            return False
        return same_relation(reference, answer)
    left, right = as_interval(reference), as_interval(answer)
    if left is not None and right is not None:
        return variables(reference) == variables(answer) and _same_collection(left, right, rules)
    if left is None and not rules.same_form and same_relation(reference, answer):
        return True
    return any(
        reference.relations == other_way.relations
        and all(same_answer(*pair, rules) for pair in zip(reference.sides, other_way.sides, strict=True))
        for other_way in (answer, turned(answer))
    )


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
        names_are_lost = any(
            len({pair[0] for item in one.items if (pair := solved(item)) is not None}) > 1
            and not all(isinstance(item, ComparisonChain) for item in other.items)
            for one, other in ((reference, answer), (answer, reference))
        )
        if len(wanted) != len(answers) or len(wanted) > MAX_PAIRED or names_are_lost:
            return False
        for item in wanted:
            match = next((place for place, one in enumerate(answers) if same_answer(item, one, rules)), None)
            if match is None:
                return False
            del answers[match]
        return True
    vectors = kinds == {"()", "[]"} and len(reference.items) > 2
    names = [sorted(variables(node)) for node in (reference, answer)]
    if (
        reference.kind == "()"
        and names[0] != names[1]
        and all(len(one) == 1 and one[0] in _PARAMETERS for one in names)
    ):
        # The points of a line, by another parameter
        items = (substituted(item, {names[1][0]: NamedSymbol(names[0][0])}) for item in answer.items)
        answer = ValueCollection(answer.kind, tuple(items))
    return (
        (len(kinds) == 1 or vectors)
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
    if (value := rational(node)) is not None:
        return NumberLiteral(value * factor) if factor != 1 else node
    return node if factor == 1 else MathOperation("product", (NumberLiteral(factor), node))


def _same_number(reference: MathNode, answer: MathNode, rules: EqualityRules) -> bool:
    """Equality of two numbers or expressions: exact, except where the reference is a decimal that may be rounded."""
    if rules.same_form:
        return _ordered(reference) == _ordered(answer)
    names = variables(reference)
    if same_up_to_constants(reference, answer):
        return True
    if not variables(answer) <= names:
        return False
    if isinstance(reference, NumberLiteral) and (reference.digits >= ROUNDED_DIGITS or rules.relative_tolerance):
        return _rounds_to(reference, answer, rules.relative_tolerance)
    if rules.relative_tolerance and not names:
        expected, actual = real_value(reference), real_value(answer)
        if expected is None or actual is None:
            return same_value(reference, answer, frozenset()) is True
        return abs(actual - expected) <= Fraction(rules.relative_tolerance) * abs(expected)
    if not rules.any_form and rational(reference) is not None and rational(answer) is None:
        return False  # a root or constant that cancels is work left undone
    return same_value(reference, answer, names) is True


def _rounds_to(reference: NumberLiteral, answer: MathNode, tolerance: float) -> bool:
    """Whether an answer rounds to a decimal at its last digit; or, where that is a floating-point number printed in
    full, is this number rounded to at least six digits."""
    exact = real_value(answer)
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
