"""The reward of a program: the share of hidden tests that it passes. Imported by workers only."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

from hone.core.errors import DataError
from hone.rewards.answers import extract_answer
from hone.rewards.code.rows import ProgramTests, limits_of_tests, read_tests
from hone.rewards.functions import completion_text
from hone.sandbox.examination import HiddenTestOutcome, run_output_tests, run_tests
from hone.sandbox.run import CodeSandbox, shared_sandbox

# ------------------------------------------------------------------------------------------------------------- programs


_BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE)


def extract_program(completion: str, pattern: str = "") -> str:
    """The program in a completion: the last fenced block of Python, else all of it; with a pattern its last match."""
    if pattern:
        return extract_answer(completion, pattern)
    blocks = _BLOCK.findall(completion)
    return blocks[-1] if blocks else completion


# --------------------------------------------------------------------------------------------------------- hidden tests


_KEPT = 4096
_kept: OrderedDict[tuple[str, ProgramTests, str], list[HiddenTestOutcome]] = OrderedDict()
"""Outcomes of the programs that were tested last: answers repeat, the more so the better a policy gets."""


def code_tests(  # noqa: PLR0913 - the columns of a row in their several shapes, then options
    completion: object,
    prompt: object = "",
    tests: object = None,
    test_list: object = None,
    test_setup_code: object = "",
    test: object = "",
    entry_point: object = "",
    inputs: object = None,
    outputs: object = None,
    pattern: str = "",
    join_prompt: bool = False,  # noqa: FBT001, FBT002 - passed by name from the config's options
    all_or_nothing: bool = False,  # noqa: FBT001, FBT002
    spaces: Literal["exact", "ends"] = "ends",
    seconds: float = 1.0,
    memory_bytes: int = 2**29,
    if_no_rung: Literal["refuse", "code written by a model may do everything on this machine that I can do"] = "refuse",
) -> dict[str, object]:
    """The share of the row's tests that the answer's program passes; with `all_or_nothing` 1 for all of them, else 0.

    The program is the last fenced block of the completion, or all of it; with `join_prompt` it follows the prompt. Each
    test may take `seconds` of processor time, and four times that by the clock. Without tests in the row, or with wrong
    ones, the score is missing; whatever the program does to avoid a test is a test that it did not pass.
    """
    columns: Mapping[str, object] = {
        "tests": tests,
        "test_list": test_list,
        "test_setup_code": test_setup_code,
        "test": test,
        "entry_point": entry_point,
        "inputs": inputs,
        "outputs": outputs,
    }
    code = extract_program(completion_text(completion), pattern)
    if join_prompt:
        code = completion_text(prompt) + code
    policy = limits_of_tests(seconds, memory_bytes, if_no_rung)
    try:
        outcomes = _tested(shared_sandbox(policy), code, read_tests(columns), spaces)
    except (ValueError, DataError) as error:
        return {"score": None, "reason": str(error)}
    return _score(outcomes, all_or_nothing=all_or_nothing)


def visible_code_tests(
    completion: object,
    visible_tests: object,
    prompt: object = "",
    test_setup_code: object = "",
    join_prompt: bool = False,  # noqa: FBT001, FBT002 - passed by name from the config's options
) -> dict[str, object]:
    """The share of the column `visible_tests`, which the prompt shows: with weight 0 beside `code_tests`, it tells
    whether a policy learns the tests that it sees instead of the task."""
    return code_tests(completion, prompt, tests=visible_tests, test_setup_code=test_setup_code, join_prompt=join_prompt)


def _tested(
    sandbox: CodeSandbox, code: str, tests: ProgramTests, spaces: Literal["exact", "ends"]
) -> list[HiddenTestOutcome]:
    """Outcomes of all tests; of a program that has just been tested, the earlier ones, unless time was short."""
    key = (code, tests, spaces)
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    outcomes = run_tests(sandbox, code, tests.calls, setup=tests.setup)
    outcomes += run_output_tests(sandbox, code, tests.outputs, spaces=spaces)
    if not any("timeout" in one.reason or "not run" in one.reason for one in outcomes):
        _kept[key] = outcomes
        if len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return outcomes


def _score(outcomes: list[HiddenTestOutcome], *, all_or_nothing: bool) -> dict[str, object]:
    passed = sum(one.passed for one in outcomes)
    failed = next(((place, one.reason) for place, one in enumerate(outcomes) if not one.passed), None)
    why = "" if failed is None else f"; test {failed[0]}: {failed[1]}"
    share = float(passed == len(outcomes)) if all_or_nothing else passed / len(outcomes)
    return {"score": share, "reason": f"{passed} of {len(outcomes)} tests{why}"}
