"""Tokens of an answer in `one_spelling`: numbers, letters, words, commands and signs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from hone.rewards.mathematics.limits import MAX_EXPONENT
from hone.rewards.mathematics.tree import MathSyntaxError, NumberLiteral, word_set

TokenKind: TypeAlias = Literal["number", "letter", "word", "command", "sign"]


@dataclass(frozen=True, slots=True)
class MathToken:
    """A piece of an answer."""

    kind: TokenKind
    text: str
    number: NumberLiteral | None = None
    """Value of a number."""


FUNCTION_NAMES = word_set("""
sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt
""")
_NAMED = {"pi": "\\pi", "inf": "\\infty", "infinity": "\\infty", "infty": "\\infty"}
_CONNECTIVES = word_set("""
or and not no is if to in of at by as on an am pm do so be we he it up us go me my the mod gcd lcm max min det div
per but nor are was has had you yes one two six ten any all for too out
""")
_UNIT_RUNS = word_set("""
km cm mm dm nm kg mg ms ns kb mb gb ft lb oz hz pa ml kj kw mw mi yd hr ev mol cal rad deg mph kph sec min lbs day
kmh kpa khz mhz ghz mpa kwh usd eur
""")

_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))|\((\d+)\))")
_ELLIPSIS = re.compile(r"(\d*)\.(\d*?)(\d+?)\3+\s*(?:\.\.\.|\\l?dots(?![A-Za-z]))")
_GROUPED = re.compile(
    r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+(?![\d,])|\d{1,3}(?: \d{3})+(?!\d|\.\d| ?[\d/])"
)
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4}(?![\d.]))?")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}|\\[A-Za-z]+|\\.", re.DOTALL)
_RUN = re.compile(r"[^\W\d_]+")


def _significant_digits(mantissa: str) -> int:
    """Significant digits of a decimal such as `0.0120`; 0 for an integer, which is exact."""
    return len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa else 0


def read_number(text: str) -> NumberLiteral:
    """A plain number, `12`, `-0.5`, `1.5e3`, exactly. Raises MathSyntaxError for a huge exponent."""
    if "e" in text.lower() and abs(int(re.split("[eE]", text)[1])) > MAX_EXPONENT:
        raise MathSyntaxError(f"an exponent above {MAX_EXPONENT}")
    return NumberLiteral(Fraction(text), _significant_digits(re.split("[eE]", text.lstrip("+-"))[0]))


def tokens_of(text: str) -> list[MathToken]:
    """Tokens of a text. Raises MathSyntaxError for a sign that no answer contains."""
    found: list[MathToken] = []
    place, depth = 0, 0
    while place < len(text):
        if text[place] == " ":
            place += 1
            continue
        tokens, length = _next_tokens(text, place, depth)
        depth += sum(token.text in ("(", "[", "\\{") for token in tokens)
        depth -= sum(token.text in (")", "]", "\\}") for token in tokens)
        found += tokens
        place += length
    return found


def _next_tokens(text: str, place: int, depth: int) -> tuple[list[MathToken], int]:
    letter = text[place]
    if letter.isdigit() or (letter == "." and text[place + 1 : place + 2].isdigit()):
        token, length = _number_token(text, place, depth)
        return [token], length
    if letter == "\\":
        match = _COMMAND.match(text, place)
        if match is None:
            raise MathSyntaxError("a backslash at the end")
        return [MathToken("command", re.sub(r"\s", "", match.group()))], len(match.group())
    run = _RUN.match(text, place)
    if run is not None:
        return _letters(run.group(), spaced=place == 0 or text[place - 1] == " "), len(run.group())
    if letter in "+-*/^_=<>()[]{}|!%,;&°$€£":
        return [MathToken("sign", letter)], 1
    raise MathSyntaxError(f"the sign {letter!r}")


def _number_token(text: str, place: int, depth: int) -> tuple[MathToken, int]:
    if match := _REPEATING.match(text, place):
        whole, fixed, *blocks = match.groups()
        number = _repeating_decimal(whole, fixed, next(block for block in blocks if block))
    elif (match := _ELLIPSIS.match(text, place)) and len(match.group(0).rstrip(".\\ldots ")) > 3:
        number = _repeating_decimal(match.group(1), match.group(2), match.group(3))
    elif depth == 0 and (match := _GROUPED.match(text, place)):
        european = "." in match.group() and match.group().rfind(",") > match.group().find(".")
        plain = match.group().replace(".", "").replace(",", ".") if european else re.sub("[, ]", "", match.group())
        number = read_number(plain)
    else:
        match = _NUMBER.match(text, place)
        if match is None:
            raise MathSyntaxError(f"the sign {text[place]!r}")
        number = read_number(match.group())
    return MathToken("number", match.group(), number), len(match.group())


def _repeating_decimal(whole: str, fixed: str, block: str) -> NumberLiteral:
    """`0.1` and `6` are 0.1666..."""
    shown = Fraction(int(whole or "0")) + Fraction(int(fixed or "0"), 10 ** len(fixed))
    return NumberLiteral(shown + Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(fixed)))


def _letters(run: str, *, spaced: bool) -> list[MathToken]:
    """A run of letters: a function, a constant, a word, or a product of one-letter variables such as `xy`."""
    if len(run) == 1:
        return [MathToken("letter", run)]
    lower = run.lower()
    if lower in _NAMED:
        return [MathToken("command", _NAMED[lower])]
    if run in FUNCTION_NAMES:
        return [MathToken("command", f"\\{run}")]
    if run[:-1] in FUNCTION_NAMES:
        return [MathToken("command", f"\\{run[:-1]}"), MathToken("letter", run[-1])]
    if len(run) > 3 - spaced or lower in _CONNECTIVES or lower in _UNIT_RUNS:
        return [MathToken("word", run)]
    return [MathToken("letter", letter) for letter in run]


def mixed_number(tokens: Sequence[MathToken]) -> tuple[NumberLiteral, int] | None:
    r"""`1 1/2`, `1\frac{1}{2}` or `1\frac12` at the start of tokens, and its length; None for another start."""
    texts = [token.text for token in tokens[:8]]
    plain = [text.isdecimal() for text in texts]
    if len(texts) >= 4 and plain[0] and plain[1] and texts[2] == "/" and plain[3]:
        over, under, length = texts[1], texts[3], 4
    elif texts[1:3] == ["\\frac", "{"] and plain[0] and texts[4:6] == ["}", "{"] and texts[7:8] == ["}"]:
        over, under, length = texts[3], texts[6], 8
    elif texts[1:2] == ["\\frac"] and plain[0] and plain[2:3] == [True] and len(texts[2]) == 2:
        over, under, length = texts[2][0], texts[2][1], 3
    else:
        return None
    if not (over.isdecimal() and under.isdecimal() and 0 < int(over) < int(under)):
        return None
    return NumberLiteral(int(texts[0]) + Fraction(int(over), int(under))), length
