"""One spelling for each answer: Unicode signs as LaTeX commands; layout, fonts and delimiters removed."""

# ruff: noqa: RUF001 - signs that look alike are what this module is about

import re
import unicodedata
from fractions import Fraction

from hone.rewards.mathematics.conventions import one_notation
from hone.rewards.mathematics.tree import GREEK_NAMES

_GREEK = dict(zip("αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩπ", GREEK_NAMES, strict=True))
_SIGNS: dict[str, str] = {
    **{letter: f"\\{name} " for letter, name in _GREEK.items()},
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("·⋅∙", "\\cdot "),
    **dict.fromkeys("\u2009\u202f\u2006", "\\,"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("“”„", '"'),
    **{"×": "\\times ", "÷": "\\div ", "√": "\\sqrt ", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]", "∞": "\\infty "},
    **{"≤": "\\le ", "≥": "\\ge ", "≠": "\\neq ", "≈": "\\approx ", "±": "\\pm ", "∓": "\\mp ", "¬": "\\lnot "},
    **{"∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ", "°": "^\\circ ", "∖": "\\setminus "},
    **{letter: f"\\mathbb{{{plain}}}" for letter, plain in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
    **{
        "⁄": "/",
        "∕": "/",
        "…": "\\ldots ",
        "⟨": "\\langle ",
        "⟩": "\\rangle ",
        "∨": "\\lor ",
        "∧": "\\land ",
        "’": "'",
    },
}
_SUPERSCRIPTS: dict[str, str] = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ", "0123456789+-nx", strict=True))
_SUBSCRIPTS: dict[str, str] = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")

_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mathrm|mathsf|mathtt|mbox|hbox|operatorname\*?|underline"
    r"|(?:text)?color\s*\{[a-z]+\})\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_UNIT_LETTER = re.compile(r"(?<=[\w}),; ~])(?<!\\mu)(?<!\\mu )\\(?:text|mathrm|mbox)\s*\{[ ~]*([mgsLhNJWT])\s*\}")
_UNIT_NAMES = {"m": "meter", "g": "gram", "s": "second", "L": "liter", "h": "hour", "N": "newton", "J": "joule",
               "W": "watt", "T": "tesla"}  # fmt: skip
