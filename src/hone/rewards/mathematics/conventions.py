r"""Notations that mean the same: intervals as `]a, b[`, semicolons, degrees and minutes, bases, money, systems.

Belongs here: what a text says, whatever it is compared with; one spelling of each. How an answer may be read when the
reference is known stands in `readings`.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Final

MAX_LISTED: Final = 64
"""Most numbers that an ellipsis stands for."""
_BASES: Final = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_BASE_WORDS: Final = "|".join(_BASES)
_BRACKETED = re.compile(r"([\[\]])\s*([^\[\],;\s][^\[\],;]*)\s*[,;]\s*([^\[\],;]*[^\[\],;\s])\s*([\[\]])")
_SEXAGESIMAL = re.compile(
    r"(\d+)\s*°\s*(\d{1,2})\s*(?:'|\^\s*\{?\s*\\prime\s*\}?)"
    r"(?:\s*(\d{1,2})\s*(?:''|\"|\^\s*\{?\s*\\prime\s*\\prime\s*\}?))?"
)
_ELLIPSIS = re.compile(r"((?:-?\d{1,6}\s*,\s*){2,12})(?:\\[lc]?dots|\.\.\.)\s*,\s*(-?\d{1,6})(?!\d)")
_SYSTEM = re.compile(
    r"(?:\\\{\s*)?\\begin\s*\{(?:cases|array|aligned|gathered|matrix)\}\s*(?:\{[lcr| ]*\})?(.*?)\\end\s*\{[a-z]+\}"
)
_OTHERWISE: Final = frozenset({"otherwise", "else"})
_NOTATIONS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^0[xX]([0-9a-fA-F]{1,40})$", r"\1_{16}"),
        (rf"_\s*\{{?\s*\(?\s*(?:base\s*)?(\d+|{_BASE_WORDS})\s*\)?\s*\}}?$",
         lambda match: f"_{{{_BASES.get(match[1], match[1])}}}"),
        (rf"^([0-9A-Fa-f]+)\s*,?\s*\(?\s*(?:in\s+)?base[\s-]*(\d+|{_BASE_WORDS})\s*\)?$",
         lambda match: f"{match[1]}_{{{_BASES.get(match[2], match[2])}}}"),
        (r"^\{\s*([A-Za-z]+)\s*\}$", r"\1"),
        (r"(?<=\d) in\s*(?=\^)", " inch"),
        (r"^\|?\s*(?:\\overline\s*)?\{?\s*([A-Z])([A-Z])\s*\}?\s*\|?\s*=(?!.*(?<![A-Za-z\\])[A-Za-z])", r"\1_\2 ="),
        (r"(?<=[a-z])(?:,| and|, and) "
         r"(?=\d+(?:\.\d+)? (?:hours?|hrs?|h|minutes?|mins?|seconds?|secs?|feet|foot|ft|inch(?:es)?|in"
         r"|ounces?|oz|cents?|days?|months?|m|cm|mm|g|grams?)$)", " "),
        (r"(?<=\d)\s*¢$", " cents"),
        (r"^(\d+)\s*'\s*(\d+)\s*\"$", r"\1 ft \2 in"),
        (r"(?<=\d)\s*\"$", " inches"),
        (r"(?i)(?<=\d)\s*(?:°|degrees?)\s*(f|c)(?:ahrenheit|elsius)?$", lambda match: "° " + match[1].upper()),
        (r"(?i)(?<=\d) (?:pounds? sterling|british pounds)$", " GBP"),
        (r"^([A-Za-z])\s*_\s*\{\s*\d(?:\s*,\s*\d)+\s*\}\s*(?==)", r"\1 "),
        (r"(?i)^(?:USD|US\s*\$)\s*(?=\d)", "$"),
        (r"(?i)^(?:₹|Rs\.?|INR)\s*(\d[\d,]*(?:\.\d+)?)(?:\s*/-)?$", r"\1 rupees"),
        (r"(?<![A-Za-z])(sq|cu)\.\s*(?=[a-z])", r"\1 "),
        (r"(?<=[\d)}\]a-zA-Z])\s*(?<![A-Za-z])(?:(?:square|cubic|sq|cu)\s+)?"
         r"units?(?:\s*\^\s*\{?\s*[23]\s*\}?|\s+(?:squared|cubed))?$", ""),
        (r"^([A-Za-z])\s*(?:\^\s*\{?\s*(?:-1|\\prime)\s*\}?|'+)\s*(\([a-z]\))\s*=", r"\1\2 ="),
        (r"^y\s*(?:'+|\^\s*\{?\s*\\prime\s*\}?)\s*=|^\\frac\s*\{?\s*dy\s*\}?\s*\{?\s*dx\s*\}?\s*=", "y ="),
        (r"(?i)^(?:the limit |it )?(?:does not exist|doesn't exist|DNE)$", "does not exist"),
        (r"^(?:[Aa]n?|[Tt]he) (?!and |or )(?=[a-z]{3}[a-z ]*$)", ""),
        (r"(?i)^(?:(?:there are )?infinitely many(?: real)?(?: solutions)?|an infinite number(?: of solutions)?)$",
         "infinitely many"),
        (r"^(\d+)\s*(?:to|:)\s*(?=\d+$)", r"\1:"),
        (r"^(\d+)\s*:\s*(\d+)\s*:\s*(\d+)$", r"\1:\2:\3"),
        (r"\^\s*(?:\{\s*)?(?:T|\\top|\\intercal|\\mathsf\s*T)(?:\s*\})?$", r"^\\top"),
    )
]  # fmt: skip


def one_notation(text: str) -> str:
    """A text in `one_spelling` with one notation of each thing that has several."""
    if "°" in text:
        text = _SEXAGESIMAL.sub(_decimal_degrees, text)
    if "\\dots" in text or "\\ldots" in text or "\\cdots" in text or "..." in text:
        text = _ELLIPSIS.sub(_listed, text)
    if "\\begin" in text:
        text = _SYSTEM.sub(_system, text)
    elif "\\\\" in text and "=" in text:
        text = ", ".join(filter(None, (row.strip(" ,") for row in text.split("\\\\"))))
    if "[" in text or "]" in text:
        text = _BRACKETED.sub(_round_brackets, text)
    if ";" in text and "\\begin" not in text:
        decimals = re.sub(r"(?<=\d),(?=\d)", ".", text) if "," in text else text
        text = text if "," in decimals else decimals.replace(";", ", ")
    for pattern, replacement in _NOTATIONS:
        text = pattern.sub(replacement, text)
    return re.sub(r"^[0-9a-f]+(?=_\{16\}$)", lambda digits: digits.group().upper(), text)


def _decimal_degrees(match: re.Match[str]) -> str:
    degrees, minutes, seconds = (int(one or 0) for one in match.groups())
    value = Fraction(degrees * 3600 + minutes * 60 + seconds, 3600)
    return f"{value.numerator}°" if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}°"


def _listed(match: re.Match[str]) -> str:
    r"""`1, 2, \ldots, 5` as `1, 2, 3, 4, 5`; a list whose steps differ, or that is long, as it is."""
    first, last = [int(one) for one in match[1].split(",") if one.strip()], int(match[2])
    steps = {right - left for left, right in pairwise(first)}
    step = steps.pop()
    if steps or not step or (last - first[-1]) % step or not 0 < (last - first[0]) // step < MAX_LISTED:
        return match.group()
    return ", ".join(map(str, range(first[0], last + (1 if step > 0 else -1), step)))


def _system(match: re.Match[str]) -> str:
    r"""A system of equations as its equations in a row; anything else, a matrix or cases by conditions, as it is."""
    rows = [row.strip(" ,;") for row in match[1].split("\\\\")]
    rows = [row.replace("&", " ") if re.search(r"&\s*=", row) else row for row in rows if row]
    if not rows or any("&" in row or not re.search(r"=|<|>|\\[lg]e |\\neq ", row) for row in rows):
        return match.group()
    return ", ".join(rows)


def _round_brackets(match: re.Match[str]) -> str:
    """`]a, b[` as `(a, b)`."""
    opening, low, high, closing = match.groups()
    inner = f"{low},{high}"
    whole = inner.count("(") == inner.count(")") and not re.search(r"\\(?:cup|cap|setminus)|\bU\b|\bor\b", inner)
    if (opening, closing) == ("[", "]") or not whole:
        return match.group()
    return f"{'(' if opening == ']' else '['}{low}, {high}{')' if closing == '[' else ']'}"


# -------------------------------------------------------------------------------------------------------------- pieces


def pieces_of(text: str) -> list[tuple[str, str]] | None:
    r"""Values and conditions of a function that is given by cases, behind `f(x) =` or not; None for another text."""
    match = re.fullmatch(
        r"(?:[A-Za-z]\w*\s*(?:\([a-z]\))?\s*=\s*)?(?:\\\{\s*)?"
        r"\\begin\s*\{(?:cases|array|aligned)\}\s*(?:\{[lcr| ]*\})?(.*)"
        r"\\end\s*\{[a-z]+\}\.?",
        text,
    )
    if match is None:
        return None
    result: list[tuple[str, str]] = []
    for row in filter(str.strip, match[1].split("\\\\")):
        value, sign, condition = row.partition("&")
        if not sign:
            value, sign, condition = row.partition(",")
        condition = re.sub(r"^\s*(?:,\s*)?(?:if|for|when|where)?\s+", "", f" {condition.strip()}")
        result.append((value.strip(" ,"), condition.strip(" ,.;")))
    return result if result and all(value and condition for value, condition in result) else None


def same_pieces(
    reference: list[tuple[str, str]], answer: list[tuple[str, str]], same: Callable[[str, str], bool]
) -> bool:
    """Whether two functions by cases have equal values under equal conditions, in any order."""
    explicit = [[one for one in pieces if one[1].lower() not in _OTHERWISE] for pieces in (reference, answer)]
    if len(reference) != len(answer) or any(len(answer) - len(one) > 1 for one in explicit):
        return False
    left, right = list(reference), list(answer)
    for value, condition in explicit[0]:
        match = next((one for one in explicit[1] if one in right and same(condition, one[1])), None)
        if match is not None:
            if not same(value, match[0]):
                return False
            left.remove((value, condition))
            right.remove(match)
    # What is left is one piece, `otherwise` on one side or on both
    if len(left) != 1:
        return not left
    words = {left[0][1].lower(), right[0][1].lower()}
    return bool(words & _OTHERWISE) and same(left[0][0], right[0][0])
