"""Programs that a plan runs through the tests of a dataset: the reference solution of each row, and an empty program.

A reward of code is as right as its tests. A reference that fails them, or an empty program that passes them, would be
learnt as it is, so `hone plan` refuses the rows.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from hone.core.errors import DataError
from hone.rewards.code_tests import code_tests
from hone.rewards.config import RewardFunction, RewardsConfig
from hone.rewards.functions import completion_text
from hone.text.tasks.dataset import Example, ExampleDataset

_COLUMNS = ("reference_solution", "canonical_solution", "solution", "solutions", "code")
_TEST_COLUMNS = ("tests", "test_list", "test_setup_code", "test", "entry_point", "inputs", "outputs")
_FAULTS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """The reference solution of a row."""

    column: str
    text: str
    join_prompt: bool
    """It follows the prompt, as HumanEval's does."""


def check_reference_programs(datasets: Sequence[ExampleDataset], rewards: RewardsConfig) -> list[str]:
    """Run the reference solution, which must score 1, and an empty program, which must score 0, of each row that
    `code_tests` scores; what was run, in a line for each such function. Raises DataError with the rows where they do
    not, and ResourceError where nothing confines programs."""
    notes: list[str] = []
    examples = [example for dataset in datasets for example in dataset.rows]
    for function in rewards.worker_functions:
        if function.use != "code_tests" or not examples:
            continue
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            faults = [fault for row in pool.map(partial(_row_faults, function), examples) for fault in row]
        if faults:
            more = [f"and {len(faults) - _FAULTS_SHOWN} more such rows"] if len(faults) > _FAULTS_SHOWN else []
            raise DataError(*faults[:_FAULTS_SHOWN], *more)
        solved = sum(_reference(example) is not None for example in examples)
        without = "" if solved == len(examples) else f"; {len(examples) - solved} rows have no reference solution"
        notes.append(
            f"{function.name}: {solved} reference solutions score 1, {len(examples)} empty programs score 0{without}"
        )
    return notes


def _row_faults(function: RewardFunction, example: Example) -> list[str]:
    place = f"{example.source}: row {example.row}: reward function {function.name!r}: "
    faults: list[str] = []
    reference = _reference(example)
    if reference is not None:
        score, reason = _score(function, example, reference.text, join_prompt=reference.join_prompt)
        if score != 1:
            faults.append(
                f"{place}the reference solution in column {reference.column!r} scores {_shown(score)}, not 1 "
                f"({reason}); fix the tests or the solution, or remove the row"
            )
    score, reason = _score(function, example, "", join_prompt=False)
    if score is None and not faults:
        faults.append(f"{place}an empty program has no score ({reason}); fix the tests, or remove the row")
    elif score:
        faults.append(
            f"{place}an empty program scores {_shown(score)}, not 0 ({reason}); fix the tests, or remove the row"
        )
    return faults


def _score(function: RewardFunction, example: Example, program: str, *, join_prompt: bool) -> tuple[object, str]:
    tests = {name: example.columns[name] for name in _TEST_COLUMNS if name in example.columns}
    options = {name: value for name, value in function.options.items() if name not in ("pattern", "join_prompt")}
    result = code_tests(program, example.prompt, **tests, **options, join_prompt=join_prompt)  # pyright: ignore[reportArgumentType]
    return result["score"], str(result["reason"])


def _shown(score: object) -> str:
    return "nothing" if score is None else f"{score:.3g}" if isinstance(score, float) else str(score)


def _reference(example: Example) -> _Reference | None:
    """The reference solution of a row: its completion, or the first column of those that datasets name so."""
    if example.completion is not None:
        return _Reference(column="completion", text=completion_text(example.completion), join_prompt=False)
    for column in _COLUMNS:
        text = _first_text(example.columns.get(column))
        if text and (column != "code" or "test_list" in example.columns):  # MBPP's; elsewhere it may be anything
            entry = str(example.columns.get("entry_point") or "")
            follows = column == "canonical_solution" and f"def {entry}" not in text
            return _Reference(column=column, text=text, join_prompt=follows)
    return None


def _first_text(value: object) -> str:
    """A text, or the first one of a list, which may be written as JSON; empty where there is none."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = value[0] if value else ""
    return value if isinstance(value, str) and value.strip() else ""
