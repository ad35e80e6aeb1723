"""Hidden tests of a program: how many of them it passes, decided where it cannot reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from hone.core.errors import DataError, ResourceError
from hone.sandbox.examined_text import imports_of
from hone.sandbox.run import CodeSandbox

_MOST_LOST = 2
"""Tests that may take the program's process down, by time or otherwise, before the rest counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTest:
    """A test of a whole program: what it reads, and the exact output that it must write."""

    stdin: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTestOutcome:
    """What came of one test."""

    passed: bool
    reason: str = ""
    """Why it failed, or says nothing."""
    missing: bool = False
    """It says nothing of the program: something had no form in the other process."""
    asked: bool = True
    """It asked the program for something."""
    seconds: float = 0.0
    """Wall time."""


def run_tests(sandbox: CodeSandbox, code: str, tests: Sequence[str], *, setup: str = "") -> list[HiddenTestOutcome]:
    """Outcomes of tests that call a program's functions, such as `assert f(1) == 2`, one for each.

    The tests run in a process of their own, which asks the program's for what its functions and objects answer. A test
    that the program's process does not survive has failed, and the next ones get a new one. The policy's seconds are
    those of each test. A test says nothing (`missing`) where something of it has no form in the other process.
    Raises ResourceError (nothing is confined here) and DataError (the tests themselves are wrong).
    """
    outcomes: list[HiddenTestOutcome] = []
    lost = 0
    while len(outcomes) < len(tests):
        request = {"code": code, "prelude": imports_of(setup), "files": {}}
        reply = sandbox.call(request, {"setup": setup, "tests": list(tests), "first": len(outcomes)})
        fresh, fault = _outcomes(reply)
        outcomes += fresh[: len(tests) - len(outcomes)]
        lost += 1
        left = len(tests) - len(outcomes)
        if fault or lost >= _MOST_LOST:
            reason = fault or f"not run: {lost} tests took the program's process down"
            outcomes += [HiddenTestOutcome(passed=False, reason=reason)] * left
    if all(one.passed and not one.asked for one in outcomes):
        outcomes = [HiddenTestOutcome(passed=False, reason="no test asked the program for anything") for _ in outcomes]
    return outcomes


def _outcomes(reply: dict[str, object]) -> tuple[list[HiddenTestOutcome], str]:
    """The outcomes that a process reported, the last one perhaps of a test that it did not survive; and the fault of a
    program that does not load."""
    stopped = str(reply.get("stopped", ""))
    if reply["verdict"] == "refused":
        raise ResourceError(f"the sandbox refused: {reply['error']}")
    reports = cast("list[dict[str, Any]]", reply["reports"])
    if not reports:
        return [], f"the program did not load: {stopped or 'its process ended'}"
    first, *rest = reports
    if "fault" in first:
        return [], "the program did not load: " + str(first["fault"]).rpartition("\n")[2]
    if rest and "fault" in rest[0]:
        return [], str(rest[0]["fault"])
    if broken := [one["broken"] for one in rest if "broken" in one]:
        raise DataError(f"the tests cannot be run: {broken[0]}")
    seconds = cast("list[float]", reply["seconds"])[1:]
    outcomes = [
        HiddenTestOutcome(
            passed=one["passed"] is True,
            reason=str(one["reason"]),
            missing=one.get("missing") is True,
            asked=one.get("asked") is not False,
            seconds=took,
        )
        for one, took in zip(rest, seconds, strict=False)
    ]
    if not (rest and rest[-1].get("lost")) and stopped in ("timeout", "output"):
        outcomes.append(HiddenTestOutcome(passed=False, reason=f"{stopped}: the program was killed"))
    elif rest and rest[-1].get("lost"):
        outcomes[-1] = HiddenTestOutcome(passed=False, reason=f"{rest[-1]['reason']} ({stopped})")
    return outcomes, ""


def run_output_tests(
    sandbox: CodeSandbox, code: str, tests: Sequence[OutputTest], *, spaces: Literal["exact", "ends"] = "ends"
) -> list[HiddenTestOutcome]:
    """Outcomes of tests that compare a program's output, which it writes in a process for each.

    With `ends`, spaces at the ends of lines and empty lines at the end of the output do not matter. Raises as
    `run_tests`.
    """
    outcomes: list[HiddenTestOutcome] = []
    lost = 0
    for test in tests:
        if lost >= _MOST_LOST:
            outcomes.append(HiddenTestOutcome(passed=False, reason=f"not run: {lost} tests took too long"))
            continue
        result = sandbox.run(code, stdin=test.stdin)
        if result.verdict == "refused":
            raise ResourceError(f"the sandbox refused: {result.error}")
        right = _comparable(result.stdout, spaces) == _comparable(test.output, spaces)
        reason = result.error.rpartition("\n")[2] if result.verdict != "ok" else "" if right else "another output"
        lost += result.verdict == "timeout"
        outcomes.append(HiddenTestOutcome(passed=right and not reason, reason=reason, seconds=result.seconds))
    return outcomes


def _comparable(text: str, spaces: str) -> str:
    if spaces == "exact":
        return text
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
