"""The functions that come along, the forms of the user's, and what travels between trainer and worker."""

import datetime
import decimal

import numpy as np
import pytest
from counted_calls import count_calls
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import create_dataset

from hone.core.errors import ConfigError, UserCodeError
from hone.process.user_files import describe_error, user_traceback
from hone.process.wire import decode, encode, pack, unpack
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.functions import (
    AFTER_EQUALS,
    ANSWER_TAG,
    LoadedFunction,
    check_reference,
    exact_match,
    extract_answer,
)
from hone.rewards.math_answer import math_answer
from hone.rewards.mathematics.stated import last_boxed
from hone.rewards.mathematics.tree import why_too_large
from hone.rewards.workers import RewardBatch, RewardWorkerPool

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes()
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(plain)
def test_a_value_arrives_as_it_left(value: object) -> None:
    sent = encode({"value": value})
    assert sent.count(b"\n") == 1
    message = decode(sent)
    assert isinstance(message, dict)
    assert message["value"] == value
    assert repr(type(message["value"])) == repr(type(value))


def test_numpy_values_arrive_as_plain_ones() -> None:
    assert unpack(pack([np.int64(3), np.float64(0.5), np.array([1, 2]), np.str_("a"), np.bool_(True)])) == [
        3, 0.5, [1, 2], "a", True,
    ]  # fmt: skip
    with pytest.raises(TypeError, match="type object cannot"):
        pack({"a": object()})
    assert unpack(pack({"~": "tuple", "of": [1]})) == {"~": "tuple", "of": [1]}  # a dict that looks like a tag
    assert unpack(pack(datetime.date(2026, 1, 2))) == datetime.date(2026, 1, 2)
    assert unpack(pack(decimal.Decimal("1.10"))) == decimal.Decimal("1.10")


@pytest.mark.parametrize(
    ("completion", "pattern", "answer"),
    [
        ("first\n  42 \n\n", "", "42"),
        ("", "", ""),
        ("1 + 2 = 3\n3 + 4 = 7", AFTER_EQUALS, "7"),
        ("so <answer>\n 5 </answer> or <answer>6</answer>.", ANSWER_TAG, "6"),
        ("no tag, 6", ANSWER_TAG, ""),
        ("10 apples, 20 pears", r"\d+", "20"),
        ("ab", r"(c)?b", ""),
    ],
)
def test_the_answer_inside_a_completion(completion: str, pattern: str, answer: str) -> None:
    assert extract_answer(completion, pattern) == answer


def test_exact_match() -> None:
    assert exact_match("thinking\n7", "7") == 1.0
    assert exact_match("thinking\n7.0", "7") == 0.0
    assert exact_match([{"role": "assistant", "content": "1 = 7"}], 7, AFTER_EQUALS) == 1.0
    assert exact_match([{"role": "assistant", "content": None}], "7") == 0.0


def test_exact_match_of_words() -> None:
    pairs = [("the  Red ball.", "The red ball"), ("YES", "yes"), ('"cat"', "cat"), ("true", True)]
    assert [exact_match(*pair, words=True) for pair in pairs] == [1.0] * 4
    assert [exact_match(*pair) for pair in pairs] == [0.0] * 4
    wrong = [("act", "cat"), ("not yes", "yes"), ("yes or no", "yes"), ("redball", "red ball"), ("", "yes")]
    assert [exact_match(*pair, words=True) for pair in wrong] == [0.0] * 5


@pytest.mark.parametrize("reference", ["", "  ", None])
def test_nothing_matches_an_empty_reference(reference: str | None) -> None:
    for text in ("", "None", "7"):
        assert exact_match(text, reference) == {"score": None, "reason": "the reference answer is empty"}


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{1}, no: \boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
        ("first try: 5\nThe answer is 12", "12", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        ("x^2y^2", "x^{2}y^{2}", 1.0),
        ("1,000", "1000", 1.0),
        ("007", "7", 1.0),
        ("50%", "0.5", 1.0),
        ("5!", "120", 0.0),  # work is left
        ("3", "4", 0.0),
        ("12", "(1, 2)", 0.0),
        ("1 2", "12", 0.0),
        ("", "1", 0.0),
        ("hello", "5", 0.0),
        ("1/0", "5", 0.0),
        (r"\boxed{7", "7", 0.0),
    ],
)
def test_math_answers(completion: str, answer: str, score: float) -> None:
    assert math_answer(completion, answer)["score"] == score


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        ("9^9^9^9", "power of a power"),
        ("9**9**9", "power of a power"),
        ("3**(10**8)", "power of a power"),
        ("3^{10^{8}}", "power of a power"),
        ("(10^7)!", "factorial of an expression"),
        ("10000!", "more than 200"),
        ("9!!!!", "factorial of an expression"),
        ("3^{100000000}", "exponent above 1000"),
        ("9" * 3000, "3000 characters"),
        ("9" * 300, "more than 200 digits"),
        ("(" * 60 + "1" + ")" * 60, "nested"),
        ("+".join("1" * 1500), "characters"),
    ],
)
def test_hostile_mathematics_is_refused_at_once_and_scores_nothing(hostile: str, reason: str) -> None:
    verdict, calls = count_calls(math_answer, hostile, "3")
    assert calls < 20_000  # sympy would take far more
    assert verdict["score"] == 0.0
    assert reason in str(verdict["reason"])
    assert math_answer("3", hostile)["score"] is None  # the reference is not the policy's fault


