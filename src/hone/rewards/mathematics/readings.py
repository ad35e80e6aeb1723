r"""Further readings of an answer beside a known reference: what a chain of equations ends in, and what is counted.

`5 + 7 = 12`, `P(A) = \frac{1}{2}` and `\frac{1}{3} \approx 0.33` are 12, 1/2 and 1/3; `12 red balls` are 12.
A reading is compared like an answer of its own, so it is in final form or wrong.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate

from hone.rewards.mathematics.equality import EqualityRules, same_answer
from hone.rewards.mathematics.evaluation import real_value
from hone.rewards.mathematics.grammar import parse_answer
from hone.rewards.mathematics.spelling import number_in_words
from hone.rewards.mathematics.tokens import word_set
from hone.rewards.mathematics.tree import (
    MathNode,
    MathOperation,
    MathSyntaxError,
    MeasuredQuantity,
    NumberLiteral,
    ValueCollection,
    variables,
    walk,
)

_RELATION = re.compile(r"=|<|>|\\(?:le|ge|neq|in|approx|equiv|cong|mid|sim|to|pm|mp)(?![A-Za-z])")
_COMPARED = re.compile(r"<|>|\\(?:le|ge|neq)(?![A-Za-z])")
_SEPARATOR = re.compile(r",(?!\d{3}(?!\d))|;|(?<![A-Za-z\\])(?:or|and|not)(?![A-Za-z])|\\(?:lor|land|lnot)(?![A-Za-z])")
_DECIMAL = re.compile(r"-?\d*\.?\d+")
_STATED_DECIMAL = re.compile(r"-?\d*\.\d+(?![\d.])")
_COUNTED = re.compile(r"(.*[\d)}])\s*(?<![A-Za-z\\])((?:(?:[A-Za-z]{3,}|of|a|an|the|in)(?:[ -]|$)){1,5})")
_NO_COUNTED_THING = word_set("""
hundred thousand million billion trillion dozen half halves third thirds quarter quarters fourth fourths fifth fifths
percent percents plus minus times over squared cubed square cubic root factorial mod modulo base not and nor but none
most least than about only almost nearly approximately except wrong incorrect false maybe unless with
without divided multiplied negative positive point per for degree degrees radian radians power sin cos tan log
""")
_LEAD_IN = re.compile(
    r"""(?ix) (?:the\ )? (?:final\ |correct\ )? (?:answer|result|value|total|solution) (?:\ is|\ equals|:) \s*(?=\S)
    | (?:the|its|their)\ [a-z]{3}[a-z\ ]{0,40}?\ (?:is|are|equals)\ (?=[-+.\d\\$(] | [a-z](?:\([a-z]\))?\ ?=)
    | [a-z]{3,}(?:\ [a-z]+)?:\s*(?=\S)
    | (?-i:[A-Z])'?\s*(?=\([^()]*,[^()]*\)$)"""
)
_DOMAIN = re.compile(
    r"((?:(?!\\neq|\\[lg]e |<|>|\\in).)*[^\s,]),?\s*(?:(?:where|for|with|if)\s+)?"
    r"\(?\s*([a-z])\s*(?:\\neq|\\ge|\\le|<|>)\s*-?[\d./]+\s*\)?"
)
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")
_POINTS = re.compile(r"\d{1,3}(?:\.\d{3}){2,}")
_MINUTES = re.compile(r"(\d{1,2})(?::(\d{2})|(?=\s*[ap]\.?\s*m))\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_CALL = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?\s*(?:\^\{?[^{}]*\}?)?\s*\(|\||\\(?:left|lvert|sin|cos|tan|log|ln)")


def further_readings(answer: str, reference: str, wanted: MathNode | str) -> Iterator[str]:
    """Texts in one spelling that may be what an answer states."""
    if match := _LEAD_IN.match(answer):
        answer = re.sub(r"^\$([^$]+)\$$", r"\1", answer[match.end() :])
        yield answer
    if (settled := _settled(answer, reference)) is not None:
        answer = settled
        yield answer
    if "\\cup" in answer and _COMPARED.search(answer) and not re.search(r"[\[\](){}]", answer):
        yield answer.replace("\\cup", "\\lor")  # comparisons, joined as if they were sets
    if (match := _DOMAIN.fullmatch(answer)) and re.search(rf"(?<![A-Za-z\\]){match[2]}(?![A-Za-z])", match[1]):
        yield match[1]
    bare = not isinstance(wanted, str | MeasuredQuantity)
    if bare and (match := _COUNTED.fullmatch(answer)) and not _is_no_thing(match[2]):
        yield match[1].strip()
    words = re.fullmatch(r"([a-z-]+)(?: ((?:[a-z]{3,}(?:[ -]|$)){1,4}))?", answer)
    whole = number_in_words(answer)
    if whole is None and words and words[2] and not _is_no_thing(words[2]):
        whole = number_in_words(words[1])
    if bare and whole is not None:
        yield f"\\frac{{{whole.numerator}}}{{{whole.denominator}}}" if whole.denominator > 1 else f"{whole}"
    if reference.isdecimal() and (_INDIAN.fullmatch(answer) or _POINTS.fullmatch(answer)):
        yield re.sub(r"[,.](?=\d{2,3}(?!\d)|\d{2,3}[,.])", "", answer)


