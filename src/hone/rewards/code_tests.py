"""Rewards of programs: the share of the tests in a row's columns that an answer's program passes, run in the sandbox.

tests                                  assert-style texts, or tables of `input` and `output`
test_list, test_setup_code             MBPP
test, entry_point                      HumanEval: `test` defines check(candidate)
inputs, outputs                        APPS, TACO: what a program reads and writes
"""

import builtins
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import ValidationError

from hone.core.errors import ConfigError, DataError
from hone.rewards.functions import completion_text, extract_answer
from hone.sandbox.examination import HiddenTestOutcome, OutputTest, run_output_tests, run_tests
from hone.sandbox.examined_text import PROGRAM
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import CodeSandbox, require_rung, shared_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgramTests:
    """Tests of one program."""

    calls: tuple[str, ...] = ()
    """Texts that call its functions."""
    outputs: tuple[OutputTest, ...] = ()
    setup: str = ""
    """Run before `calls`."""

    @property
    def count(self) -> int:
        return len(self.calls) + len(self.outputs)


CODE_REWARDS = ("code_tests", "visible_code_tests")
"""Built-in functions that run programs."""
DEFAULT_LIMITS: Mapping[str, object] = {"seconds": 1.0, "memory_bytes": 2**29, "if_no_rung": "refuse"}
"""Options of `code_tests` that limit programs."""


def _limits_of_tests(seconds: float, memory_bytes: int, if_no_rung: str) -> SandboxPolicy:
    """Limits of each test. Raises ValidationError for values that are none."""
    values = {"cpu_s": seconds, "wall_s": 4 * seconds, "memory_bytes": memory_bytes, "if_no_rung": if_no_rung}
    return SandboxPolicy.model_validate({**values, "output_bytes": 2**18})


