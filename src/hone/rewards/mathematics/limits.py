"""Limits of what is evaluated: length, nesting, and the size of numbers."""

import re

MAX_CHARS = 2000
MAX_NESTING = 50
MAX_DIGITS = 200
MAX_EXPONENT = 1000
MAX_FACTORIAL = 200

_TOWER = re.compile(r"\^\s*(?:[({][^(){}A-Za-z\\]*\^|-?[\d.]+\s*\^)")
_EXPONENT = re.compile(r"\^\s*[({]?\s*-?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+|[)}!\]])\s*!(?!=)")
_DIGITS = re.compile(r"\d+")


def why_too_large(expression: str) -> str:
    """Reason why an expression is not evaluated; empty when it may be."""
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