def _is_no_thing(words: str) -> bool:
    return any(
        word in _NO_COUNTED_THING or number_in_words(word) is not None for word in re.split("[ -]", words.lower())
    )


# -------------------------------------------------------------------------------------------------------------- chains


_WORDS = re.compile(r"^.*(?<![A-Za-z\\])[A-Za-z]{2,}\s+(?=\S)")
_OF_DEGREES = re.compile(r"\\(?!frac|cdot).*°")
_ANY_FORM = EqualityRules(any_form=True)


def _settled(answer: str, reference: str) -> str | None:
    r"""The last side of a chain of equations whose constant sides are all equal, before a `\approx` with a rounding of
    it; with the first side where the reference is an equation. None for any other text."""
    sides = _sides(answer)
    if sides is None:
        return None
    values, rounded = sides
    if rounded is not None:
        value = _exact_or_rounded(values[-1], rounded, reference)
        if value != values[-1] or len(values) == 1:
            return value
    last = _tree(values[-1])
    if last is None or not all(values) or not all(_agrees(side, last) for side in values[:-1]):
        return None
    if any(sign == "=" and not depth for sign, depth in zip(reference, _depths(reference), strict=True)):
        return f"{values[0]} = {values[-1]}" if len(values) > 2 else None
    return None if _is_unsolved(values[0], last) else values[-1]


def _exact_or_rounded(exact: str, rounded: str, reference: str) -> str | None:
    r"""The side of `exact \approx rounded` that the reference asks for; None where it is no rounding of the other."""
    node = None if not exact or _is_name(exact) else _tree(exact)
    if node is None:
        return rounded if _STATED_DECIMAL.match(reference) else None
    if isinstance(node, MeasuredQuantity):
        node = node.number
    if isinstance(node, ValueCollection) or variables(node) or not _DECIMAL.fullmatch(rounded):
        return None
    value, places = real_value(node), len(rounded.partition(".")[2])
    if value is None or abs(value - Fraction(rounded)) > Fraction(1, 2 * 10**places):
        return None
    return rounded if _DECIMAL.fullmatch(reference) and "." in reference else exact


def _agrees(side: str, last: MathNode) -> bool:
    """Whether a side of a chain has a name, variables or words, or the last side's value."""
    node = _tree(_WORDS.sub("", side))  # `we get 3 + 4`
    if node is None or variables(node) or _is_name(side) or _OF_DEGREES.search(side):
        return True
    degrees, radians = (
        MathOperation("degrees", (one.number,))
        if isinstance(one, MeasuredQuantity) and one.dimensions == (("degree", 1),) else one
        for one in (node, last)
    )  # fmt: skip
    return same_answer(last, node, _ANY_FORM) or same_answer(radians, degrees, _ANY_FORM)


def _is_unsolved(side: str, last: MathNode) -> bool:
    """Whether a side is an expression of one variable and numbers, such as `2x`, that the last side is not identical
    to: the value of `2x` is not that of the variable."""
    node = _tree(side)
    names = variables(node) if isinstance(node, MathOperation) else frozenset[str]()
    if not isinstance(node, MathOperation) or len(names) != 1 or max(names).isupper() or _CALL.match(side):
        return False
    numbers = any(isinstance(one, NumberLiteral) for one in walk(node)) or node.name in ("sum", "negation")
    return numbers and not (variables(last) and same_answer(last, node, _ANY_FORM))


def _sides(text: str) -> tuple[list[str], str | None] | None:
    r"""Sides of a chain of `=`, and the decimal behind an `\approx` at its end; None where there is no such chain."""
    depths = _depths(text)
    if any(depths[match.start()] == 0 for match in _SEPARATOR.finditer(text)):
        return None
    relations = [match for match in _RELATION.finditer(text) if depths[match.start()] == 0]
    relations = [one for one in relations if one.group() not in ("\\to", "\\mid")]
    if not relations or any(one.group() not in ("=", "\\approx") for one in relations):
        return None
    ends = [*(one.start() for one in relations), len(text)]
    begins = [0, *(one.end() for one in relations)]
    sides = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
    about = [one.group() == "\\approx" for one in relations]
    if any(about[:-1]):
        return None
    if not about[-1]:
        return sides, None
    return sides[:-1], sides[-1]


def _depths(text: str) -> list[int]:
    """Number of open brackets at each place."""
    text = text.replace("\\langle", "      (").replace("\\rangle", "      )")
    return list(accumulate((letter in "([{") - (letter in ")]}") for letter in text))


def _tree(text: str) -> MathNode | None:
    try:
        return parse_answer(text)
    except MathSyntaxError:
        return None


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z](?:_\{?\w+\}?)?", text) is not None and text not in ("e", "i")


# ---------------------------------------------------------------------------------------------------------------- times


def same_times(reference: str, answer: str) -> bool | None:
    """Equality of two times of day, `3:45 PM` and `15:45`; None where one is no time."""
    one, other = _MINUTES.fullmatch(reference), _MINUTES.fullmatch(answer)
    if one is None or other is None:
        return None
    certain = all(match[3] or not 0 < int(match[1]) < 13 for match in (one, other)) or not (one[3] or other[3])
    minutes = [
        (int(match[1]) % 12 + 12 * (match[3] in "pP") if match[3] else int(match[1])) * 60 + int(match[2] or 0)
        for match in (one, other)
    ]
    return certain and minutes[0] == minutes[1]
