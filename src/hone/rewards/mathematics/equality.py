"""Equality of two answers as trees: collections by their items, quantities by their units, numbers by their digits."""

from dataclasses import dataclass
from fractions import Fraction

from hone.rewards.mathematics.evaluation import real_value, same_value
from hone.rewards.mathematics.monomials import rational
from hone.rewards.mathematics.tree import (
    ComparisonChain,
    MathNode,
    MathOperation,
    MeasuredQuantity,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
    variables,
)

# ------------------------------------------------------------------------------------------------------------ same form


def ordered(node: MathNode) -> str:
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
            return f"power({ordered(radicand)},{ordered(inverse)})"
        case MathOperation(name=name, operands=operands):
            return f"{name}({','.join(ordered(operand) for operand in operands)})"
        case _:
            return repr(node)


def _joined(sign: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({sign.join(sorted(parts))})"


def _terms(node: MathNode) -> list[str]:
    if isinstance(node, MathOperation) and node.name == "sum":
        return [term for one in node.operands for term in _terms(one)]
    return [ordered(node)]


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
            return Fraction(1), [ordered(over), f"power({ordered(under)},-1)"]
        case _:
            return Fraction(1), [ordered(node)]


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
    """The chain read from the right."""
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
    factor = _ratio_at_one_point(one, other, names)
    return factor is not None and same_value(one, MathOperation("product", (factor, other)), names) is True


def _ratio_at_one_point(one: MathNode, other: MathNode, names: frozenset[str]) -> NumberLiteral | None:
    point = {name: NumberLiteral(Fraction(7 + 4 * place, 3)) for place, name in enumerate(sorted(names))}
    values = [real_value(_substituted(node, point)) for node in (one, other)]
    return NumberLiteral(values[0] / values[1]) if values[0] and values[1] else None


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
        return _same_items(reference, answer, rules)
    return (
        len(kinds) == 1
        and len(reference.items) == len(answer.items)
        and all(same_answer(*pair, rules) for pair in zip(reference.items, answer.items, strict=True))
    )


def _same_items(reference: ValueCollection, answer: ValueCollection, rules: EqualityRules) -> bool:
    """Equality in any order; a set holds each value once."""
    wanted, given = list(reference.items), list(answer.items)
    if "set" in (reference.kind, answer.kind):
        wanted, given = list(dict.fromkeys(wanted)), list(dict.fromkeys(given))
    for item in list(wanted):
        if item in given:
            wanted.remove(item)
            given.remove(item)
    if len(wanted) != len(given) or len(wanted) > MAX_PAIRED or _names_are_lost(reference, answer):
        return False
    for item in wanted:
        match = next((place for place, one in enumerate(given) if same_answer(item, one, rules)), None)
        if match is None:
            return False
        del given[match]
    return True


def _names_are_lost(reference: ValueCollection, answer: ValueCollection) -> bool:
    """Whether the reference names different variables, and the answer gives values without names."""
    names = {solved[0] for item in reference.items if (solved := _solved(item)) is not None}
    return len(names) > 1 and not all(isinstance(item, ComparisonChain) for item in answer.items)


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
        return ordered(reference) == ordered(answer)
    names = variables(reference)
    if not variables(answer) <= names:
        return False
    if isinstance(reference, NumberLiteral) and (reference.digits >= ROUNDED_DIGITS or rules.relative_tolerance):
        return _rounds_to(reference, answer, rules.relative_tolerance)
    if rules.relative_tolerance and not names:
        return _within(reference, answer, rules.relative_tolerance)
    if not rules.any_form and rational(reference) is not None and rational(answer) is None:
        return False  # a root or constant that cancels is work left undone
    return same_value(reference, answer, names) is True


def _within(reference: MathNode, answer: MathNode, tolerance: float) -> bool:
    expected, found = real_value(reference), real_value(answer)
    if expected is None or found is None:
        return same_value(reference, answer, frozenset()) is True
    return abs(found - expected) <= Fraction(tolerance) * abs(expected)


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
