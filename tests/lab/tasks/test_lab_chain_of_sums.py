"""Chains of sums: solutions, labels and verifiers, against values worked out by hand and against arithmetic."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.lab.tasks import chain_of_sums as sums
from hone.lab.tasks.chain_of_sums import SumProblem
from hone.process.user_files import check_reference
from hone.rewards.functions import LoadedFunction
from hone.rewards.solutions import run_solutions

PROBLEM = SumProblem((9, 3, -7))
problems = st.lists(st.integers(-999, 999).filter(bool), min_size=1, max_size=6).map(
    lambda rest: SumProblem((7, *rest))
)


def test_a_problem_and_its_solution_by_hand():
    assert PROBLEM.prompt == "9+3-7\n"
    assert PROBLEM.answer == 5
    assert PROBLEM.solution == "9+3=12;12-7=5;"
    assert SumProblem((1, -9, 2)).solution == "1-9=-8;-8+2=-6;"


@given(problems)
def test_solutions_are_right_chains_and_right_answers(problem: SumProblem):
    assert sums.read_problem(problem.prompt) == problem
    assert sums.last_number(problem.solution) == problem.answer
    assert set(problem.prompt + problem.solution) <= set(sums.ALPHABET)
    assert sums.step_labels(problem, problem.solution) == [True] * (len(problem.terms) - 1)
    for step in problem.steps:
        left, right = re.fullmatch(r"(-?\d+[+-]\d+)=(-?\d+)", step).groups()  # pyright: ignore[reportOptionalMemberAccess]
        first, second = re.fullmatch(r"(-?\d+)([+-]\d+)", left).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert int(first) + int(second) == int(right)


@given(problems, st.data())
def test_a_step_after_a_wrong_one_is_wrong(problem: SumProblem, data: st.DataObject):
    steps = problem.steps
    place = data.draw(st.integers(0, len(steps) - 1))
    text = ";".join([*steps[:place], steps[place] + "0", *steps[place + 1 :]])
    assert sums.step_labels(problem, text) == [True] * place + [False] * (len(steps) - place)
    assert sums.right_chain([problem.prompt], [text]) == [0.0]
    assert sums.right_so_far([problem.prompt], [text]) == [0.0]


@pytest.mark.parametrize(
    ("text", "answer", "chain", "so_far"),
    [
        ("9+3=12;12-7=5;", 1, 1, 1),
        ("9 + 3 = 12; 12 - 7 = 5", 1, 1, 1),
        ("9+3=12;", 0, 0, 1),  # stopped early
        ("9+3=13;13-8=5;", 1, 0, 0),  # luck
        ("9+3=12;12-7=5;5+0=5;", 1, 0, 0),
        ("9+3=12;12-7=", 0, 0, 0),
        ("5", 1, 0, 0),
        ("", 0, 0, 1),
    ],
)
def test_the_verifiers_by_hand(text: str, answer: float, chain: float, so_far: float):
    for prompt in ("9+3-7\n", "State the final answer to: 9 + 3 - 7 =\n"):
        assert sums.right_answer([prompt], [text]) == [answer]
        assert sums.right_chain([prompt], [text]) == [chain]
        assert sums.right_so_far([prompt], [text]) == [so_far]


def test_the_hurried_teacher_hurries_with_long_problems_only_and_always_the_same():
    long, short = sums.make_problems(1000, seed=0), sums.make_problems(100, seed=0, terms=(2, 2))
    hurried = [sums.hurried_solution(problem) != problem.solution for problem in long]
    assert 0.55 < sum(hurried) / len(long) < 0.65
    assert all(sums.hurried_solution(problem) == problem.solution for problem in short)
    assert all(sums.hurried_solution(problem, hurry=0.0) == problem.solution for problem in long)
    assert sums.hurried(long[0].prompt) == sums.hurried_solution(long[0])
    assert sums.worked(long[0].prompt) == long[0].solution


def test_problems_are_distinct_held_out_and_repeatable():
    training = sums.make_problems(500, seed=1, terms=(3, 3), largest=9)
    held_out = sums.make_problems(500, seed=2, terms=(3, 3), largest=9, exclude=training)
    assert len({*training, *held_out}) == 1000
    assert sums.make_problems(20, seed=1, terms=(3, 3)) == training[:20]
    assert {len(problem.terms) for problem in sums.make_problems(50, seed=3)} == {3, 4}
    with pytest.raises(ValueError, match="400 distinct problems of "):
        sums.make_problems(400, seed=0, terms=(2, 2))
    with pytest.raises(ValueError, match="no chain of sums such as"):
        sums.read_problem("what is love?")


@pytest.mark.parametrize("name", ["right_answer", "right_chain", "right_so_far"])
def test_configs_name_the_verifiers(name: str):
    assert LoadedFunction.load(f"hone.lab.tasks.chain_of_sums:{name}", {}).form == "batch"


def test_configs_name_the_teachers():
    for name in ("hurried", "worked"):
        check_reference(f"hone.lab.tasks.chain_of_sums:{name}", kind="solution function")
        prompts = [{"prompt": "9+3-7\n", "id": "a row"}]
        assert run_solutions(f"hone.lab.tasks.chain_of_sums:{name}", prompts, deadline_s=60)[0].startswith("9+3=12;")
