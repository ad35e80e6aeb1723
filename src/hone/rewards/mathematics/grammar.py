"""A parser of answers: one value, or the values of a list, as a tree.

    answer     := side (relation side)*  separated by `,` `or` `and`
    side       := [currency] sum [unit]
    sum        := term (("+" | "-") term)*
    term       := factor (["*" | "/"] factor)*       a missing sign is a product; `1 1/2` is a mixed number
    factor     := ("+" | "-") factor | primary ("^" factor | "!" | "%" | "°")*
    primary    := number | variable | function factor | \\frac | \\sqrt | \\binom | brackets | matrix

Operations that leave the work undone and have no closed form here (integrals, sums over an index, limits) are syntax
errors that name the operation. `\\pm` gives two values.
"""

from collections.abc import Sequence

from hone.rewards.mathematics.expressions import ExpressionParser
from hone.rewards.mathematics.tokens import MathToken, tokens_of
from hone.rewards.mathematics.tree import (
    ComparisonChain,
    MathNode,
    MathSyntaxError,
    MeasuredQuantity,
    NamedSymbol,
    ValueCollection,
)
from hone.rewards.mathematics.units import split_unit

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
_OPENING = frozenset({"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"})
_CLOSING = frozenset({")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"})
_SEPARATORS = frozenset({",", "or", "and", "\\lor", "\\land"})


def parse_answer(text: str) -> MathNode:
    """The value of an answer in `one_spelling`. Raises MathSyntaxError: no value, or an operation left undone."""
    tokens = tokens_of(text)
    pieces, separators = _split(tokens, _SEPARATORS)
    if len(pieces) > 1:
        pieces = [
            piece
            for place, piece in enumerate(pieces)
            if piece
            or not (separators[place : place + 1] in (["and"], ["or"]) and separators[place - 1 : place] == [","])
        ]
    items = [item for piece in pieces for item in _statement(piece)]
    return items[0] if len(items) == 1 else ValueCollection("list", tuple(items))


def _split(tokens: Sequence[MathToken], at: frozenset[str]) -> tuple[list[list[MathToken]], list[str]]:
    """Pieces between separators outside brackets, and the separators."""
    pieces: list[list[MathToken]] = [[]]
    found: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token.text in _OPENING or token.text.startswith("\\begin")) - (
            token.text in _CLOSING or token.text.startswith("\\end")
        )
        if depth == 0 and token.text.lower() in at and token.kind != "letter":
            pieces.append([])
            found.append(token.text)
        else:
            pieces[-1].append(token)
    return pieces, found


def _statement(tokens: Sequence[MathToken]) -> list[MathNode]:
    """One value or comparison; two where it contains a plus-minus sign."""
    signs = [token.text for token in tokens if token.text in ("\\pm", "\\mp")]
    if not signs:
        return [_comparison(tokens)]
    return [_comparison([_signed(token, upper=upper) for token in tokens]) for upper in (True, False)]


def _signed(token: MathToken, *, upper: bool) -> MathToken:
    if token.text not in ("\\pm", "\\mp"):
        return token
    return MathToken("sign", "+" if (token.text == "\\pm") == upper else "-")


def _comparison(tokens: Sequence[MathToken]) -> MathNode:
    sides, found = _split(tokens, frozenset(_RELATIONS))
    nodes = tuple(_side(side) for side in sides)
    if len(nodes) == 1:
        return nodes[0]
    return ComparisonChain(tuple(_RELATIONS[relation] for relation in found), nodes)


def _side(tokens: Sequence[MathToken]) -> MathNode:
    texts = [token.text for token in tokens]
    if len(tokens) == 4 and tokens[0].kind == tokens[2].kind == "letter" and (texts[1], texts[3]) == ("(", ")"):
        return NamedSymbol("".join(texts))  # f(x)
    number, factor, dimensions = split_unit(tokens)
    if not number:
        raise MathSyntaxError("an empty value")
    parser = ExpressionParser(number)
    node = parser.whole()
    return MeasuredQuantity(node, factor, dimensions) if dimensions else node
