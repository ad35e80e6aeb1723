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
from dataclasses import dataclass
from fractions import Fraction

from hone.rewards.mathematics.final_form import rational
from hone.rewards.mathematics.tokens import FUNCTION_NAMES, SCALES, MathToken, mixed_number, split_unit, tokens_of
from hone.rewards.mathematics.tree import (
    GREEK_NAMES,
    ComparisonChain,
    MathNode,
    MathOperation,
    MathSyntaxError,
    MeasuredQuantity,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
)

# ---------------------------------------------------------------------------------------------------------------- nodes


def _matrix_of(rows: Sequence[Sequence[MathNode]]) -> ValueCollection:
    if len({len(row) for row in rows}) != 1:
        raise MathSyntaxError("rows of different lengths")
    return ValueCollection("matrix", tuple(ValueCollection("row", tuple(row)) for row in rows))


def _scalar(node: MathNode) -> MathNode:
    """The node, when it is a single value. Raises MathSyntaxError for arithmetic with a set, tuple or matrix."""
    if isinstance(node, ValueCollection):
        raise MathSyntaxError("arithmetic with several values")
    return node


def _negative(node: MathNode) -> MathNode:
    """The negative of a value; of a positive number as one literal."""
    if isinstance(node, NumberLiteral) and node.value > 0:
        return NumberLiteral(-node.value, node.digits)
    return MathOperation("negation", (node,))


def _product(left: MathNode, right: MathNode) -> MathNode:
    """The product of two values; `1.5 * 10^3` is one literal."""
    power = rational(right) if isinstance(right, MathOperation) and right.name == "power" else None
    if isinstance(left, NumberLiteral) and power is not None:
        return NumberLiteral(left.value * power, left.digits)
    before = left.operands if isinstance(left, MathOperation) and left.name == "product" else (left,)
    return MathOperation("product", tuple(_scalar(one) for one in (*before, right)))


def _percent(node: MathNode) -> MathNode:
    if isinstance(node, NumberLiteral):
        return NumberLiteral(node.value / 100, node.digits)
    return MathOperation("quotient", (_scalar(node), NumberLiteral(Fraction(100))))


# ---------------------------------------------------------------------------------------------------------- expressions

_TIMES = frozenset({"*", "\\cdot", "\\times"})
_DIVIDE = frozenset({"/", "\\div"})
_FUNCTIONS = {f"\\{name}": name for name in FUNCTION_NAMES - {"sqrt"}} | {"\\lg": "log"}
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_SYMBOLS = frozenset(GREEK_NAMES) | {"infty", "ell", "hbar"}
_BRACKETS = {"(": ")", "[": "]", "\\langle": "\\rangle"}
_ENDS = frozenset({")", "]", "\\rangle"})
_UNDONE = {
    "\\int": "an integral",
    "\\iint": "an integral",
    "\\oint": "an integral",
    "\\sum": "a sum over an index",
    "\\prod": "a product over an index",
    "\\lim": "a limit",
    "\\det": "a determinant",
    "\\max": "a maximum",
    "\\min": "a minimum",
    "\\gcd": "a greatest common divisor",
    "\\mod": "a remainder",
    "\\bmod": "a remainder",
    "\\pmod": "a remainder",
}
_MATRICES = frozenset({"pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array", "vmatrix"})