"""Letters in upright type behind a value are units, also behind `\\pi`."""
_UNIT_VECTOR = re.compile(r"\\(?:hat|widehat|vec|overrightarrow)\s*\{?\s*\\?([ijk])(?:math)?\s*\}?(?![A-Za-z])")
_FONT = re.compile(r"\\(?:mathbf|mathit|mathcal|boldsymbol|bm|mathopen|mathclose|ensuremath)(?![A-Za-z])")
_LAYOUT = re.compile(
    r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|large|Large"
    r"|LARGE|huge|small|normalsize|bf|rm|it|tt|sf|middle)(?![A-Za-z])|\\!"
)
_ROW_GAP = re.compile(r"\\\\\[[-.\d]+\s*(?:pt|em|ex|mm|cm)\]")
_SPACE = re.compile(
    r"(?<!\\)\\[,;: >]|\\(?:quad|qquad|enspace|thinspace|space)(?![A-Za-z])|(?<=[\w}),;])~"
    r"|[\u00a0\t\n\r]"
)
_THOUSANDS_GAP = re.compile(r"(?<=\d)(?:\{,\}|\\[,;:! ]|,\\!|')(?=\d{3}(?!\d))")
_SYNONYMS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:[dtc]|nice|s)frac(?![A-Za-z])", r"\\frac"),
        (
            r"\\(?:text)?color\s*\{[a-z]+\}|\\[hv]space\*?\s*\{[^{}]*\}|\\(?:checkmark|hfill|blacksquare|square)(?![A-Za-z])",
            " ",
        ),
        (r"\\(?:angle|triangle)(?![A-Za-z])", " "),
        (r"(?<![A-Za-z\\])a(?:rc)?(sin|cos|tan)(?![A-Za-z])", r"\\arc\1 "),
        (r"\{\s*([-+=<>:])\s*\}", r"\1"),
        (r"(\\log\s*_\s*\d)(?=\d)", r"\1 "),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\(?:leq|leqslant|leqq)(?![A-Za-z])|<=|=<", r"\\le "),
        (r"\\(?:geq|geqslant|geqq)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\ne(?![A-Za-z])|\\not\s*=|!=|/=", r"\\neq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:[lr]vert|vert)(?![A-Za-z])", "|"),
        (r"\\(?:backslash|smallsetminus)(?![A-Za-z])", r"\\setminus "),
        (r"\\([RZNQ])(?![A-Za-z])", r"\\mathbb{\1}"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])|\\lparen(?![A-Za-z])", "("),
        (r"\^\s*\\(?:circ|degree)(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\\degree(?![A-Za-z])", "°"),
        (r"\+\s?/\s?-|(?<![\w)}])\+-", r"\\pm "),
        (r"\\ast(?![A-Za-z])", "*"),
        (r"\*\*", "^"),
        (r"(?<=\d)\s?[xX]\s?(?=10\s?\^)", r" \\times "),
        (r"\\([%&#])", r"\1"),
        (r"\\\$", "$"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\var(?=epsilon|theta|phi|rho|sigma)", r"\\"),
    )
]
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_DELIMITERS = (
    ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("***", "***"), ("**", "**"), ("*", "*"),
    ("__", "__"), ("_", "_"), ("`", "`"), ('"', '"'),
)  # fmt: skip
_INTEGERS = (
    re.compile(
        r"[,;]?\s*\(?\s*(?:(?:for|with|where)\s+)?(?:(?:all|any|some|every|each|an|arbitrary)\s+)*integers?\s+"
        r"(?P<name>[a-z])(?![A-Za-z])\s*\)?"
    ),
    re.compile(
        r"[,;]?\s*\(?\s*(?:(?:for|with|where)\s+)?(?<![A-Za-z\\])(?P<name>[a-z])\s+(?:is|being|an|any|=|some|\s)*"
        r"\s*integers?(?![A-Za-z])\s*\)?"
    ),
    re.compile(
        r"[,;]?\s*\(?\s*(?:where\s+|for\s+)?(?<![A-Za-z\\])(?P<name>[a-z])\s*=\s*0\s*,\s*\\pm\s*1\s*,"
        r"\s*\\pm\s*2\s*(?:,\s*\\pm\s*3\s*)?,?\s*(?:\\l?dots|\\cdots|\.\.\.)\s*\)?"
    ),
    re.compile(
        r"[,;]?\s*\(?\s*(?:(?:for|where|with|all|any|some|every|each|\\forall)\s+)*(?<![A-Za-z\\])(?P<name>[a-z])"
        r"\s*\\in\s*\\mathbb\s*(?:\{\s*Z\s*\}|Z)(?![\s]*[\^_])\s*\)?"
    ),
)
"""Spellings of `k \\in \\mathbb{Z}` behind a value, the last one with words or brackets around it."""
_SETS_IN_WORDS = [
    (re.compile(f"(?i)^{pattern}$"), replacement)
    for pattern, replacement in (
        (r"(?:the set of )?all (?:real numbers|reals|real [a-z])", r"\\mathbb{R}"),
        (r"all (?:real numbers|reals|real [a-z]) (?:except|other than|but)(?: for)? (?:[a-z] ?= ?)?(.+)",
         r"\\mathbb{R} \\setminus \\{\1\\}"),
        (r"(?:the set of )?all integers", r"\\mathbb{Z}"),
        (r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set|none", r"\\emptyset"),
    )
]  # fmt: skip
_WITHOUT_COMMA = ("{", "|", ":", "\\mid", ",", ";", "(", "\\setminus")


def one_spelling(text: str) -> str:
    """The text with one spelling for each sign, and without layout that has no meaning."""
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[one] for one in run.group()) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[one] for one in run.group()) + "}", text)
    text = _VULGAR.sub(_vulgar_fraction, text)
    text = unicodedata.normalize("NFKC", "".join(_SIGNS.get(letter, letter) for letter in text))
    plain = (
        letter if letter.isascii() or not letter.isdecimal() else str(unicodedata.decimal(letter)) for letter in text
    )
    text = _THOUSANDS_GAP.sub("", _unwrap("".join(plain)))
    text = _UNIT_LETTER.sub(lambda unit: f" {_UNIT_NAMES[unit[1]]} ", text)
    text = _LAYOUT.sub(" ", _ROW_GAP.sub(r"\\\\", text))
    while (plain := _TEXT.sub(r" \1 ", text)) != text:
        text = plain
    text = _SPACE.sub(" ", _FONT.sub("", text))
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _UNIT_VECTOR.sub(r"\1 ", text)
    text = " ".join(_with_declared_index(_unwrap(text)).split())
    for pattern, replacement in _SETS_IN_WORDS:
        text = pattern.sub(replacement, text)
    return one_notation(text)


