"""Comparisons of an instrumented module: they note the tests that reach equality, and one of them is exchanged.

Belongs here: what the copy in `.mutants/boundaries` imports as `hone.comparison_runtime`.
"""

import operator
from typing import Any

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


class Notes:
    """State of the run: the present test, the comparison that is exchanged, and tests by comparison."""

    test = ""
    exchanged = -1
    equal: dict[int, dict[str, None]] = {}


def compared(number: int, sign: str, left: Any, right: Any) -> Any:
    """`left sign right`."""
    if number == Notes.exchanged:
        return OPERATORS[NEIGHBOUR[sign]](left, right)
    if Notes.test and Notes.exchanged == -1 and Notes.test not in Notes.equal.setdefault(number, {}):
        reached = _some_equal(left, right)
        if reached:
            Notes.equal[number][Notes.test] = None
    return OPERATORS[sign](left, right)


def _some_equal(left: Any, right: Any) -> bool:
    """Whether two numbers, or two elements of arrays, are equal; also where that cannot be said, as of a formula."""
    try:
        same = left == right
        return bool(same) if isinstance(same, bool) else bool(same.any())
    except Exception:  # noqa: BLE001 - a traced tensor or a formula of a prover: this test may reach it
        return True