def check_code_reward(use: str, options: Mapping[str, object]) -> None:
    """See that the options of a reward function are limits, and that this machine can confine its programs. Raises
    ConfigError with all that are none, ResourceError where nothing confines them."""
    if use not in CODE_REWARDS:
        return
    limits = {**DEFAULT_LIMITS, **{name: options[name] for name in DEFAULT_LIMITS if name in options}}
    names = {"cpu_s": "seconds", "wall_s": "seconds"}
    try:
        policy = _limits_of_tests(**limits)  # pyright: ignore[reportArgumentType] - the policy says what is wrong
    except (ValidationError, TypeError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else [{"loc": ("seconds",), "msg": str(error)}]
        messages = {names.get(str(one["loc"][0]), str(one["loc"][0])): one["msg"] for one in faults}
        raise ConfigError(
            *(f"reward function {use!r}: options.{name}: {msg}" for name, msg in messages.items())
        ) from None
    if policy.if_no_rung != UNSAFE_WORDS:
        require_rung(policy)


def tests_fault(use: str, columns: Mapping[str, object]) -> str:
    """What is wrong with the tests of a row for a reward function; empty for nothing."""
    if use != "code_tests":
        return ""
    try:
        read_tests(columns)
    except ValueError as error:
        return str(error)
    return ""


def read_tests(columns: Mapping[str, object]) -> _ProgramTests:
    """The tests of a row. Raises ValueError that says what is wrong with its columns."""
    setup = str(columns.get("test_setup_code") or "")
    if columns.get("tests") is not None:
        return _listed(columns["tests"], setup)
    if columns.get("test_list") is not None:
        return _ProgramTests(calls=_texts("test_list", columns["test_list"]), setup=setup)
    if columns.get("test"):
        entry = str(columns.get("entry_point") or "")
        if not entry.isidentifier():
            raise ValueError(f"column entry_point is {entry!r}, not the name of the function that `test` checks")
        entry = f"{PROGRAM}.{entry}" if entry in dir(builtins) else entry
        return _ProgramTests(calls=(f"{columns['test']}\n\ncheck({entry})\n",), setup=setup)
    if columns.get("inputs") is not None:
        inputs, outputs = (_texts(name, columns.get(name)) for name in ("inputs", "outputs"))
        if len(inputs) != len(outputs):
            raise ValueError(f"columns inputs and outputs hold {len(inputs)} and {len(outputs)} texts")
        return _ProgramTests(
            outputs=tuple(OutputTest(stdin=read, output=write) for read, write in zip(inputs, outputs, strict=True))
        )
    raise ValueError(
        "the row has no tests: give a column tests, test_list, test and entry_point, or inputs and outputs"
    )


def _listed(value: object, setup: str) -> _ProgramTests:
    calls: list[str] = []
    outputs: list[OutputTest] = []
    for place, test in enumerate(_list("tests", value)):
        if isinstance(test, str):
            calls.append(test)
        elif isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            outputs.append(OutputTest(stdin=str(test["input"]), output=str(test["output"])))
        else:
            raise ValueError(f"tests.{place} is neither a text nor a table with input and output")
    return _ProgramTests(calls=tuple(calls), outputs=tuple(outputs), setup=setup)


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = _list(name, value)
    if wrong := [place for place, text in enumerate(texts) if not isinstance(text, str)]:
        raise ValueError(f"{name}.{wrong[0]} is a {type(texts[wrong[0]]).__name__}, not a text")
    return tuple(cast("Sequence[str]", texts))


def _list(name: str, value: object) -> Sequence[object]:
    """A list, also one that is written as JSON, as some datasets do. Raises ValueError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"column {name} is a text that is no JSON; write a list of tests") from None
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"column {name} holds no list of tests, or an empty one")
    return cast("Sequence[object]", value)


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
_kept: OrderedDict[tuple[str, _ProgramTests, str], list[HiddenTestOutcome]] = OrderedDict()
"""Outcomes of the programs that were tested last: answers repeat, the more so the better a policy gets."""
_kept_lock = threading.Lock()


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
    policy = _limits_of_tests(seconds, memory_bytes, if_no_rung)
    try:
        outcomes = _tested(shared_sandbox(policy), code, read_tests(columns), spaces)
    except (ValueError, DataError) as error:
        return {"score": None, "reason": str(error)}
    score = test_score(outcomes, all_or_nothing=all_or_nothing)
    failed = next(((place, one.reason) for place, one in enumerate(outcomes) if not one.passed), None)
    why = "" if failed is None else f"; test {failed[0]}: {failed[1]}"
    return {"score": score, "reason": f"{sum(one.passed for one in outcomes)} of {len(outcomes)} tests{why}"}


def test_score(outcomes: Sequence[HiddenTestOutcome], *, all_or_nothing: bool) -> float | None:
    """The share of tests that were passed, or 1 for all and 0 else; None if it depends on one that says nothing. Tests
    that were passed without the program, such as an import, do not count."""
    counted = [one for one in outcomes if one.asked or not one.passed]
    passed = sum(one.passed for one in counted)
    missing = sum(one.missing for one in counted)
    if missing and not (all_or_nothing and passed + missing < len(counted)):
        return None
    return float(passed == len(counted)) if all_or_nothing else passed / len(counted)


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
    sandbox: CodeSandbox, code: str, tests: _ProgramTests, spaces: Literal["exact", "ends"]
) -> list[HiddenTestOutcome]:
    """Outcomes of all tests; of a program that has just been tested, the earlier ones, unless time was short."""
    key = (code, tests, spaces)
    with _kept_lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    outcomes = run_tests(sandbox, code, tests.calls, setup=tests.setup)
    outcomes += run_output_tests(sandbox, code, tests.outputs, spaces=spaces)
    if not any("timeout" in one.reason or "not run" in one.reason for one in outcomes):
        with _kept_lock:
            _kept[key] = outcomes
            if len(_kept) > _KEPT:
                _kept.popitem(last=False)
    return outcomes
