"""TRL's formats of scored answers: pairs, labelled answers, labelled steps; and every way in which a row can be bad."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.text.answer_data import answer_episodes, answer_tokens
from hone.text.tasks.dataset import read_examples

USER = {"role": "user", "content": "2+2?"}
FOUR = {"role": "assistant", "content": "4"}
FIVE = {"role": "assistant", "content": "5"}


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fault(path: Path, need: str) -> str:
    with pytest.raises(DataError) as caught:
        read_examples(path, need=need)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5"}, "2+2=", "4", "5"),
        ({"prompt": [USER], "chosen": [FOUR], "rejected": [FIVE]}, [USER], [FOUR], [FIVE]),
        # The common beginning is the prompt; a space before the answers is theirs, as in TRL.
        ({"chosen": "The sky is blue.", "rejected": "The sky is green."}, "The sky is", " blue.", " green."),
        ({"chosen": [USER, FOUR], "rejected": [USER, FIVE]}, [USER], [FOUR], [FIVE]),
        # A plain prompt beside conversations repeats their first message.
        ({"prompt": "2+2?", "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, [USER], [FOUR], [FIVE]),
    ],
)
def test_pairs(tmp_path: Path, row: dict[str, object], prompt: object, chosen: object, rejected: object) -> None:
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data.parquet")
    for path in (jsonl(tmp_path, row), tmp_path / "data.parquet"):
        example = read_examples(path, need="preference")[0]
        assert example.prompt == prompt
        assert [answer.content for answer in example.answers] == [chosen, rejected]
        assert [answer.score for answer in example.answers] == [1.0, 0.0]
        assert (example.completion, example.columns) == (None, {})
        assert example.is_conversation == isinstance(chosen, list)


def test_scores_of_pairs_take_the_place_of_one_and_zero_and_ties_are_left_out(tmp_path: Path) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 4.5, "score_rejected": 3}
    examples = read_examples(jsonl(tmp_path, row, {**row, "score_rejected": 4.5}), need="preference")
    assert [answer.score for answer in examples[0].answers] == [4.5, 3.0]
    assert len(examples) == 1
    assert "1 of 2 rows are ties: their answers have one score (left out)" in examples.warnings[0]
    assert "no answer is preferred" in fault(jsonl(tmp_path, {**row, "score_rejected": 4.5}), "preference")
    assert "`score_rejected` is above `score_chosen`" in fault(
        jsonl(tmp_path, {**row, "score_chosen": 1}), "preference"
    )


def test_labelled_answers_and_pairs_as_labelled_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": False}]
    examples = read_examples(jsonl(tmp_path, *rows), need="unpaired")
    assert [(one.answers[0].content, one.answers[0].score) for one in examples] == [("b", 1.0), ("c", 0.0)]
    pair = read_examples(jsonl(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"}), need="unpaired")[0]
    assert [(one.content, one.score) for one in pair.answers] == [("b", 1.0), ("c", 0.0)]


def test_labelled_steps(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]},
        {"prompt": "a", "completions": ["d"], "labels": [0.375]},
    ]
    first, second = read_examples(jsonl(tmp_path, *rows), need="stepwise")
    assert (first.answers[0].steps, first.answers[0].labels, first.answers[0].score) == (("b", "c"), (1.0, 0.0), 0.0)
    assert second.answers[0].labels == (0.375,)  # three of eight continuations were right: no label is rounded


BAD = [
    ("preference", {"prompt": "a", "chosen": "b", "rejected": "b"}, "`chosen` equals `rejected`"),
    ("preference", {"prompt": "a", "chosen": "", "rejected": "b"}, "`chosen` is empty"),
    ("preference", {"prompt": "a", "chosen": "b", "rejected": None}, "`rejected` is null"),
    ("preference", {"prompt": "a", "chosen": "b", "rejected": [FIVE]}, "not of one form"),
    ("preference", {"chosen": "b is", "rejected": "a is"}, "begin differently: their prompts differ"),
    ("preference", {"chosen": "the sky", "rejected": "the sky is"}, "one is the beginning of the other"),
    ("preference", {"chosen": [USER, FOUR], "rejected": [{**USER, "content": "2+3?"}, FIVE]}, "prompts differ"),
    (
        "preference",
        {"chosen": [FOUR, USER, FOUR], "rejected": [FOUR, {**USER, "content": "x"}, FIVE]},
        "prompts differ",
    ),
    ("preference", {"prompt": [USER], "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, "where the answer should be"),
    ("preference", {"chosen": [USER, FOUR], "rejected": [USER, {**FIVE, "content": " "}]}, "`rejected` is empty"),
    ("preference", {"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": "x", "score_rejected": 1}, "number"),
    ("unpaired", {"prompt": "a", "completion": "", "label": True}, "`completion` is empty"),
    ("unpaired", {"prompt": "a", "completion": "b", "label": None}, "`label` is None, expected true or false"),
    ("unpaired", {"prompt": "a", "completion": "b", "label": 0.5}, "`label` is 0.5"),
    ("stepwise", {"prompt": "a", "completions": ["b"], "labels": [True, False]}, "differ in number"),
    ("stepwise", {"prompt": "a", "completions": [], "labels": []}, "`completions` is an empty list"),
    ("stepwise", {"prompt": "a", "completions": "b", "labels": [1]}, "`completions` is a str, expected a list"),
    ("stepwise", {"prompt": "a", "completions": ["b", " "], "labels": [1, 1]}, "a step that is empty"),
    ("stepwise", {"prompt": "a", "completions": ["b"], "labels": [1.5]}, "outside 0 .. 1"),
    ("stepwise", {"prompt": "a", "completions": ["b"], "labels": [None]}, "holds None, expected a number"),
]


@pytest.mark.parametrize(("need", "row", "message"), BAD)
def test_bad_rows_are_told_with_their_numbers(tmp_path: Path, need: str, row: dict[str, object], message: str) -> None:
    path = jsonl(tmp_path, row, row)
    text = fault(path, need)
    assert message in text
    assert "in 2 of 2 rows: 1, 2" in text
    assert str(path) in text


@pytest.mark.parametrize(
    ("need", "row", "messages"),
    [
        (
            "preference",
            {"prompt": "a", "chosen_response": "b", "rejected_response": "c"},
            ["no column 'chosen'", "did you mean chosen_response?", "no column 'rejected'; did you mean rejected_resp"],
        ),
        ("unpaired", {"prompt": "a", "completion": "b", "labels": True}, ["no column 'label'", "did you mean labels?"]),
        (
            "stepwise",
            {"prompt": "a", "completion": ["b"], "labels": [1]},
            ["no column 'completions'", "mean completion?"],
        ),
        ("preference", {"prompt": "a", "completion": "b", "label": True}, ["unpaired kind", "needs pairs of answers"]),
        ("stepwise", {"prompt": "a", "chosen": "b", "rejected": "c"}, ["preference kind", "labelled steps"]),
    ],
)
def test_datasets_of_another_kind(tmp_path: Path, need: str, row: dict[str, object], messages: list[str]) -> None:
    text = fault(jsonl(tmp_path, row), need)
    assert all(message in text for message in messages), text


def test_scores_are_part_of_the_fingerprint_and_of_ids(tmp_path: Path) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    first = read_examples(jsonl(tmp_path, row), need="preference")
    turned = read_examples(jsonl(tmp_path, {**row, "chosen": "c", "rejected": "b"}), need="preference")
    assert first.fingerprint != turned.fingerprint
    assert first[0].id != turned[0].id


sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6)


@given(sizes=sizes, data=st.data())
def test_episodes_of_answers_hold_each_answers_tokens_and_reward(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    answers, rewards = [], []
    for asked, said in sizes:
        prompt, answer = np.arange(asked, dtype=np.int32), np.arange(100, 100 + said, dtype=np.int32)
        ends = sorted(data.draw(st.sets(st.integers(0, said - 1))))
        labels = [data.draw(st.floats(0, 1, width=32)) for _ in ends]
        answers.append(answer_tokens(prompt, answer, step_ends=ends, step_labels=labels))
        rewards.append(dict(zip(ends, labels, strict=True)))
    scores = [float(place) for place in range(len(sizes))]
    whole = answer_episodes(answers, scores=scores, groups=range(len(sizes)))
    steps = answer_episodes(answers, scores=scores, groups=range(len(sizes)), steps=True)
    for place, (asked, said) in enumerate(sizes):
        own = slice(whole.offsets[place], whole.offsets[place + 1])
        assert whole.chosen[own].tolist() == list(range(100, 100 + said))
        assert np.isnan(whole.logp[own]).all()
        assert whole.reward[own].tolist() == [0.0] * (said - 1) + [scores[place]]
        labelled = {n: float(value) for n, value in enumerate(steps.reward[own]) if not np.isnan(value)}
        assert labelled == rewards[place]
        begins = int(whole.transcript.offsets[place])
        assert whole.transcript.tokens[begins : begins + asked].tolist() == list(range(asked))