def test_what_the_guards_let_through() -> None:
    assert [why_too_large(text) for text in ("x^2 + y^2", "2^{10}!", "n != 3", "x^{-3}", "f(x)^2")] == [
        "", "a factorial of an expression, or of more than 200", "", "", "",
    ]  # fmt: skip
    assert last_boxed(r"\boxed{a{b}c}") == "a{b}c"
    assert last_boxed("none") is None


def form_of(source: str, **options: object) -> tuple[str, set[str], set[str]]:
    namespace: dict[str, object] = {}
    exec(source, namespace)
    import sys
    import types

    module = types.ModuleType("made_up_rewards")
    vars(module).update(namespace)
    sys.modules["made_up_rewards"] = module
    try:
        loaded = LoadedFunction.load("made_up_rewards:f", options)
    finally:
        del sys.modules["made_up_rewards"]
    return loaded.form, set(loaded.columns), set(loaded.required_columns)


def test_forms_are_told_by_the_names_of_the_parameters() -> None:
    assert form_of("def f(prompts, completions, answer, weight=1): ...") == ("batch", {"answer", "weight"}, {"answer"})
    assert form_of("def f(completions, **kw): ...") == ("batch", set(), set())
    assert form_of("def f(**kw): ...") == ("batch", set(), set())
    assert form_of("def f(prompt, completion, answer): ...") == ("sample", {"answer"}, {"answer"})
    assert form_of("def f(data_source, solution_str, ground_truth, extra_info=None): ...") == (
        "verl", {"data_source", "ground_truth", "extra_info"}, {"ground_truth"},
    )  # fmt: skip
    assert form_of("def f(completion, answer, low): ...", low=3) == ("sample", {"answer"}, {"answer"})


def test_values_of_options_are_checked_before_a_run() -> None:
    LoadedFunction.load("math_answer", {"form": "same", "units": "ignored"})
    with pytest.raises(UserCodeError) as refused:
        LoadedFunction.load("math_answer", {"form": "finall", "units": 3})
    assert refused.value.messages == (
        "reward function 'math_answer': option form is 'finall', not one of 'final', 'any', 'same'",
        "reward function 'math_answer': option units is 3, not one of 'kept', 'ignored'",
    )


def test_references_are_checked_without_importing(tmp_path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("raise RuntimeError('imported')\n")
    for good in ("exact_match", "math_answer", "reasoning_gym", f"{mine}:f", "some.package:f"):
        check_reference(good)
    with pytest.raises(ConfigError, match=r"did you mean mine\.py"):
        check_reference(f"{tmp_path / 'mime.py'}:f")


def test_errors_are_told_short() -> None:
    assert describe_error(ValueError("x" * 500)) == f"ValueError: {'x' * 200}..."
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"
    try:
        int("z")
    except ValueError as error:
        assert "test_rewards_functions.py" in user_traceback(error)


def test_a_tasks_own_scorer_says_the_same_in_a_worker() -> None:
    # rearc compares tuples with its metadata, decimal_arithmetic asks its config: both must arrive as they left.
    tasks = {"chain_sum": {}, "decimal_arithmetic": {"max_num_decimal_places": 3}, "rearc": {}, "countdown": {}}
    sets = {task: create_dataset(task, seed=3, size=2, **config) for task, config in tasks.items()}
    rows = [
        (said, dataset.score_answer(said, dataset[index]), {**dataset[index], "task": task, "task_config": tasks[task]})
        for task, dataset in sets.items()
        for index in range(2)
        for said in (dataset[index]["answer"], "17")
    ]
    functions = [{"use": "reasoning_gym", "options": {"pattern": r"(?s)^.*$"}}]
    columns = {name: [row[name] for _, _, row in rows] for name in rows[0][2]}
    said = [text for text, _, _ in rows]
    with RewardWorkerPool(RewardsConfig.model_validate({"functions": functions}), UserCodeConfig(workers=1)) as pool:
        scores = pool.score(RewardBatch(prompts=[""] * len(rows), completions=said, columns=columns))
    expected = [score for _, score, _ in rows]
    assert scores.score.tolist() == pytest.approx(expected)
    assert expected[0::2] == [1.0] * 8
    assert max(expected[1::2]) < 1.0


def test_partial_credit_for_length_can_be_refused() -> None:
    columns = {"question": [""], "answer": ["3"], "metadata": [{}], "task": ["chain_sum"], "task_config": [{}]}
    batch = RewardBatch(prompts=[""], completions=["1 + 2 = 3"], columns=columns)
    functions = [
        {"use": "reasoning_gym"},
        {"use": "reasoning_gym", "options": {"full_marks_only": True}},
        {"use": "reasoning_gym", "options": {"pattern": AFTER_EQUALS}},
    ]
    with RewardWorkerPool(RewardsConfig.model_validate({"functions": functions}), UserCodeConfig(workers=1)) as pool:
        scores = pool.score(batch)
    assert scores.functions["reasoning_gym"].tolist() == pytest.approx([1 / 9])
    assert scores.functions["reasoning_gym#2"].tolist() == [0.0]
    assert scores.functions["reasoning_gym#3"].tolist() == [1.0]