@dataclass(slots=True)
class _ExpressionParser:
    """Reads tokens from left to right."""

    tokens: Sequence[MathToken]
    place: int = 0
    open_bars: int = 0

    def whole(self) -> MathNode:
        """The value of all tokens. Raises MathSyntaxError when a token is left over."""
        parts = [self._over()]
        while self._peek() == "\\cup" or (self._peek() == "U" and isinstance(parts[-1], ValueCollection)):
            self._take()
            parts.append(self._over())
        if len(parts) > 1 and not all(isinstance(part, ValueCollection) for part in parts):
            raise MathSyntaxError("a union of values that are no sets")
        node = parts[0] if len(parts) == 1 else ValueCollection("union", tuple(parts))
        if self.place < len(self.tokens):
            raise MathSyntaxError(self._complaint())
        return node

    def _peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    def _kind(self) -> str:
        return self.tokens[self.place].kind if self.place < len(self.tokens) else ""

    def _take(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1].text

    def _expect(self, text: str) -> None:
        if self._peek() != text:
            raise MathSyntaxError(f"{text} is missing")
        self.place += 1

    def _complaint(self) -> str:
        text = self._peek()
        if text in _UNDONE:
            return _UNDONE[text]
        return f"{text!r} in this place" if text else "an end in the middle"

    def _over(self) -> MathNode:
        node = self._sum()
        if self._peek() in ("\\over", "\\choose"):
            name = "quotient" if self._take() == "\\over" else "binomial"
            node = MathOperation(name, (_scalar(node), _scalar(self._sum())))
        return node

    def _sum(self) -> MathNode:
        terms = [self._term()]
        while self._peek() in ("+", "-"):
            minus = self._take() == "-"
            if self._peek() in ("+", "-"):
                raise MathSyntaxError("two signs in a row")
            term = self._term()
            terms.append(MathOperation("negation", (_scalar(term),)) if minus else term)
        return terms[0] if len(terms) == 1 else MathOperation("sum", tuple(_scalar(term) for term in terms))

    def _term(self) -> MathNode:
        if self._peek() in ("+", "-"):
            minus = self._take() == "-"
            node = self._term()
            return _negative(_scalar(node)) if minus else node
        node = self._mixed_number() or self._factor()
        while True:
            text = self._peek()
            if text in _TIMES:
                self._take()
                node = _product(node, self._signed_factor())
            elif text in _DIVIDE:
                self._take()
                node = MathOperation("quotient", (_scalar(node), _scalar(self._signed_factor())))
            elif self._starts_factor():
                node = _product(node, self._factor())
            else:
                return node

    def _signed_factor(self) -> MathNode:
        if self._peek() == "-":
            self._take()
            return _negative(_scalar(self._factor()))
        return self._factor()

    def _starts_factor(self) -> bool:
        """Whether a product without a sign goes on here. A number right behind a number does not."""
        text, kind = self._peek(), self._kind()
        if kind == "number":
            return self.tokens[self.place - 1].kind in ("letter", "sign") and self._peek(-1) not in "%!°"
        if kind == "letter":
            return text != "U"
        if text == "|":
            return self.open_bars == 0
        return text in ("(", "{", "\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil") or (
            text in _FUNCTIONS or text[1:] in _SYMBOLS or text.startswith("\\begin{")
        )

    def _mixed_number(self) -> MathNode | None:
        mixed = mixed_number(self.tokens[self.place : self.place + 8])
        if mixed is None:
            return None
        self.place += mixed[1]
        return mixed[0]

    def _factor(self) -> MathNode:
        node = self._primary()
        while True:
            text = self._peek()
            if text == "^":
                self._take()
                node = MathOperation("power", (_scalar(node), _scalar(self._argument(signed=True))))
            elif text == "!":
                self._take()
                node = MathOperation("factorial", (_scalar(node),))
            elif text == "%" or text.lower() in ("percent", "percents"):
                self._take()
                node = _percent(node)
            elif text == "°":
                self._take()
                node = MathOperation("degrees", (_scalar(node),))
            elif text in SCALES and isinstance(node, NumberLiteral):
                node = NumberLiteral(node.value * SCALES[self._take()], node.digits)
            else:
                return node

    def _argument(self, *, signed: bool = False) -> MathNode:
        r"""An argument of `\frac`, `\sqrt` or `^`: a group in braces, a single token, or a whole factor behind `^`."""
        if self._peek() == "{":
            return self._group("}")
        if signed:
            return self._signed_factor()
        if self._kind() == "number":
            token = self.tokens[self.place]
            digits = token.text
            if len(digits) > 1 and digits.isdecimal():  # \frac12: one digit at a time
                rest = MathToken("number", digits[1:], NumberLiteral(Fraction(digits[1:])))
                self.tokens = [*self.tokens[: self.place + 1], rest, *self.tokens[self.place + 1 :]]
                self.place += 1
                return NumberLiteral(Fraction(digits[0]))
        return self._primary()

    def _group(self, closing: str) -> MathNode:
        self.place += 1
        bars, self.open_bars = self.open_bars, 0
        node = self._over()
        self._expect(closing)
        self.open_bars = bars
        return node

    def _primary(self) -> MathNode:
        kind, text = self._kind(), self._peek()
        if kind == "number":
            number = self.tokens[self.place].number
            self.place += 1
            if self._peek() == "_" and number is not None:
                return NamedSymbol(text + self._subscript())  # digits in another base
            if number is not None:
                return number
        if kind == "letter" or text[1:] in _SYMBOLS:
            self.place += 1
            name = text.removeprefix("\\") + self._subscript()
            return NamedSymbol(name)
        if kind == "word" and text.lower() in ("negative", "minus"):
            self.place += 1
            return _negative(_scalar(self._factor()))
        if text in _FUNCTIONS:
            return self._function()
        if kind == "command":
            return self._command()
        if text in ("(", "[", "{"):
            return self._bracketed(text)
        if text == "|" and self.open_bars == 0:
            self.place += 1
            self.open_bars += 1
            node = self._sum()
            self._expect("|")
            self.open_bars -= 1
            return MathOperation("absolute value", (_scalar(node),))
        raise MathSyntaxError(self._complaint())

    def _subscript(self) -> str:
        if self._peek() != "_":
            return ""
        self.place += 1
        if self._peek() != "{":
            if self._kind() not in ("number", "letter"):
                raise MathSyntaxError(self._complaint())
            return f"_{self._take()}"
        parts: list[str] = []
        self.place += 1
        while self._kind() in ("number", "letter", "word") or self._peek() in ("+", "-"):
            parts.append(self._take())
        self._expect("}")
        return f"_{''.join(parts)}"

    def _function(self) -> MathNode:
        name, base, power = _FUNCTIONS[self._take()], None, None
        if self._peek() == "_" and name == "log":
            self.place += 1
            base = self._argument()
        if self._peek() == "^":
            self.place += 1
            power = self._argument(signed=True)
        if power == NumberLiteral(Fraction(-1)) and name in _INVERSES:
            name, power = _INVERSES[name], None
        argument = self._function_argument()
        operands = (argument,) if base is None else (argument, _scalar(base))
        if name == "exp":
            name, operands = "power", (NamedSymbol("e"), argument)
        node = MathOperation(name, operands)
        return node if power is None else MathOperation("power", (node, _scalar(power)))

    def _function_argument(self) -> MathNode:
        r"""`(...)`, or the product up to the next function or sum: `\sin 2x \cos x` has `2x`."""
        if self._peek() in ("(", "{"):
            return _scalar(self._bracketed(self._peek()))
        node = self._signed_factor()
        while self._starts_factor() and self._peek() not in _FUNCTIONS and self._peek() not in ("(", "|"):
            node = _product(node, self._factor())
        return _scalar(node)

    def _command(self) -> MathNode:
        text = self._peek()
        if text.startswith("\\begin{"):
            return self._matrix()
        if text == "\\{":
            self.place += 1
            return self._items("set", ("\\}",))
        if text == "\\langle":
            return self._bracketed(text)
        if text == "\\mathbb" and [self._peek(ahead) for ahead in (1, 2, 3)] == ["{", "R", "}"]:
            self.place += 4
            infinity = NamedSymbol("infty")
            return ValueCollection("()", (_negative(infinity), infinity))
        if text == "\\emptyset":
            self.place += 1
            return ValueCollection("set", ())
        if text in ("\\frac", "\\binom"):
            self.place += 1
            operands = (_scalar(self._argument()), _scalar(self._argument()))
            return MathOperation("quotient" if text == "\\frac" else "binomial", operands)
        if text == "\\sqrt":
            return self._root()
        if text in ("\\lfloor", "\\lceil"):
            name, closing = ("floor", "\\rfloor") if text == "\\lfloor" else ("ceiling", "\\rceil")
            return MathOperation(name, (_scalar(self._group(closing)),))
        raise MathSyntaxError(self._complaint())

    def _root(self) -> MathNode:
        self.place += 1
        degree: MathNode = NumberLiteral(Fraction(2))
        if self._peek() == "[":
            degree = _scalar(self._group("]"))
        if self._peek() == "(":
            radicand = self._bracketed("(")
        else:
            radicand = self._group("}") if self._peek() == "{" else self._primary()
        return MathOperation("root", (_scalar(radicand), degree))

    def _bracketed(self, opening: str) -> MathNode:
        self.place += 1
        if opening == "{":
            node = self._items("set", ("}",))
            assert isinstance(node, ValueCollection)
            return node.items[0] if len(node.items) == 1 else node
        node = self._items(opening.replace("\\langle", "("), tuple(_ENDS))
        if isinstance(node, ValueCollection) and len(node.items) == 1:
            only = node.items[0]
            if node.kind == "()" or (isinstance(only, ValueCollection) and only.kind == "matrix"):
                return only
        return node

    def _items(self, kind: str, closings: tuple[str, ...]) -> MathNode:
        bars, self.open_bars = self.open_bars, 0
        items: list[MathNode] = []
        while self._peek() not in closings:
            if items:
                self._expect(",")
            items.append(self._over())
        end = self._take()
        self.open_bars = bars
        if kind != "set":
            kind = kind + end.replace("\\rangle", ")")
            if kind in ("(]", "[)") and len(items) != 2:
                raise MathSyntaxError("brackets that do not match")
            if (
                kind == "[]"
                and items
                and all(isinstance(item, ValueCollection) and item.kind == "[]" for item in items)
            ):
                return _matrix_of([item.items for item in items if isinstance(item, ValueCollection)])
        if not items and kind != "set":
            raise MathSyntaxError("empty brackets")
        return ValueCollection(kind, tuple(items))

    def _matrix(self) -> MathNode:
        name = self._take()[len("\\begin{") : -1]
        if name not in _MATRICES:
            raise MathSyntaxError(f"the environment {name}")
        if name == "array" and self._peek() == "{":
            while self._peek() not in ("}", ""):
                self.place += 1
            self._expect("}")
        rows: list[list[MathNode]] = [[]]
        while not self._peek().startswith("\\end{"):
            rows[-1].append(_scalar(self._over()))
            if self._peek() == "\\\\":
                self.place += 1
                if not self._peek().startswith("\\end{"):
                    rows.append([])
            elif self._peek() == "&":
                self.place += 1
            elif not self._peek().startswith("\\end{"):
                raise MathSyntaxError(self._complaint())
        self.place += 1
        matrix = _matrix_of(rows)
        return MathOperation("determinant", (matrix,)) if name == "vmatrix" else matrix


