"""Rewards of programs: rows of public shapes, the share of tests that pass, and what is missing instead of 0."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, ResourceError
from hone.rewards import code_tests as rows
from hone.rewards.code_tests import code_tests, extract_program, read_tests, visible_code_tests
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.references import ReferenceRule, missing_rows
from hone.rewards.workers import RewardBatch, RewardWorkerPool
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox, SandboxReport, close_shared

MBPP: dict[str, Any] = {
    "test_list": [
        "assert twice(2) == 4",
        "assert twice(-1) == -2",
        "assert twice(0.5) == 1.0",
        "assert twice('a') == LONG",
    ],
    "test_setup_code": "LONG = 'aa'",
}
HUMANEVAL: dict[str, Any] = {
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]\n",
    "entry_point": "twice",
}
APPS: dict[str, Any] = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with CodeSandbox(SandboxPolicy()) as opened:
        if not opened.probe().rung:
            pytest.skip("this machine cannot confine programs")
    yield
    close_shared()


@pytest.mark.parametrize(
    ("completion", "row", "score"),
    [
        ("def twice(x): return x * 2", MBPP, 1.0),
        ("def twice(x): return x + 2", MBPP, 0.25),
        ("def twice(x): return x + x", HUMANEVAL, 1.0),
        ("def twice(x): return 2 * int(x)", HUMANEVAL, 0.0),
        ("print(2 * int(input()))", APPS, 1.0),
        ("print(4)", APPS, 0.5),
        ("print(4)", {"inputs": '["2", "5"]', "outputs": '["4", "10"]'}, 0.5),
        (
            "def twice(x): return 2 * x\nprint(twice(2))",
            {"tests": [{"input": "", "output": "4"}, *MBPP["test_list"][:1]]},
            1.0,
        ),
        ("no program at all", MBPP, 0.0),
        ("", MBPP, 0.0),
    ],
)
def test_the_score_is_the_share_of_tests(completion: str, row: dict[str, Any], score: float) -> None:
    assert code_tests(completion, **row)["score"] == score


def test_options_and_prompts() -> None:
    row = {"tests": ["assert twice(2) == 4", "assert twice(3) == 6"]}
    body = "    return 4"
    assert code_tests(body, "def twice(x):\n", **row, join_prompt=True)["score"] == 0.5
    assert code_tests(body, "def twice(x):\n", **row, join_prompt=True, all_or_nothing=True)["score"] == 0.0
    assert visible_code_tests(body, row["tests"], "def twice(x):\n", join_prompt=True)["score"] == 0.5
    told = [{"role": "assistant", "content": "So:\n```python\ndef twice(x): return 2 * x\n```\nDone."}]
    assert code_tests(told, **row)["score"] == 1.0
    assert code_tests("<code>twice = lambda x: 2 * x</code>", **row, pattern="(?s)<code>(.*?)</code>")["score"] == 1.0
    slow = code_tests("def twice(x):\n    while True: pass", **row, seconds=0.2)
    assert (slow["score"], "timeout" in str(slow["reason"])) == (0.0, True)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na = 1\n```\nand\n```py\nb = 2\n```", "b = 2"),
        ("```\na = 1\n```", "a = 1"),
        ("```python\na = 1", "a = 1"),
        ("a = 1\n", "a = 1\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
    ],
)
def test_the_program_is_the_last_block(text: str, program: str) -> None:
    assert extract_program(text) == program


@dataclass
class _Row:
    columns: dict[str, Any]
    row: int
    source: str = "tasks.jsonl"


WRONG_ROWS = [
    ({}, "the row has no tests"),
    ({"tests": []}, "column tests holds no list of tests, or an empty one"),
    ({"tests": "assert"}, "column tests is a text that is no JSON"),
    ({"tests": [3]}, "tests.0 is neither a text nor a table"),
    ({"test_list": [None]}, "test_list.0 is a NoneType, not a text"),
    ({"test": "def check(f): pass", "entry_point": None}, "column entry_point is ''"),
    ({"inputs": ["1"], "outputs": []}, "column outputs holds no list of tests"),
    ({"inputs": ["1"], "outputs": ["1", "2"]}, "inputs and outputs hold 1 and 2 texts"),
]


@pytest.mark.parametrize(("row", "told"), WRONG_ROWS)
def test_rows_without_tests_are_missing_and_found_before_the_run(row: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace(".", r"\.")):
        read_tests(row)
    result = code_tests("x = 1", **row)
    assert (result["score"], told in str(result["reason"])) == (None, True)
    rule = ReferenceRule(name="code_tests", use="code_tests", required=frozenset())
    first, *_, last = missing_rows([_Row(row, number) for number in range(8)], [rule])
    assert first.startswith("tasks.jsonl: row 0: reward function 'code_tests': ")
    assert (told in first, last) == (True, "and 3 more such rows")


def test_wrong_tests_leave_the_score_missing() -> None:
    result = code_tests("def f(): return 1", tests=["assert f(", "assert f()"])
    assert (result["score"], "the tests cannot be run" in str(result["reason"])) == (None, True)


def test_a_worker_pool_scores_programs() -> None:
    config = RewardsConfig.model_validate({"functions": [{"use": "code_tests"}]})
    programs = [
        "def twice(x): return 2 * x",
        "import os\nos._exit(0)",
        "def twice(x):\n    import socket\n    socket.socket()",
    ]
    columns = {name: [value] * 3 for name, value in MBPP.items()}
    with RewardWorkerPool(config, UserCodeConfig(workers=1)) as pool:
        scores = pool.score(RewardBatch(prompts=["?"] * 3, completions=programs, columns=columns))
    assert scores.score.tolist() == [1.0, 0.0, 0.0]
    assert scores.status.tolist() == [ScoreStatus.SCORED] * 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seconds": 0.0}, "options.seconds: Input should be greater than 0"),
        ({"seconds": "fast"}, "options.seconds: "),
        ({"memory_bytes": 5}, "options.memory_bytes: Input should be greater than or equal to 134217728"),
        ({"if_no_rung": "yes"}, "options.if_no_rung: Input should be 'refuse' or 'code written by a model may"),
    ],
)
def test_limits_are_checked_before_anything_starts(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rows.check_code_reward("code_tests", options)
    assert [told in message for message in caught.value.messages] == [True]


def test_where_nothing_is_confined_the_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeSandbox, "probe", lambda _: SandboxReport(rung="", reasons=("landlock: none",), missing=()))
    config = RewardsConfig.model_validate({"functions": [{"use": "code_tests"}]})
    with (
        RewardWorkerPool(config, UserCodeConfig(workers=1)) as pool,
        pytest.raises(ResourceError, match="this machine cannot confine programs"),
    ):
        pool.check(["tests"])
    rows.check_code_reward("code_tests", {"if_no_rung": rows.UNSAFE_WORDS})
