"""Tokens of an answer in `one_spelling`: numbers, letters, words, commands and signs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from hone.rewards.mathematics.tree import MAX_EXPONENT, MathSyntaxError, NumberLiteral

TokenKind: TypeAlias = Literal["number", "letter", "word", "command", "sign"]


@dataclass(frozen=True, slots=True)
class MathToken:
    """A piece of an answer."""

    kind: TokenKind
    text: str
    number: NumberLiteral | None = None
    """Value of a number."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


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
kmh kpa khz mhz ghz mpa gpa kwh usd eur gbp sq gal cc
""")
_MIXED_UNITS = word_set("kN MN mN mV kV mA mW MW GW mJ MJ GJ keV MeV GeV Wb kWh nF pF GPa")

_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))|\((\d+)\))")
_ELLIPSIS = re.compile(r"(\d*)\.(\d*?)(\d+?)\3+\s*(?:\.\.\.|\\l?dots(?![A-Za-z]))")
_GROUPED = re.compile(
    r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+(?![\d,])|\d{1,3}(?: \d{3})+(?!\d|\.\d| ?[\d/])"
)
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4}(?![\d.]))?")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}|\\[A-Za-z]+|\\.", re.DOTALL)
_RUN = re.compile(r"[^\W\d_]+")


def read_number(text: str) -> NumberLiteral:
    """A plain number, `12`, `-0.5`, `1.5e3`, exactly. Raises MathSyntaxError for a huge exponent."""
    if "e" in text.lower() and abs(int(re.split("[eE]", text)[1])) > MAX_EXPONENT:
        raise MathSyntaxError(f"an exponent above {MAX_EXPONENT}")
    mantissa = re.split("[eE]", text.lstrip("+-"))[0]
    # An integer is exact: it has no significant digits to round to.
    return NumberLiteral(Fraction(text), len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa else 0)


def tokens_of(text: str) -> list[MathToken]:
    """Tokens of a text. Raises MathSyntaxError for a sign that no answer contains."""
    result: list[MathToken] = []
    place, depth = 0, 0
    while place < len(text):
        if text[place] == " ":
            place += 1
            continue
        tokens, length = _next_tokens(text, place, depth)
        depth += sum(token.text in ("(", "[", "\\{") for token in tokens)
        depth -= sum(token.text in (")", "]", "\\}") for token in tokens)
        result += tokens
        place += length
    return result


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
        raised = text[place + len(run.group()) :][:1] in ("^", "_")
        return _letters(run.group(), spaced=place == 0 or text[place - 1] == " ", raised=raised), len(run.group())
    if letter in "+-*/^_=<>()[]{}|!%,;:&°$€£":
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


def _letters(run: str, *, spaced: bool, raised: bool) -> list[MathToken]:
    """A run of letters: a function, a constant, a word, or a product of one-letter variables such as "xy". No word but
    a unit is raised to a power."""
    if len(run) == 1:
        return [MathToken("letter", run)]
    lower = run.lower()
    if lower in _NAMED:
        return [MathToken("command", _NAMED[lower])]
    if run in FUNCTION_NAMES:
        return [MathToken("command", f"\\{run}")]
    if run[:-1] in FUNCTION_NAMES:
        return [MathToken("command", f"\\{run[:-1]}"), MathToken("letter", run[-1])]
    mixed_case = len(run) <= 4 and not (run.islower() or run.isupper() or run.istitle())  # nRT, no word
    too_long = len(run) > 3 - (spaced and not raised) and not mixed_case
    connective = lower in _CONNECTIVES and not raised and not mixed_case
    if too_long or connective or lower in _UNIT_RUNS or run in _MIXED_UNITS:
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


# ---------------------------------------------------------------------------------------------------------------- units

_SI_PREFIXES = {"": 0, "k": 3, "c": -2, "d": -1, "m": -3, "μ": -6, "u": -6, "n": -9, "M": 6, "G": 9}
_LONG_PREFIXES = {"": 0, "kilo": 3, "centi": -2, "deci": -1, "milli": -3, "micro": -6, "nano": -9, "mega": 6, "giga": 9}
_SI = {  # symbol -> name, factor to the base unit
    "m": ("meter metre", "1"), "g": ("gram gramme", "1"), "L": ("liter litre", "1"), "l": ("", "1"),
    "s": ("second", "1"), "N": ("newton", "1"), "J": ("joule", "1"), "W": ("watt", "1"), "Pa": ("pascal", "1"),
    "Hz": ("hertz", "1"), "V": ("volt", "1"), "A": ("ampere amp", "1"), "mol": ("mole", "1"), "eV": ("", "1"),
    "cal": ("calorie", "1"), "B": ("byte", "1"), "Ω": ("ohm", "1"), "K": ("kelvin", "1"), "C": ("coulomb", "1"),
    "Wb": ("weber", "1"), "Wh": ("", "3600"),
}  # fmt: skip
_BASES = {"l": "L", "Wh": "J"}
_DERIVED = {  # base -> factor and powers of other bases
    "L": ("1/1000", {"m": 3}), "N": ("1000", {"g": 1, "m": 1, "s": -2}), "J": ("1000", {"g": 1, "m": 2, "s": -2}),
    "W": ("1000", {"g": 1, "m": 2, "s": -3}), "Pa": ("1000", {"g": 1, "m": -1, "s": -2}), "Hz": ("1", {"s": -1}),
}  # fmt: skip
_OTHERS = {  # names -> base, factor
    "min minute minutes mins": ("s", "60"), "h hr hrs hour hours": ("s", "3600"), "day days": ("s", "86400"),
    "sec secs": ("s", "1"), "week weeks": ("s", "604800"), "month months": ("month", "1"),
    "year years yr yrs": ("month", "12"), "in inch inches": ("inch", "1"), "ft foot feet": ("inch", "12"),
    "yd yard yards": ("inch", "36"), "mi mile miles": ("inch", "63360"), "oz ounce ounces": ("oz", "1"),
    "lb lbs pound pounds": ("oz", "16"), "$ dollar dollars usd USD": ("dollar", "1"),
    "cent cents": ("dollar", "1/100"), "€ euro euros eur EUR": ("euro", "1"), "£ GBP": ("sterling", "1"),
    "gallon gallons gal": ("gallon", "1"), "cc": ("L", "1/1000"), "acre acres": ("acre", "1"),
    "tesla teslas": ("T", "1"), "° degree degrees deg": ("degree", "1"),
    "rad radian radians": ("radian", "1"), "tonne tonnes": ("g", "1000000"), "rupee rupees": ("rupee", "1"),
    "yen": ("yen", "1"), "yuan": ("yuan", "1"),
}  # fmt: skip
_SPEEDS = {"mph": "mi", "kph": "km", "kmh": "km"}
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}


def _table() -> dict[str, tuple[str, Fraction]]:
    table: dict[str, tuple[str, Fraction]] = {}
    for symbol, (names, factor) in _SI.items():
        base = _BASES.get(symbol, symbol)
        for prefix, power in _SI_PREFIXES.items():
            table[prefix + symbol] = (base, Fraction(factor) * Fraction(10) ** power)
        for prefix, power in _LONG_PREFIXES.items():
            for name in names.split():
                value = (base, Fraction(factor) * Fraction(10) ** power)
                table[prefix + name] = table[f"{prefix}{name}s"] = value
    for names, (base, factor) in _OTHERS.items():
        for name in names.split():
            table[name] = (base, Fraction(factor))
    del table["min"]
    return {**table, "min": ("s", Fraction(60)), "\\Omega": table["Ω"]}


_UNITS = _table()


def _unit_factor(tokens: Sequence[MathToken]) -> tuple[Fraction, tuple[tuple[str, int], ...]] | None:
    """Factor and dimensions of a unit such as `km/h`; None when the tokens are no unit."""
    tokens = _spelled_out(_without_fraction(tokens))
    factor, dimensions = Fraction(1), Counter[str]()
    place, sign, raised = 0, 1, 1
    while place < len(tokens):
        text = tokens[place].text
        if text in ("*", "\\cdot") and 0 < place < len(tokens) - 1:
            place += 1
            continue
        if text in ("/", "per") and 0 < place < len(tokens) - 1:
            sign, place = -1, place + 1
            continue
        if text in _POWER_WORDS:
            raised, place = _POWER_WORDS[text], place + 1
            continue
        known = _UNITS.get(text) or _UNITS.get(text.lower() if len(text) > 3 else text)
        if known is None:
            return None
        exponent, place = _exponent(tokens, place + 1)
        power = sign * raised * exponent
        scale, bases = _DERIVED.get(known[0], ("1", {known[0]: 1}))
        for base, times in bases.items():
            dimensions[base] += times * power
        factor *= (known[1] * Fraction(scale)) ** power
        raised = 1
    powers = tuple(sorted((base, power) for base, power in dimensions.items() if power))
    return (factor, powers) if powers and raised == 1 else None


def _spelled_out(tokens: Sequence[MathToken]) -> Sequence[MathToken]:
    r"""Tokens of `mph` as those of `mi/h`, and of `k\Omega` or `\mu C` as one unit."""
    for place in range(len(tokens) - 1):
        if tokens[place].text == "\\mu" or (tokens[place + 1].text == "\\Omega" and tokens[place].text in ("k", "M")):
            text = (tokens[place].text + tokens[place + 1].text).replace("\\mu", "μ").replace("\\Omega", "Ω")
            return [*tokens[:place], MathToken("word", text), *tokens[place + 2 :]]
    if len(tokens) != 1 or tokens[0].text not in _SPEEDS:
        return tokens
    return [MathToken("word", _SPEEDS[tokens[0].text]), MathToken("sign", "/"), MathToken("letter", "h")]


def _exponent(tokens: Sequence[MathToken], place: int) -> tuple[int, int]:
    """Exponent at a place, 1 where there is none, and the place behind it."""
    texts = [token.text for token in tokens[place : place + 5]]
    if texts[:1] in (["squared"], ["cubed"]):
        return (2 if texts[0] == "squared" else 3), place + 1
    if texts[:1] != ["^"]:
        return 1, place
    inner = [text for text in texts[1:] if text not in "{}"] if texts[1:2] == ["{"] else texts[1:3]
    negative = inner[:1] == ["-"]
    digits = inner[negative] if len(inner) > negative else ""
    if digits not in ("1", "2", "3"):
        return 0, len(tokens)
    return (-int(digits) if negative else int(digits)), place + 2 + negative + 2 * (texts[1] == "{")


def _without_fraction(tokens: Sequence[MathToken]) -> Sequence[MathToken]:
    r"""Tokens of `\frac{km}{h}` as those of `km/h`."""
    texts = [token.text for token in tokens]
    if texts[:2] == ["\\frac", "{"] and texts[-1] == "}" and texts.count("}") == 2 and "}" in texts[:-2]:
        middle = texts.index("}")
        return [*tokens[2:middle], MathToken("sign", "/"), *tokens[middle + 2 : -1]]
    return tokens


def split_unit(tokens: Sequence[MathToken]) -> tuple[Sequence[MathToken], Fraction, tuple[tuple[str, int], ...]]:
    """Tokens of the number, factor and dimensions of a quantity; no dimensions where no unit is written. A single
    letter is a unit only behind a plain number (`5 m`): elsewhere it is a variable."""
    signs = 1 if tokens and tokens[0].text in "+-" else 0
    if len(tokens) > signs + 1 and tokens[signs].text in ("$", "€", "£"):
        known = _unit_factor(tokens[signs : signs + 1])
        if known is not None and _unit_factor(tokens[-1:]) is None:
            return [*tokens[:signs], *tokens[signs + 1 :]], *known
    if sum(token.text == "°" for token in tokens) > 1:  # 30° + 360°
        return tokens, Fraction(1), ()
    for place in range(max(1, len(tokens) - 12), len(tokens)):
        if (tokens[place].kind == "letter" or tokens[place].text in ("\\mu", "\\Omega")) and not _plain_number(
            tokens[signs:place]
        ):
            continue
        if tokens[place].kind == "number" or tokens[place].text in ("*", "/", "\\cdot", "^", "{", "}"):
            continue
        known = _unit_factor(tokens[place:])
        if known is not None:
            return tokens[:place], *known
    return tokens, Fraction(1), ()


def _plain_number(tokens: Sequence[MathToken]) -> bool:
    """Whether the tokens are a number, also in scientific notation or mixed."""
    numbers = [token.kind == "number" for token in tokens]
    others = {token.text for token in tokens if token.kind != "number"}
    scientific = others <= {"*", "\\times", "\\cdot", "^", "{", "}", "-"} and numbers[:1] == [True]
    mixed = numbers == [True, True, False, True] and others == {"/"}
    return numbers == [True] or mixed or (scientific and len(numbers) > 3 and tokens[2].text == "10")
