"""Verdicts: replies that hold one are read, and all others say why not."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hone.rewards.judges.config import RewardJudge
from hone.rewards.judges.questions import (
    ChoiceField,
    NumberField,
    VerdictError,
    describe_format,
    first_wins,
    grade_score,
    json_schema,
    read_verdict,
)

FIELDS = (NumberField("truth", 0, 10), ChoiceField("better", ("A", "B", "tie")))
BY = {"kind": "server", "url": "http://127.0.0.1:9", "model": "wise"}


def judge(**ask: object) -> RewardJudge:
    return RewardJudge.model_validate({"kind": "judge", "by": BY, "ask": ask})


@pytest.mark.parametrize(
    "text",
    [
        '{"reason": "so", "truth": 7, "better": "A"}',
        '{"better": "a", "truth": 7.0}',
        '```json\n{"truth": 7, "better": "A"}\n```',
        '<think>{"truth": 0, "better": "B"}</think>\n{"truth": 7, "better": "A"}',
    ],
)
def test_a_json_verdict_is_read(text: str) -> None:
    assert read_verdict(text, FIELDS, "json") == {"truth": 7.0, "better": "A"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the reply is empty"),
        ("<think>7</think>", "the reply is empty"),
        ("7", "not a JSON object"),
        ("The answer says {}", "not JSON"),
        ('He wrote {"truth": 10, "better": "A"}', "not JSON"),
        ('{"truth": 7, "better": "A"} {"truth": 1, "better": "B"}', "not JSON"),
        ('{"truth": 7, "truth": 10, "better": "A"}', "occurs more than once"),
        ('{"truth": 7}', "lacks better"),
        ('{"truth": 7, "better": "A", "bonus": 3}', "unknown keys 'bonus'"),
        ('{"truth": 11, "better": "A"}', "truth is 11, outside 0 to 10"),
        ('{"truth": true, "better": "A"}', "truth is True, not a number"),
        ('{"truth": NaN, "better": "A"}', "not a number from 0 to 10"),
        ('{"truth": 1e999, "better": "A"}', "beyond the range"),
        ('{"truth": "seven", "better": "A"}', "not a number"),
        ('{"truth": 7, "better": "C"}', "not one of A, B, tie"),
        ('{"truth": 7, "better": "A"', "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_anything_else_says_why_it_is_no_verdict(text: str, fault: str) -> None:
    with pytest.raises(VerdictError) as error:
        read_verdict(text, FIELDS, "json")
    assert fault in str(error.value)
    assert len(str(error.value)) < 400


def test_lines_at_the_end_are_a_verdict() -> None:
    text = "He claims truth: 10\nI think not.\ntruth: 3\nBETTER: b\n"
    assert read_verdict(text, FIELDS, "lines") == {"truth": 3.0, "better": "B"}


@pytest.mark.parametrize(
    "text",
    [
        "truth: 3",
        "better: B\ntruth: 3",
        "truth: 3\nbetter: B\nI hope this helps",
        "truth: ten\nbetter: B",
        "truth: 0x3\nbetter: A",
    ],
)
def test_lines_elsewhere_or_of_another_form_are_none(text: str) -> None:
    with pytest.raises(VerdictError):
        read_verdict(text, FIELDS, "lines")


@given(st.text(max_size=80), st.sampled_from(["json", "lines"]))
def test_no_text_does_anything_but_a_verdict_or_its_error(text: str, form: str) -> None:
    try:
        found = read_verdict(text, FIELDS, form)  # type: ignore[arg-type]
    except VerdictError:
        return
    assert set(found) == {"truth", "better"}


@given(st.floats(0, 10), st.sampled_from(["A", "B", "tie"]))
def test_what_the_format_asks_for_is_read_back(truth: float, better: str) -> None:
    expected = {"truth": truth, "better": better}
    assert read_verdict(json.dumps({"reason": "r", **expected}), FIELDS, "json") == expected
    assert set(json_schema(FIELDS)["required"]) == {"reason", "truth", "better"}  # type: ignore[arg-type]
    assert all(
        "truth: a number from 0 to 10" in describe_format(FIELDS, form).replace('"', "") for form in ("json", "lines")
    )


def test_a_rubric_is_the_weighted_mean_of_its_criteria_on_one_scale() -> None:
    criteria = [
        {"name": "truth", "text": "t", "weight": 3.0, "lowest": 1.0, "highest": 5.0},
        {"name": "style", "text": "s", "lowest": -1.0, "highest": 1.0},
    ]
    verdict = {"truth": 4.0, "style": 0.0}
    by_hand = (3 * (4 - 1) / (5 - 1) + 1 * (0 + 1) / 2) / 4
    assert math.isclose(grade_score(judge(kind="rubric", criteria=criteria), verdict), by_hand)
    own_units = (3 * 4.0 + 0.0) / 4
    assert math.isclose(grade_score(judge(kind="rubric", criteria=criteria, rescale=False), verdict), own_units)


def test_a_reference_is_met_or_not_and_a_tie_is_a_half() -> None:
    reference = judge(kind="reference")
    assert [grade_score(reference, {"correct": word}) for word in ("yes", "no")] == [1.0, 0.0]
    assert [first_wins({"better": word}) for word in ("A", "tie", "B")] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ask": {"kind": "rubric", "criteria": []}}, "at least 1 item"),
        ({"ask": {"kind": "rubric", "criteria": [{"name": "a b", "text": "t"}]}}, "match pattern"),
        ({"ask": {"kind": "rubric", "criteria": [{"name": "reason", "text": "t"}]}}, "`reason` is taken"),
        ({"ask": {"kind": "rubric", "criteria": [{"name": "a", "text": "t"}] * 2}}, "names of their own"),
        (
            {"ask": {"kind": "rubric", "criteria": [{"name": "a", "text": "t", "lowest": 3.0, "highest": 3.0}]}},
            "above lowest",
        ),
        ({"ask": {"kind": "vote"}}, "pairwise"),
        ({"by": {**BY, "attempts": 0}}, "greater than or equal to 1"),
        ({"budget": {"money": 3.0}}, "needs a price"),
        ({"by": {"kind": "model", "path": "m"}, "budget": {"requests_per_minute": 3.0}}, "a local model has no rate"),
        ({"canaries": {"path": "c.jsonl", "floor": 1.5}}, "less than or equal to 1"),
        ({"name": "a/b"}, "match pattern"),
    ],
)
def test_a_judge_that_cannot_be_meant_is_refused(change: dict[str, object], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        RewardJudge.model_validate({"kind": "judge", "by": BY, "ask": {"kind": "pairwise"}, **change})
