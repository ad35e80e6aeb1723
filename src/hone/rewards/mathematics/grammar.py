"""A parser of answers: one value, or the values of a list, as a tree.

    answer     := side (relation side)*  separated by `,` `or` `and`
    side       := [currency] sets [unit]
    sets       := sum (("\\cup" | "\\cap" | "\\setminus") sum)*      `\\cup` binds weakest
    sum        := term (("+" | "-") term)*
    term       := factor (["*" | "/"] factor)*       a missing sign is a product; `1 1/2` is a mixed number
    factor     := ("+" | "-") factor | primary ("^" factor | "!" | "%" | "°")*
    primary    := number | variable | function factor | \\frac | \\sqrt | \\binom | brackets | matrix

Operations that leave the work undone and have no closed form here (integrals, sums over an index, limits) are syntax
errors that name the operation. `\\pm` gives two values. Comparisons that are separated by `or` are one statement, of
which one holds; with `and` or a comma all hold. `k \\in \\mathbb{Z}` beside a value with k in it declares an index.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from hone.rewards.mathematics.expressions import CLOSING, OPENING, ExpressionParser, declared_name, signed
from hone.rewards.mathematics.tokens import MathToken, split_unit, tokens_of
from hone.rewards.mathematics.tree import (
    ComparisonChain,
    MathNode,
    MathSyntaxError,
    MeasuredQuantity,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
    variables,
)

_RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "\\le": "<=",
    "\\ge": ">=",
    "\\neq": "!=",
    "\\in": "in",
    "\\approx": "~",
    "\\equiv": "==",
    "\\cong": "~=",
    "\\mid": "|",
}
_SEPARATORS = frozenset({",", "or", "and", "\\lor", "\\land"})


def parse_answer(text: str) -> MathNode:
    """The value of an answer in `one_spelling`. Raises MathSyntaxError: no value, or an operation left undone."""
    return _statement(tokens_of(text))


def _statement(tokens: Sequence[MathToken]) -> MathNode:
    """One value or comparison, or several of them."""
    pieces, separators = _split(tokens, _SEPARATORS)
    kept = [
        place
        for place, piece in enumerate(pieces)
        if piece
        or len(pieces) == 1
        or not (separators[place : place + 1] in (["and"], ["or"]) and separators[place - 1 : place] == [","])
    ]
    parts: list[list[MathNode]] = []
    for place in kept:
        piece = pieces[place]
        depths = accumulate((token.text == "\\{") - (token.text == "\\}") for token in piece)
        if any(token.text in ("\\pm", "\\mp") and not depth for token, depth in zip(piece, depths, strict=True)):
            parts.append([_comparison([signed(token, upper=upper) for token in piece]) for upper in (True, False)])
        else:
            parts.append([_comparison(piece)])
    # A comma in front of `or` is gone with the empty piece behind it
    between = [separators[place - 1] for place in kept[1:]]
    return _with_indices(parts, between)


def _with_indices(parts: list[list[MathNode]], separators: list[str]) -> MathNode:
    """The statement of the parts, as a family where some of them declare indices of the others."""
    declared: set[int] = set()
    for place, part in enumerate(parts):
        others = [one for number, other in enumerate(parts) if number != place for one in other]
        name = declared_name(part[0]) if len(part) == 1 else ""
        # An index stands in a value, or in a comparison beside another variable
        uses = (variables(one) for one in others if not isinstance(one, ComparisonChain) or len(variables(one)) > 1)
        if name and any(name in names for names in uses):
            declared.add(place)
    if not declared:
        return _joined(parts, separators)
    kept = [place for place in range(len(parts)) if place not in declared]
    body = _joined([parts[place] for place in kept], [separators[place - 1] for place in kept[1:]])
    return ValueCollection("family", (body, *(parts[place][0] for place in sorted(declared))))


def _joined(parts: list[list[MathNode]], separators: list[str]) -> MathNode:
    """One node for several: a list of values, or a statement where a part is an inequality."""
    items = [one for part in parts for one in part]
    if len(items) == 1:
        return items[0]
    relations = {one for item in items if isinstance(item, ComparisonChain) for one in item.relations}
    if not relations & {"<", ">", "<=", ">=", "!=", "in"}:
        return ValueCollection("list", tuple(items))
    parts = _with_relations(parts)
    if not any(one.lower() in ("or", "\\lor") for one in separators):
        return ValueCollection("and", tuple(one for part in parts for one in part))
    alternatives: list[list[MathNode]] = [parts[0]]
    for part, separator in zip(parts[1:], separators, strict=True):
        if separator.lower() in ("and", "\\land"):
            alternatives[-1] = [*alternatives[-1], *part]
        else:
            alternatives.append(part)
    return ValueCollection(
        "or", tuple(one[0] if len(one) == 1 else ValueCollection("and", tuple(one)) for one in alternatives)
    )


def _with_relations(parts: list[list[MathNode]]) -> list[list[MathNode]]:
    r"""`x \neq 1, 2` as `x \neq 1, x \neq 2`."""
    result: list[list[MathNode]] = []
    last: ComparisonChain | None = None
    for values in parts:
        bare = last is not None and not any(isinstance(one, ComparisonChain | ValueCollection) for one in values)
        part = list(values)
        if last is not None and bare:
            part[:] = [ComparisonChain(last.relations, (last.sides[0], one)) for one in values]
        result.append(part)
        last = part[-1] if isinstance(part[-1], ComparisonChain) and part[-1].relations == ("!=",) else None
    return result


def _split(tokens: Sequence[MathToken], at: frozenset[str]) -> tuple[list[list[MathToken]], list[str]]:
    """Pieces between separators outside brackets, and the separators."""
    pieces: list[list[MathToken]] = [[]]
    separators: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token.text in OPENING or token.text.startswith("\\begin")) - (
            token.text in CLOSING or token.text.startswith("\\end")
        )
        if depth == 0 and token.text.lower() in at and token.kind != "letter":
            pieces.append([])
            separators.append(token.text)
        else:
            pieces[-1].append(token)
    return pieces, separators


def _comparison(tokens: Sequence[MathToken]) -> MathNode:
    sides, relations = _split(tokens, frozenset(_RELATIONS))
    for place, relation in enumerate(relations):
        if relation == "\\in" and [token.text for token in sides[place + 1]] in (["R"], ["Z"], ["N"], ["Q"]):
            sides[place + 1] = [MathToken("command", "\\mathbb"), *sides[place + 1]]
    nodes = tuple(_side(side) for side in sides)
    if len(nodes) == 1:
        return nodes[0]
    return ComparisonChain(tuple(_RELATIONS[relation] for relation in relations), nodes)


def _side(tokens: Sequence[MathToken]) -> MathNode:
    texts = [token.text for token in tokens]
    if len(tokens) == 4 and tokens[0].kind == tokens[2].kind == "letter" and (texts[1], texts[3]) == ("(", ")"):
        return NamedSymbol("".join(texts))  # f(x)
    if (quantity := _compound(tokens)) is not None:
        return quantity
    number, factor, dimensions = split_unit(tokens)
    if not number:
        raise MathSyntaxError("an empty value")
    parser = ExpressionParser(number, _statement)
    node = parser.whole()
    return MeasuredQuantity(node, factor, dimensions) if dimensions else node


def _compound(tokens: Sequence[MathToken]) -> MeasuredQuantity | None:
    """A quantity in several units, `2 h 30 min`, the greatest one first; None for anything else."""
    places = range(1, len(tokens))
    begins = [
        0,
        *(one for one in places if tokens[one].kind == "number" and tokens[one - 1].kind in ("word", "letter")),
    ]
    if len(begins) < 2:
        return None
    parts = [split_unit(tokens[begin:end]) for begin, end in zip(begins, [*begins[1:], len(tokens)], strict=True)]
    numbers = [part[0][0].number if len(part[0]) == 1 else None for part in parts]
    factors = [part[1] for part in parts]
    if None in numbers or not parts[0][2] or len({part[2] for part in parts}) > 1:
        return None
    if any(right >= left for left, right in pairwise(factors)):
        return None
    total = sum((one.value * factor for one, factor in zip(numbers, factors, strict=True) if one), Fraction(0))
    return MeasuredQuantity(NumberLiteral(total / factors[0]), factors[0], parts[0][2])
