"""A parser of expressions and sets, from left to right. The whole language is in `grammar`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hone.rewards.mathematics.final_form import rational
from hone.rewards.mathematics.tokens import FUNCTION_NAMES, SCALES, MathToken, mixed_number
from hone.rewards.mathematics.tree import (
    GREEK_NAMES,
    ComparisonChain,
    MathNode,
    MathOperation,
    MathSyntaxError,
    NamedSymbol,
    NumberLiteral,
    ValueCollection,
    variables,
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


def _scaled(factor: MathNode, node: MathNode) -> MathNode:
    """The product of a number and a vector or matrix, entry by entry; of two numbers as one literal."""
    if isinstance(node, ValueCollection):
        return ValueCollection(node.kind, tuple(_scaled(factor, one) for one in node.items))
    one, other = rational(factor), rational(node)
    return MathOperation("product", (factor, node)) if one is None or other is None else NumberLiteral(one * other)


def _added(terms: Sequence[MathNode]) -> MathNode:
    r"""The sum of values, or of vectors entry by entry: `(1, 2) + t(3, 4)`. Raises MathSyntaxError."""
    vectors = [term for term in terms if isinstance(term, ValueCollection)]
    if not vectors:
        return MathOperation("sum", tuple(terms))
    shapes = {(term.kind, len(term.items)) for term in vectors if term.kind in _VECTORS}
    if len(shapes) != 1 or len(vectors) != len(terms):
        raise MathSyntaxError("arithmetic with several values")
    if sum(not variables(term) for term in terms) > 1:
        raise MathSyntaxError("a sum of vectors that is not done")
    entries: list[MathNode] = []
    for row in zip(*(term.items for term in vectors), strict=True):
        kept = [one for one in row if rational(one) != 0]
        entries.append(_added(kept) if len(kept) > 1 else kept[0] if kept else row[0])
    return ValueCollection(vectors[0].kind, tuple(entries))


def _minus(node: MathNode) -> MathNode:
    """The negative of a value, or of a vector or matrix."""
    if isinstance(node, ValueCollection) and node.kind in _VECTORS:
        return _scaled(NumberLiteral(Fraction(-1)), node)
    return MathOperation("negation", (_scalar(node),))


def _product(left: MathNode, right: MathNode) -> MathNode:
    """The product of two values; `1.5 * 10^3` is one literal."""
    match right:
        case ValueCollection(kind=kind) if kind in _VECTORS and not isinstance(left, ValueCollection):
            return _scaled(left, right)
        case MathOperation(name="power", operands=(NumberLiteral(value=Fraction(numerator=10, denominator=1)), _)):
            power = rational(right)
            if isinstance(left, NumberLiteral) and power is not None:
                return NumberLiteral(left.value * power, left.digits)
        case ValueCollection() if isinstance(left, ValueCollection) and {left.kind, right.kind} <= _SET_KINDS:
            return ValueCollection("cartesian", (left, right))
        case _:
            pass
    before = left.operands if isinstance(left, MathOperation) and left.name == "product" else (left,)
    return MathOperation("product", tuple(_scalar(one) for one in (*before, right)))


def _quotient(over: MathNode, under: MathNode) -> MathNode:
    """The quotient of two values; `1/2^3` is the power `2^{-3}`."""
    match _scalar(over), _scalar(under):
        case (
            NumberLiteral(value=Fraction(numerator=1, denominator=1)),
            MathOperation(name="power", operands=(NumberLiteral() as base, NumberLiteral(value=exponent))),
        ) if exponent > 0 and exponent.denominator == base.value.denominator == 1:
            return MathOperation("power", (base, NumberLiteral(-exponent)))
        case _:
            return MathOperation("quotient", (over, under))


def _percent(node: MathNode) -> MathNode:
    if isinstance(node, NumberLiteral):
        return NumberLiteral(node.value / 100, node.digits)
    return MathOperation("quotient", (_scalar(node), NumberLiteral(Fraction(100))))


def _as_set(node: MathNode) -> MathNode:
    """The node, when it can be a set: several values, or a capital letter."""
    if isinstance(node, ValueCollection) and node.kind in _SET_KINDS:
        return node
    if isinstance(node, NamedSymbol) and node.name.isupper():
        return node
    raise MathSyntaxError("an operation of sets on values that are no sets")


def _number_set(name: str, part: str) -> MathNode:
    """All real, integer, natural, rational or complex numbers, or a part of the real ones."""
    zero, infinity = NumberLiteral(Fraction(0)), NamedSymbol("infty")
    reals = ValueCollection("()", (_negative(infinity), infinity))
    parts: dict[tuple[str, str], MathNode] = {
        ("R", ""): reals,
        **dict.fromkeys((("R", "+"), ("R", ">0")), ValueCollection("()", (zero, infinity))),
        **dict.fromkeys((("R", "-"), ("R", "<0")), ValueCollection("()", (_negative(infinity), zero))),
        ("R", "\\ge0"): ValueCollection("[)", (zero, infinity)),
        ("R", "\\le0"): ValueCollection("(]", (_negative(infinity), zero)),
        **dict.fromkeys(
            (("R", "*"), ("R", "\\neq0")), ValueCollection("difference", (reals, ValueCollection("set", (zero,))))
        ),
        **{(one, ""): ValueCollection(one, ()) for one in "ZNQC"},
        **dict.fromkeys((("Z", "+"), ("Z", ">0"), ("N", "+"), ("N", "*")), ValueCollection("N", ())),
    }
    if (name, part) not in parts:
        raise MathSyntaxError(f"the set {name}{part}")
    return parts[name, part]


def declared_name(node: MathNode) -> str:
    r"""The name of `k \in \mathbb{Z}`; empty for anything else."""
    match node:
        case ComparisonChain(relations=("in",), sides=(NamedSymbol(name=name), ValueCollection())):
            return name
        case _:
            return ""


_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "twelve": "12", "sixteen": "16"}  # fmt: skip


def _in_base(digits: str, subscript: str, number: NumberLiteral) -> MathNode:
    """Digits in another base as a name: only the same digits in the same base are equal. In base 10 the number."""
    base = _BASES.get(subscript.removeprefix("_").lower(), subscript.removeprefix("_"))
    return number if base == "10" else NamedSymbol(f"{digits}_{base}")


# ---------------------------------------------------------------------------------------------------------- expressions

_TIMES = frozenset({"*", "\\cdot", "\\times"})
_DIVIDE = frozenset({"/", "\\div"})
_FUNCTIONS = {f"\\{name}": name for name in FUNCTION_NAMES - {"sqrt"}}
_SET_OPERATIONS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}
_SET_KINDS = frozenset({"set", "()", "[]", "(]", "[)", "solutions", "family", "Z", "N", "Q", "C", "complement"})
_SET_KINDS |= frozenset(_SET_OPERATIONS.values())
_VECTORS = frozenset({"matrix", "row", "()"})
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_SYMBOLS = frozenset(GREEK_NAMES) | {"infty", "ell", "hbar"}
OPENING = frozenset({"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"})
CLOSING = frozenset({")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"})
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


def signed(token: MathToken, *, upper: bool) -> MathToken:
    r"""A sign in the place of `\pm` or `\mp`, the upper or the lower one; another token as it is."""
    if token.text not in ("\\pm", "\\mp"):
        return token
    return MathToken("sign", "+" if (token.text == "\\pm") == upper else "-")


@dataclass(slots=True)
class ExpressionParser:
    """Reads tokens from left to right."""

    tokens: Sequence[MathToken]
    statement: Callable[[Sequence[MathToken]], MathNode]
    """Reads what stands inside of a set builder."""
    place: int = 0
    open_bars: int = 0

    def whole(self) -> MathNode:
        """The value of all tokens. Raises MathSyntaxError when a token is left over."""
        node = self._sets()
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

    def _sets(self) -> MathNode:
        """A value, or sets joined by operations; intersections and differences bind stronger than unions."""
        begin, parts = self.place, [self._over()]
        while True:
            operation = _SET_OPERATIONS.get(self._peek(), "")
            if self._peek() == "U" and isinstance(parts[-1], ValueCollection):
                operation = "union"
            elif self._subtracts_set(parts[-1]):
                operation = "difference"
            if not operation:
                break
            if self._peek(-1) == "}" and not isinstance(parts[-1], ValueCollection) and self.tokens[begin].text == "{":
                parts[-1] = ValueCollection("set", (parts[-1],))  # {1}
            self._take()
            begin = self.place
            if self._peek() == "{":  # {1} is a set here
                self.place += 1
                right = self._set_builder("}") or self._items("set", ("}",))
            else:
                right = self._over()
            if operation == "union":
                parts.append(right)
            else:
                parts[-1] = ValueCollection(operation, (_as_set(parts[-1]), _as_set(right)))
        return parts[0] if len(parts) == 1 else ValueCollection("union", tuple(_as_set(part) for part in parts))

    def _subtracts_set(self, left: MathNode) -> bool:
        r"""Whether `-` means a difference of sets here: `\mathbb{R} - \{0\}`."""
        return isinstance(left, ValueCollection) and self._peek() == "-" and self._peek(1) in ("\\{", "{")

    def _over(self) -> MathNode:
        node = self._sum()
        if self._peek() in ("\\over", "\\choose"):
            name = "quotient" if self._take() == "\\over" else "binomial"
            node = MathOperation(name, (_scalar(node), _scalar(self._sum())))
        return node

    def _sum(self) -> MathNode:
        terms = [self._term()]
        while self._peek() in ("+", "-") and not self._subtracts_set(terms[0]):
            minus = self._take() == "-"
            if self._peek() in ("+", "-"):
                raise MathSyntaxError("two signs in a row")
            term = self._term()
            terms.append(_minus(term) if minus else term)
        return terms[0] if len(terms) == 1 else _added(terms)

    def _term(self) -> MathNode:
        if self._peek() in ("+", "-"):
            minus = self._take() == "-"
            node = self._term()
            if isinstance(node, ValueCollection):
                return _minus(node) if minus else node
            return _negative(node) if minus else node
        mixed = self._mixed_number()
        if mixed is not None and self._peek() == "%":
            self._take()
            mixed = _percent(mixed)
        node = mixed or self._factor()
        while True:
            text = self._peek()
            if text in _TIMES:
                self._take()
                node = _product(node, self._signed_factor())
            elif text in _DIVIDE:
                self._take()
                node = _quotient(node, self._signed_factor())
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
            return self.tokens[self.place - 1].kind in ("letter", "sign") and self._peek(-1) not in "%°"
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
                if isinstance(node, ValueCollection) and (node.kind in _SET_KINDS or self._peek() == "\\top"):
                    node = self._raised_set(node)
                else:
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

    def _raised_set(self, node: ValueCollection) -> MathNode:
        r"""A row with `^T` behind it; a set with `^c`, or with the number of its copies: `\mathbb{R}^2`."""
        if self._peek() == "\\top":
            self._take()
            row = node.items[0] if node.kind == "matrix" and len(node.items) == 1 else node
            if not isinstance(row, ValueCollection) or row.kind not in ("row", "()", "[]"):
                raise MathSyntaxError("a transposed matrix")
            return ValueCollection("()", row.items)
        raised = self._argument(signed=True)
        if raised == NamedSymbol("c"):
            return ValueCollection("complement", (node,))
        if raised not in [NumberLiteral(Fraction(copies)) for copies in range(2, 10)]:
            raise MathSyntaxError("arithmetic with several values")
        product: MathNode = node
        for _ in range(int(rational(raised) or 0) - 1):
            product = ValueCollection("cartesian", (product, node))
        return product

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
                return _in_base(text, self._subscript(), number)
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
        if name == "lg":
            name, base = "log", NumberLiteral(Fraction(10))
        elif self._peek() == "_" and name == "log":
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
            return self._set_builder("\\}") or self._items("set", ("\\}",))
        if text == "\\langle":
            return self._bracketed(text)
        if text == "\\mathbb":
            return self._number_set()
        if text == "\\emptyset":
            self.place += 1
            return ValueCollection("set", ())
        if text in ("\\frac", "\\binom"):
            self.place += 1
            operands = (_scalar(self._argument()), _scalar(self._argument()))
            return _quotient(*operands) if text == "\\frac" else MathOperation("binomial", operands)
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
            if built := self._set_builder("}"):
                return built
            node = self._items("set", ("}",))
            assert isinstance(node, ValueCollection)
            return node.items[0] if len(node.items) == 1 else node
        node = self._items(opening.replace("\\langle", "("), tuple(_ENDS))
        if isinstance(node, ValueCollection) and len(node.items) == 1:
            only = node.items[0]
            if node.kind == "()" or (isinstance(only, ValueCollection) and only.kind == "matrix"):
                whole = isinstance(only, NumberLiteral) and only.value.denominator == 1
                if isinstance(only, NumberLiteral) and whole and self._peek() == "_":  # (1011)_2
                    return _in_base(str(only.value), self._subscript(), only)
                return only
        return node

    def _number_set(self) -> MathNode:
        r"""`\mathbb{R}`, `\mathbb R^+`, `\mathbb{Z}_{\ge 0}` and their like."""
        self.place += 1
        braces = self._peek() == "{"
        self.place += braces
        name = self._take() if self.place < len(self.tokens) else ""
        if braces:
            self._expect("}")
        part = ""
        if self._peek() in ("^", "_") and self._peek(1) in ("+", "-", "*"):
            part, self.place = self._peek(1), self.place + 2
        elif self._peek() in ("^", "_") and self._peek(1) == "{":
            self.place += 2
            while self._peek() not in ("}", ""):
                part += self._take()
            self._expect("}")
        return _number_set(name, part)

    def _set_builder(self, closing: str) -> MathNode | None:
        r"""The set `\{value \mid statement\}` up to the closing brace; None where no statement is inside."""
        begin, depth, bars, end = self.place, 0, list[int](), self.place
        while end < len(self.tokens) and (depth or self.tokens[end].text != closing):
            text = self.tokens[end].text
            depth += (text in OPENING) - (text in CLOSING)
            if depth == 0 and text in ("|", ":", "\\mid"):
                bars.append(end)
            end += 1
        # A single bar, or the one in front of absolute values
        certain = [bar for bar in bars if self.tokens[bar].text != "|"]
        if not bars or (not certain and len(bars) % 2 == 0) or end == len(self.tokens):
            return None
        middle = certain[0] if certain else bars[0]
        body = self.statement(self.tokens[begin:middle])
        condition = self.statement(self.tokens[middle + 1 : end])
        self.place = end + 1
        match body:
            case NamedSymbol(name=name) if name in variables(condition) and declared_name(condition) != name:
                return ValueCollection("solutions", (condition,))
            case ComparisonChain(relations=("in",)):
                return ValueCollection("solutions", (ValueCollection("and", (body, condition)),))
            case _:
                conditions = condition.items if isinstance(condition, ValueCollection) else (condition,)
                return ValueCollection("family", (body, *conditions))

    def _items(self, kind: str, closings: tuple[str, ...]) -> MathNode:
        bars, self.open_bars = self.open_bars, 0
        items: list[MathNode] = []
        while self._peek() not in closings:
            if items:
                self._expect(",")
            items += self._alternatives() if kind == "set" else [self._sets()]
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

    def _alternatives(self) -> list[MathNode]:
        r"""An item of a set: two values where it has a `\pm`."""
        end, depth = self.place, 0
        while end < len(self.tokens) and (depth or self.tokens[end].text not in (",", "\\}", "}")):
            depth += (self.tokens[end].text in OPENING) - (self.tokens[end].text in CLOSING)
            end += 1
        item = self.tokens[self.place : end]
        if not any(token.text in ("\\pm", "\\mp") for token in item):
            return [self._sets()]
        self.place = end
        return [
            ExpressionParser([signed(token, upper=upper) for token in item], self.statement).whole()
            for upper in (True, False)
        ]

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
