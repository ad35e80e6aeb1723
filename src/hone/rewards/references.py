"""Reference columns: what a reward function cannot score without, and which rows of a dataset lack it.

Belongs here: pure functions on values. A missing reference is found before a run, by row; an answer that meets one all
the same is unscorable, and its function is not called: `str(None)` is a text that a policy could write.
"""

import decimal
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hone.core.judging import DatasetRow
from hone.rewards.code_tests import tests_fault

_TEXT_REFERENCES: Mapping[str, frozenset[str]] = {
    "exact_match": frozenset({"answer"}),
    "math_answer": frozenset({"answer"}),
}
"""Built-in function -> its columns in which blank text is a missing value too: an empty answer would equal it."""
TASKS_WITHOUT_ANSWER = frozenset({"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"})
"""Tasks of reasoning-gym with several right answers: `answer` is null, and their scorers read `metadata`."""
_ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRule:
    """The columns of a function that must hold a value in each row."""

    name: str
    """Name of the function in messages."""
    use: str
    required: frozenset[str]

    def missing(self, row: Mapping[str, object]) -> dict[str, str]:
        """Each required column of `row` without a value, and what it holds instead: `null`, `NaN` or `empty text`."""
        blank = _TEXT_REFERENCES.get(self.use, frozenset[str]())
        unneeded = self.use == "reasoning_gym" and row.get("task") in TASKS_WITHOUT_ANSWER
        return {
            column: instead
            for column in sorted(self.required & row.keys())
            if not (unneeded and column == "answer")
            and (instead := describe_missing(row[column], blank=column in blank))
        }

    def unscorable(self, columns: Mapping[str, Sequence[object]], count: int) -> dict[int, str]:
        """The answers of a batch of `count` that lack a required column, and why they have no score."""
        here = {column: values for column, values in columns.items() if column in self.required or column == "task"}
        reasons: dict[int, str] = {}
        row: dict[str, object] = {}
        reason = ""
        for index in range(count if self.required & here.keys() else 0):
            # Answers to one prompt have the same references: they are looked at once.
            if index == 0 or any(values[index] is not row[column] for column, values in here.items()):
                row = {column: values[index] for column, values in here.items()}
                named = " and ".join(f"{column!r} is {instead}" for column, instead in self.missing(row).items())
                reason = f"there is nothing to compare with: the column {named}" if named else ""
            if reason:
                reasons[index] = reason
        return reasons


def describe_missing(value: object, *, blank: bool = False) -> str:
    """`null`, `NaN` or, with `blank`, `empty text`; empty for a value that can be compared with."""
    if value is None:
        return "null"
    # Without float(): an int may be beyond its range.
    if value.is_nan() if isinstance(value, decimal.Decimal) else isinstance(value, numbers.Real) and value != value:
        return "NaN"
    return "empty text" if blank and isinstance(value, str) and not value.strip() else ""


def missing_rows(rows: Sequence[DatasetRow], rules: Sequence[ReferenceRule]) -> list[str]:
    """Faults of a dataset, one for each function and column, with the rows that lack it."""
    faults = [
        f"{row.source}: row {row.row}: reward function {rule.name!r}: {fault}"
        for rule in rules
        for row in rows
        if (fault := tests_fault(rule.use, row.columns))
    ]
    faults = faults[:_ROWS_SHOWN] + ([f"and {more} more such rows"] if (more := len(faults) - _ROWS_SHOWN) > 0 else [])
    for rule in rules:
        missing: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            for column, instead in rule.missing(row.columns).items():
                missing.setdefault((row.source, column), []).append(f"{row.row} ({instead})")
        for (source, column), places in missing.items():
            total = sum(row.source == source for row in rows)
            shown = ", ".join(places[:_ROWS_SHOWN]) + (", ..." if len(places) > _ROWS_SHOWN else "")
            faults.append(
                f"{source}: column {column!r} holds nothing in {len(places)} of {total} rows: {shown}; reward function "
                f"{rule.name!r} cannot score without it: fill it in, remove these rows, or give the parameter of a "
                "function of your own a default, which then takes the null"
            )
    return faults
