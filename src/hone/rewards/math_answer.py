"""Mathematical equality by math-verify, behind guards. Imported by workers only: sympy takes a second to import.

sympy evaluates what it is given: `9^9^9^9` or `(10^7)!` would cost the whole deadline. So an answer is first compared
as text and as a number, then measured, and only a modest expression reaches sympy, under math-verify's own alarms.

An answer beyond the guards scores 0 with its reason: were it a missing value, a policy could buy itself out of every
hard problem. A *reference* that cannot be read is a missing value: the policy has no say in it.
"""

import re
from fractions import Fraction
from typing import Any

from math_verify import parse, verify

from hone.rewards.answers import extract_answer
from hone.rewards.functions import completion_text

MAX_CHARS = 2000
MAX_NESTING = 50
MAX_DIGITS = 200
MAX_EXPONENT = 1000
MAX_FACTORIAL = 200
_ALARM_S = 3

_TOWER = re.compile(r"\^\s*(?:[({][^(){}]*\^|-?(?:[\d.]+|[A-Za-z])\s*\^)")
_EXPONENT = re.compile(r"\^\s*[({]?\s*-?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+|[)}!\]])\s*!(?!=)")
_DIGITS = re.compile(r"\d+")
_PLAIN_NUMBER = re.compile(r"[+-]?\d{1,200}(?:\.\d{1,200}|/\d{1,200})?")
_DECORATION = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;! ]|\$")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s")


def math_answer(completion: object, answer: object, pattern: str = "") -> dict[str, object]:
    """`{"score", "reason"}`: 1.0 when the completion's answer equals the column `answer` as mathematics, else 0.0.

    The answer is the last `\\boxed{...}`, or what `extract_answer(completion, pattern)` finds where a pattern is given
    or nothing is boxed. The score is None when the reference itself cannot be read.
    """
    gold, text = _without_decoration(str(answer)), completion_text(completion)
    answer_text = "" if pattern else last_boxed(text)
    answer_text = _without_decoration(answer_text or extract_answer(text, pattern))
    if reason := why_too_large(gold):
        return {"score": None, "reason": f"the reference answer is refused: {reason}"}
    if not answer_text:
        return {"score": 0.0, "reason": "no answer found"}
    same = _equal_without_sympy(gold, answer_text)
    if same is not None:
        return {"score": float(same), "reason": ""}
    if reason := why_too_large(answer_text):
        return {"score": 0.0, "reason": f"the answer is refused: {reason}"}
    wanted = _parsed(gold)
    if not wanted:
        return {"score": None, "reason": f"the reference answer cannot be read: {gold[:80]}"}
    given = _parsed(answer_text)
    if not given:
        return {"score": 0.0, "reason": "the answer cannot be read as mathematics"}
    return {"score": float(verify(wanted, given, timeout_seconds=_ALARM_S)), "reason": ""}


def last_boxed(text: str) -> str:
    r"""The content of the last `\boxed{...}`, braces balanced; empty when there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, begin = 0, start + len("\\boxed{")
    for index in range(begin, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}" and depth == 0:
            return text[begin:index]
        elif text[index] == "}":
            depth -= 1
    return ""


def why_too_large(expression: str) -> str:
    """Why an expression is not given to sympy; empty when it may be."""
    if len(expression) > MAX_CHARS:
        return f"{len(expression)} characters, at most {MAX_CHARS}"
    if _nesting(expression) > MAX_NESTING:
        return f"more than {MAX_NESTING} nested brackets"
    powers = expression.replace("**", "^")
    if _TOWER.search(powers):
        return "a power of a power"
    if any(len(found) > MAX_DIGITS for found in _DIGITS.findall(expression)):
        return f"a number of more than {MAX_DIGITS} digits"
    if any(int(found) > MAX_EXPONENT for found in _EXPONENT.findall(powers)):
        return f"an exponent above {MAX_EXPONENT}"
    if any(not found.isdecimal() or int(found) > MAX_FACTORIAL for found in _FACTORIAL.findall(expression)):
        return f"a factorial of an expression, or of more than {MAX_FACTORIAL}"
    return ""


def _nesting(expression: str) -> int:
    depth = deepest = 0
    for letter in expression:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _equal_without_sympy(gold: str, found: str) -> bool | None:
    """Equality without sympy: the same text, or two plain numbers. None when neither decides."""
    one, other = _plain(gold), _plain(found)
    if one == other:
        return True
    if not (_PLAIN_NUMBER.fullmatch(one) and _PLAIN_NUMBER.fullmatch(other)):
        return None
    if one.lstrip("+-").isdecimal() and other.lstrip("+-").isdecimal():
        return int(one) == int(other)
    try:
        return True if Fraction(one) == Fraction(other) else None  # math-verify rounds, and may still call them equal
    except ZeroDivisionError:
        return False


def _plain(text: str) -> str:
    """The text without layout commands. A comma is removed between thousands only: (1, 2) is not 12."""
    text = " ".join(_DECORATION.sub("", text).split())
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def _without_decoration(text: str) -> str:
    inner = last_boxed(text) or text
    return inner.strip().strip("$").strip()


def _parsed(expression: str) -> list[Any]:
    """The expression as math-verify parses it: as LaTeX first unless it is a sentence; empty for no result."""
    if not _PROSE.search(expression):
        found = parse(f"${expression}$", parsing_timeout=_ALARM_S, fallback_mode="no_fallback")
        if found:
            return found
    return parse(expression, parsing_timeout=_ALARM_S)
