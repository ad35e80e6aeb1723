"""Tests in the columns of a row, in the shapes of public datasets.

tests                                  assert-style texts, or tables of `input` and `output`
test_list, test_setup_code             MBPP
test, entry_point                      HumanEval: `test` defines check(candidate)
inputs, outputs                        APPS, TACO: what a program reads and writes
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import ValidationError

from hone.core.errors import ConfigError
from hone.sandbox.examination import OutputTest
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import require_rung


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTests:
    """Tests of one program."""

    calls: tuple[str, ...] = ()
    """Texts that call its functions."""
    outputs: tuple[OutputTest, ...] = ()
    setup: str = ""
    """Run before `calls`."""

    @property
    def count(self) -> int:
        """Number of tests."""
        return len(self.calls) + len(self.outputs)


CODE_REWARDS = ("code_tests", "visible_code_tests")
"""Built-in functions that run programs."""
DEFAULT_LIMITS: Mapping[str, object] = {"seconds": 1.0, "memory_bytes": 2**29, "if_no_rung": "refuse"}
"""Options of `code_tests` that limit programs."""


def limits_of_tests(seconds: float, memory_bytes: int, if_no_rung: str) -> SandboxPolicy:
    """Limits of each test. Raises ValidationError for values that are none."""
    values = {"cpu_s": seconds, "wall_s": 4 * seconds, "memory_bytes": memory_bytes, "if_no_rung": if_no_rung}
    return SandboxPolicy.model_validate({**values, "output_bytes": 2**18})


def check_code_reward(use: str, options: Mapping[str, object]) -> None:
    """See that the options of a reward function are limits, and that this machine can confine its programs.

    Raises ConfigError with all that are none, ResourceError where nothing confines them.
    """
    if use not in CODE_REWARDS:
        return
    given = {**DEFAULT_LIMITS, **{name: options[name] for name in DEFAULT_LIMITS if name in options}}
    names = {"cpu_s": "seconds", "wall_s": "seconds"}
    try:
        policy = limits_of_tests(**given)  # pyright: ignore[reportArgumentType] - the policy says what is wrong
    except (ValidationError, TypeError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else [{"loc": ("seconds",), "msg": str(error)}]
        told = {names.get(str(one["loc"][0]), str(one["loc"][0])): one["msg"] for one in faults}
        raise ConfigError(*(f"reward function {use!r}: options.{name}: {msg}" for name, msg in told.items())) from None
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


def read_tests(columns: Mapping[str, object]) -> ProgramTests:
    """The tests of a row. Raises ValueError that says what is wrong with its columns."""
    setup = str(columns.get("test_setup_code") or "")
    if columns.get("tests") is not None:
        return _listed(columns["tests"], setup)
    if columns.get("test_list") is not None:
        return ProgramTests(calls=_texts("test_list", columns["test_list"]), setup=setup)
    if columns.get("test"):
        entry = str(columns.get("entry_point") or "")
        if not entry.isidentifier():
            raise ValueError(f"column entry_point is {entry!r}, not the name of the function that `test` checks")
        return ProgramTests(calls=(f"{columns['test']}\n\ncheck({entry})\n",), setup=setup)
    if columns.get("inputs") is not None:
        inputs, outputs = (_texts(name, columns.get(name)) for name in ("inputs", "outputs"))
        if len(inputs) != len(outputs):
            raise ValueError(f"columns inputs and outputs hold {len(inputs)} and {len(outputs)} texts")
        return ProgramTests(
            outputs=tuple(OutputTest(stdin=read, output=write) for read, write in zip(inputs, outputs, strict=True))
        )
    raise ValueError(
        "the row has no tests: give a column tests, test_list, test and entry_point, or inputs and outputs"
    )


def _listed(value: object, setup: str) -> ProgramTests:
    calls: list[str] = []
    outputs: list[OutputTest] = []
    for place, test in enumerate(_list("tests", value)):
        if isinstance(test, str):
            calls.append(test)
        elif isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            outputs.append(OutputTest(stdin=str(test["input"]), output=str(test["output"])))
        else:
            raise ValueError(f"tests.{place} is neither a text nor a table with input and output")
    return ProgramTests(calls=tuple(calls), outputs=tuple(outputs), setup=setup)


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
