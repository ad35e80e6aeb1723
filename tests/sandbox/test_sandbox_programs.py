"""Right programs in ordinary styles are paid in full; wrong and cheating ones nothing, by whatever means they try."""

from collections.abc import Iterator

import pytest
from examined_programs import ExaminedProgram, read_programs

from hone.rewards.code_tests import test_score as score_of
from hone.sandbox.examination import HiddenTestOutcome, run_tests
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox

RIGHT, WRONG = [*read_programs("right.txt"), *read_programs("more_right.txt")], read_programs("wrong.txt")
HELD_OUT_RIGHT, HELD_OUT_WRONG = read_programs("held_out_right.txt"), read_programs("held_out_wrong.txt")
TO_THE_LIMIT = (
    "infinite loop at load",
    "infinite loop in a call",
    "infinite iterator as a list",
    "thread that never ends",
    "recursion limit without end",
    "reads objects of the collector",
    "floods the pipe",
)
"""They use up all of their time."""


def by_cost(programs: list[ExaminedProgram]) -> list[object]:
    return [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in TO_THE_LIMIT else []) for one in programs
    ]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CodeSandbox]:
    with CodeSandbox(SandboxPolicy(cpu_s=1.0, wall_s=60.0, output_bytes=2**18)) as opened:
        yield opened


def examine(sandbox: CodeSandbox, program: ExaminedProgram) -> list[HiddenTestOutcome]:
    return run_tests(sandbox, program.code, program.tests, setup=program.setup)


@pytest.mark.parametrize("program", by_cost(RIGHT))
def test_right_programs_pass_all_their_tests(sandbox: CodeSandbox, program: ExaminedProgram) -> None:
    assert [one.reason for one in examine(sandbox, program)] == [""] * len(program.tests)


@pytest.mark.parametrize("program", by_cost(WRONG))
def test_wrong_programs_are_paid_nothing(sandbox: CodeSandbox, program: ExaminedProgram) -> None:
    outcomes = examine(sandbox, program)
    assert score_of(outcomes, all_or_nothing=False) == 0.0, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("program", HELD_OUT_RIGHT, ids=lambda one: one.name)
def test_right_programs_that_were_held_out_pass(sandbox: CodeSandbox, program: ExaminedProgram) -> None:
    assert [one.reason for one in examine(sandbox, program)] == [""] * len(program.tests)


@pytest.mark.slow
@pytest.mark.parametrize("program", HELD_OUT_WRONG, ids=lambda one: one.name)
def test_wrong_programs_that_were_held_out_are_paid_nothing(sandbox: CodeSandbox, program: ExaminedProgram) -> None:
    assert score_of(examine(sandbox, program), all_or_nothing=False) == 0.0


def test_the_word_of_an_object_that_tests_do_not_name_is_no_evidence(sandbox: CodeSandbox) -> None:
    near = "class Near:\n    def __eq__(self, o): return o in (3, 4, 5)\n"
    outcome = run_tests(sandbox, f"{near}def f(x): return Near()", ["assert f(2) == 4"])
    assert [(one.passed, one.missing) for one in outcome] == [(False, True)]
    assert "Near" in outcome[0].reason
    number = "class Age(int):\n    pass\ndef f(x): return Age(x + x)"
    named = run_tests(sandbox, number, ["assert f(2) == 4 and f(2) < 5"])
    assert [one.passed for one in named] == [True]


@pytest.mark.parametrize("every", [36, pytest.param(4, marks=pytest.mark.slow)])
def test_an_empty_program_is_paid_nothing_whatever_the_tests(sandbox: CodeSandbox, every: int) -> None:
    for program in RIGHT[::every]:
        outcomes = run_tests(sandbox, "", program.tests, setup=program.setup)
        assert score_of(outcomes, all_or_nothing=False) == 0.0, (program.name, outcomes)
