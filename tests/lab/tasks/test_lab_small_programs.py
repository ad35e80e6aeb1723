"""Small programs: right solutions pass all tests, hurried ones do not, and rewards can read their rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.lab.tasks.small_programs import ALPHABET, HURRY, humaneval_row, hurried_program, make_tasks, mbpp_row
from hone.rewards.code_tests import read_tests


@given(st.integers(0, 10_000))
def test_solutions_compute_the_words(seed: int) -> None:
    task = make_tasks(1, seed=seed)[0]
    for row in (task.tests(), task.tests(challenge=True)):
        assert len(row) == 4
        for test in row:
            exec(f"{task.prompt}{task.solution}\n{test}", {})
    assert set(task.prompt + task.solution) <= set(ALPHABET)


def test_a_hurried_teacher_is_wrong_as_often_as_he_says() -> None:
    tasks = make_tasks(400, seed=3)
    right = 0
    for task in tasks:
        written = hurried_program(task)
        assert written == hurried_program(task)
        if written == task.solution:
            right += 1
        else:
            with pytest.raises(AssertionError):
                exec("\n".join([task.prompt + written, *task.tests()]), {})
    assert abs(right / len(tasks) - (1 - HURRY)) < 0.06


def test_rows_are_read_as_those_of_the_public_datasets() -> None:
    first, second = make_tasks(2, seed=1)
    assert read_tests(mbpp_row(first)).calls == tuple(first.tests())
    only = read_tests(humaneval_row(second)).calls[0]
    exec(f"{second.prompt}{second.solution}\n{only}", {})
    assert set(make_tasks(5, seed=1, exclude=[first])).isdisjoint([first])
