"""Worked answers from a user's function: what arrives there, what comes back, and what goes wrong in words."""

import datetime
from pathlib import Path

import pytest

from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.rewards.solutions import check_solution, run_solutions

FUNCTIONS = """
import time
from neighbour import MARK

def named(prompt, answer):
    print("prints are no answers")
    return f"{prompt} -> {answer}{MARK}"

def everything(**columns):
    return repr(columns)

def number(prompt):
    return 3

def fails(prompt):
    raise KeyError(prompt)

def leaves(prompt):
    import os
    os._exit(7)

def hangs(prompt):
    time.sleep(60)

VALUE = 1
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "worked.py").write_text(FUNCTIONS, encoding="utf-8")
    (tmp_path / "inside" / "neighbour.py").write_text('MARK = "!"', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "inside/worked.py"


def test_columns_arrive_by_name_and_text_comes_back(file: str) -> None:
    rows: list[dict[str, object]] = [{"prompt": "1+1", "answer": 2, "more": None}, {"prompt": "ü\n", "answer": "x"}]
    assert run_solutions(f"{file}:named", rows, deadline_s=60) == ["1+1 -> 2!", "ü\n -> x!"]


def test_columns_arrive_as_the_dataset_holds_them(file: str) -> None:
    row: dict[str, object] = {"prompt": "p", "pair": (1, 2), "day": datetime.date(2026, 1, 2), "map": {3: [1.5]}}
    assert run_solutions(f"{file}:everything", [row], deadline_s=60) == [repr(row)]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("number", "returned int 3 for example 0, not text"),
        ("fails", "KeyError"),
        ("leaves", "exited with code 7"),
        ("everythin", "did you mean everything"),
    ],
)
def test_what_goes_wrong_there_is_told(file: str, name: str, told: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        run_solutions(f"{file}:{name}", [{"prompt": "p"}], deadline_s=60)
    assert f"{file}:{name}" in str(caught.value)
    assert told in str(caught.value)


def test_a_function_that_hangs_is_killed(file: str) -> None:
    with pytest.raises(UserCodeError, match=r"killed after 1.5 s for 1 examples"):
        run_solutions(f"{file}:hangs", [{"prompt": "p"}], deadline_s=1.5)


def test_columns_that_cannot_be_sent_are_a_fault_of_the_data(file: str) -> None:
    with pytest.raises(DataError, match="cannot be handed"):
        run_solutions(f"{file}:named", [{"prompt": "p", "answer": object()}], deadline_s=60)


@pytest.mark.parametrize("use", ["worked.py", "inside/worked.py:", "inside/worked.py:two words", ":named"])
def test_references_have_a_form(file: str, use: str) -> None:
    with pytest.raises(ConfigError, match=r"write path/to/file.py:name"):
        check_solution(use)


def test_a_file_that_is_not_there_is_named_with_its_neighbour(file: str) -> None:
    check_solution(f"{file}:named")
    with pytest.raises(ConfigError, match=r"no such file inside/workd.py; did you mean worked.py"):
        check_solution("inside/workd.py:named")