# -------------------------------------------------------------------------------------------------------------- grammar

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
    items: list[MathNode] = []
    for piece in pieces:
        if any(token.text in ("\\pm", "\\mp") for token in piece):  # two values
            items += [_comparison([_signed(token, upper=upper) for token in piece]) for upper in (True, False)]
        else:
            items.append(_comparison(piece))
    return items[0] if len(items) == 1 else ValueCollection("list", tuple(items))


def _split(tokens: Sequence[MathToken], at: frozenset[str]) -> tuple[list[list[MathToken]], list[str]]:
    """Pieces between separators outside brackets, and the separators."""
    pieces: list[list[MathToken]] = [[]]
    separators: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token.text in _OPENING or token.text.startswith("\\begin")) - (
            token.text in _CLOSING or token.text.startswith("\\end")
        )
        if depth == 0 and token.text.lower() in at and token.kind != "letter":
            pieces.append([])
            separators.append(token.text)
        else:
            pieces[-1].append(token)
    return pieces, separators


def _signed(token: MathToken, *, upper: bool) -> MathToken:
    if token.text not in ("\\pm", "\\mp"):
        return token
    return MathToken("sign", "+" if (token.text == "\\pm") == upper else "-")


def _comparison(tokens: Sequence[MathToken]) -> MathNode:
    sides, relations = _split(tokens, frozenset(_RELATIONS))
    nodes = tuple(_side(side) for side in sides)
    if len(nodes) == 1:
        return nodes[0]
    return ComparisonChain(tuple(_RELATIONS[relation] for relation in relations), nodes)


def _side(tokens: Sequence[MathToken]) -> MathNode:
    texts = [token.text for token in tokens]
    if len(tokens) == 4 and tokens[0].kind == tokens[2].kind == "letter" and (texts[1], texts[3]) == ("(", ")"):
        return NamedSymbol("".join(texts))  # f(x)
    number, factor, dimensions = split_unit(tokens)
    if not number:
        raise MathSyntaxError("an empty value")
    parser = _ExpressionParser(number)
    node = parser.whole()
    return MeasuredQuantity(node, factor, dimensions) if dimensions else node