def _with_declared_index(text: str) -> str:
    r"""`2k\pi where k is an integer` as `2k\pi, k \in \mathbb{Z}`."""
    for pattern in _INTEGERS:
        match = pattern.search(text)
        if match is not None and match.start() > 0:
            before = text[: match.start()].rstrip()
            comma = "" if before.endswith(_WITHOUT_COMMA) else ","
            return f"{before}{comma} {match['name']} \\in \\mathbb{{Z}} {text[match.end() :]}"
    return text


_UNITS_IN_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS_IN_WORDS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {
    **{word: number for number, word in enumerate(_UNITS_IN_WORDS)},
    **{word: 10 * number for number, word in enumerate(_TENS_IN_WORDS, start=2)},
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9,
}  # fmt: skip


_PARTS = {
    "half": 2, "halves": 2, "quarter": 4, "quarters": 4,
    **{
        f"{word}{end}": below
        for below, word in enumerate(
            ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), start=3
        )
        for end in ("", "s")
    },
}  # fmt: skip


def number_in_words(text: str) -> Fraction | None:
    """The value of a number in words, `twelve`, `one hundred and twenty-one`, `two thirds`; None for another text."""
    words = text.lower().replace("-", " ").split()
    if len(words) > 1 and (words[0] in ("negative", "minus") or words[-1] in _PARTS):
        part = words[-1] in _PARTS
        size = number_in_words(" ".join(words[:-1] if part else words[1:]))
        return None if size is None else size / _PARTS[words[-1]] if part else -size
    if not words or len(words) > 16 or any(word not in _WORDS and word != "and" for word in words):
        return None
    total, below, last = 0, 0, 10**12
    for place, word in enumerate(words):
        value = _WORDS.get(word)
        if value is None:  # `and` stands between a hundred and what is below it
            if place == 0 or place == len(words) - 1 or words[place - 1] not in ("hundred", "thousand", "million"):
                return None
        elif value < 100:
            tens = 20 <= last < 100 and last % 10 == 0 and 0 < value < 10
            if not (tens or last >= 100):
                return None
            below, last = below + value, value
        elif below == 0 or (value == 100 and below > 99) or (value > 100 and total and value >= total):
            return None
        elif value == 100:
            below, last = 100 * below, 100
        else:
            total, below, last = total + value * below, 0, value
    return Fraction(total + below)


def _unwrap(text: str) -> str:
    """The text without delimiters of mathematics, emphasis or quotation around the whole, and without a full stop."""
    while True:
        text = text.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1].rstrip()  # of a control space
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and not text.endswith("\\" + closing)
                and opening not in inner
                and closing not in inner
            ):
                text = inner
                break
        else:
            return text


def _vulgar_fraction(match: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return f"\\frac{{{over}}}{{{under}}}"
