"""Rows of every shape that users have: what they become, by which sign, and when nothing decides."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.core.errors import DataError
from hone.text.answer_data import AnswerTaskConfig
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.tasks.dataset import ExampleDataset, dataset_kind, read_examples

USER, FOUR, FIVE = (
    {"role": role, "content": text} for role, text in (("user", "2+2?"), ("assistant", "4"), ("assistant", "5"))
)
SYSTEM = {"role": "system", "content": "Be short."}
CALL = {"name": "add", "arguments": {"a": 2, "b": 2}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}
HUMAN, GPT = {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}
SOLVED = "He has <<2*500=1000>>1,000.\n#### 1,000"
ULTRA = {
    "prompt": "2+2?",
    "prompt_id": "x",
    "messages": [USER, FOUR],
    "chosen": [USER, FOUR],
    "rejected": [USER, FIVE],
    "score_chosen": 8.0,
    "score_rejected": 3.0,
}


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fault(folder: Path, *rows: object, need: Any = "prompt-completion", **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_examples(jsonl(folder, *rows), need=need, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "told", "prompt", "completion", "columns"),
    [
        ({"conversations": [HUMAN, GPT], "id": "1"}, "ShareGPT", [USER], [FOUR], {"id": "1"}),
        ({"conversation": [USER, FOUR]}, "ShareGPT", [USER], [FOUR], {}),
        ({"conversations": [HUMAN, GPT], "system": "Be short."}, "ShareGPT", [SYSTEM, USER], [FOUR], {}),
        (
            {
                "conversations": [
                    HUMAN,
                    {"from": "function_call", "value": json.dumps(CALL)},
                    {"from": "observation", "value": "4"},
                    {**GPT, "weight": 0},
                ],
                "tools": "[]",
            },
            "ShareGPT",
            [USER],
            [CALLED, {"role": "tool", "content": "4"}, {**FOUR, "weight": 0}],
            {"tools": "[]"},
        ),
        ({"instruction": "Add.", "input": "2+2", "output": "4", "text": "x"}, "Alpaca", "Add.\n\n2+2", "4", {}),
        ({"instruction": "2+2?", "input": " ", "output": "4"}, "Alpaca", "2+2?", "4", {}),
        ({"instruction": "2+2?", "output": "4", "topic": "sums"}, "Alpaca", "2+2?", "4", {"topic": "sums"}),
        (
            {"instruction": "2+2?", "output": "4", "system": "Be short.", "history": [["1+1?", "2"]]},
            "Alpaca",
            [SYSTEM, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}, USER],
            [FOUR],
            {},
        ),
        ({"question": "How many?", "answer": SOLVED}, "GSM8K", "How many?", SOLVED, {"answer": "1000"}),
        ({"query": "2+2?", "answers": json.dumps([CALL]), "tools": "[]"}, "xLAM", [USER], [CALLED], {"tools": "[]"}),
        (
            {"messages": [USER, {**FOUR, "weight": 1}], "tools": []},
            "OpenAI",
            [USER],
            [{**FOUR, "weight": 1}],
            {"tools": []},
        ),
        # Before `tool_calls` there was one call, and its result came from a role `function`.
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "function_call": CALL},
                    {"role": "function", "name": "add", "content": "4"},
                    FOUR,
                ]
            },
            "OpenAI",
            [USER],
            [CALLED, {"role": "tool", "name": "add", "content": "4"}, FOUR],
            {},
        ),
        (ULTRA, "messages", [USER], [FOUR], None),
        ({"text": "Once."}, "text", "", "Once.", {}),
    ],
)
def test_rows_to_imitate(
    tmp_path: Path, row: dict[str, Any], told: str, prompt: Any, completion: Any, columns: dict[str, Any] | None
) -> None:
    examples = read_examples(jsonl(tmp_path, row, {**row, "id": "2"} if "id" in row else row), need="prompt-completion")
    assert (examples[0].prompt, examples[0].completion) == (prompt, completion)
    assert columns is None or examples[0].columns == columns
    assert told in examples.shape
    assert "2 rows read as" in examples.shape
    if told != "text":  # the same rows as prompts of a policy: their answers are not read
        asked = read_examples(tmp_path / "data.jsonl", need="prompt")[0].prompt
        assert asked == prompt or asked == prompt + completion[:-1]


@pytest.mark.parametrize(
    ("row", "told", "prompt"),
    [
        ({"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5"}, "HH", [USER]),
        (
            {
                "chosen": "Human: hi\n\nAssistant: hi\n\nHuman: 2+2?\n\nAssistant: 4",
                "rejected": "Human: hi\n\nAssistant: hi\n\nHuman: 2+2?\n\nAssistant: 5",
            },
            "HH",
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}, USER],
        ),
        (ULTRA, "TRL's preferences", [USER]),
        ({"prompt": "2+2?", "chosen": [FOUR], "rejected": [FIVE]}, "TRL's preferences", "2+2?"),
        *(
            (
                {"input": {"messages": [USER], "tools": []}, better: [FOUR], worse: [FIVE]},
                "OpenAI's preferences",
                [USER],
            )
            for better, worse in (
                ("preferred_output", "non_preferred_output"),
                ("preferred_completion", "non_preferred_completion"),
            )
        ),
    ],
)
def test_pairs(tmp_path: Path, row: dict[str, Any], told: str, prompt: Any) -> None:
    for need in ("preference", "unpaired"):
        examples = read_examples(jsonl(tmp_path, row), need=need)
        assert examples[0].prompt == prompt
        assert [one.content for one in examples[0].answers] == [[FOUR], [FIVE]]
        assert told in examples.shape
    assert dataset_kind(tmp_path / "data.jsonl") == "preference"


def test_a_transcript_compares_turns_and_never_characters(tmp_path: Path) -> None:
    """Both answers begin with "4": as characters that would be the prompt's."""
    row = {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4.", "rejected": "\n\nHuman: 2+2?\n\nAssistant: 4!"}
    example = read_examples(jsonl(tmp_path, row), need="preference")[0]
    assert [one.content for one in example.answers] == [[{**FOUR, "content": "4."}], [{**FOUR, "content": "4!"}]]
    named = read_examples(
        tmp_path / "data.jsonl", need="preference", columns={"chosen": "chosen", "rejected": "rejected"}
    )
    assert named[0].prompt == "\n\nHuman: 2+2?\n\nAssistant: 4"  # a name of TRL's means TRL's rows
    assert [one.content for one in named[0].answers] == [".", "!"]


def test_null_keys_of_parquet_are_left_out_at_any_depth_and_falsy_values_are_kept(tmp_path: Path) -> None:
    def turns(**arguments: object) -> list[Any]:
        return [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        ]

    rows = [{"messages": turns(city="Rome", days=0)}, {"messages": turns(text="", deep=[{"a": False}])}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    examples = read_examples(tmp_path / "data.parquet", need="prompt-completion")
    answers: list[Any] = [example.completion for example in examples]
    calls = [turns[0]["tool_calls"][0]["function"]["arguments"] for turns in answers]
    assert calls == [{"city": "Rome", "days": 0}, {"text": "", "deep": [{"a": False}]}]


@pytest.mark.parametrize(
    ("row", "need", "messages"),
    [
        (
            {"messages": [USER, FOUR], "prompt": "2+2?", "completion": "4"},
            "prompt-completion",
            [
                "conversations (messages, as TRL and OpenAI have them), or as TRL's prompts with completions",
                "columns found: messages, prompt, completion",
                'task.columns = { messages = "messages" } or',
                'task.columns = { prompt = "prompt" }',
            ],
        ),
        ({"messages": [USER, FOUR], "prompt": "2+2?"}, "prompt", ["can be read as", 'prompt = "prompt"']),
        (
            {"conversations": [HUMAN, GPT], "instruction": "a", "output": "b"},
            "prompt-completion",
            ["ShareGPT", "Alpaca", 'conversations = "conversations"', 'instruction = "instruction"'],
        ),
        (
            {"context": "c", "question": "q", "answers": {"text": ["a"]}},
            "prompt",
            ["columns found: context, question, answers", 'task.columns = { prompt = "..." }'],
        ),
        (
            {"instruction": "q", "context": "", "response": "a"},
            "prompt-completion",
            ["columns found: instruction, context, response", 'prompt = "...", completion = "..."'],
        ),
        ({"question": "q", "answer": "42"}, "prompt", ["no column 'prompt'", "columns found: question, answer"]),
        (
            {"instruction": "q", "completions": [{"response": "a", "overall_score": 4}]},
            "preference",
            ["UltraFeedback's raw rows", "which two completions make a pair"],
        ),
        ({"conversations": [HUMAN, GPT]}, "preference", ["no column 'chosen', a dataset of messages rows"]),
    ],
)
def test_nothing_is_guessed(tmp_path: Path, row: dict[str, Any], need: str, messages: list[str]) -> None:
    text = fault(tmp_path, row, need=need)
    assert all(message in text for message in messages), text


def test_a_named_column_settles_it(tmp_path: Path) -> None:
    both = {"messages": [USER, FOUR], "prompt": "other", "completion": "x"}
    read = {
        name: read_examples(jsonl(tmp_path, both), need="prompt-completion", columns={name: name})[0].completion
        for name in ("messages", "prompt")
    }
    assert read == {"messages": [FOUR], "prompt": "x"}


@pytest.mark.parametrize(
    ("row", "columns", "prompt", "completion", "rest"),
    [
        (
            {"context": "c", "question": "q", "right": "a"},
            {"prompt": "question", "answer": "right"},
            "q",
            None,
            {"context": "c", "answer": "a"},
        ),
        # A file of GSM8K's columns by TRL's names: nothing is taken out of the answer.
        ({"question": "q", "answer": SOLVED}, {"prompt": "question"}, "q", None, {"answer": SOLVED}),
        ({"question": "q", "answer": SOLVED}, {"prompt": "question", "completion": "answer"}, "q", SOLVED, {}),
        # Dolly's, by Alpaca's names.
        (
            {"instruction": "q", "context": "c", "response": "a"},
            {"input": "context", "output": "response"},
            "q\n\nc",
            "a",
            {},
        ),
        ({"prompt": "old", "better": "new"}, {"prompt": "better", "draft": "prompt"}, "new", None, {"draft": "old"}),
    ],
)
def test_columns_by_other_names(
    tmp_path: Path,
    row: dict[str, Any],
    columns: dict[str, str],
    prompt: str,
    completion: str | None,
    rest: dict[str, Any],
) -> None:
    examples = read_examples(jsonl(tmp_path, row), need="prompt", columns=columns)
    assert (examples[0].prompt, examples[0].completion, examples[0].columns) == (prompt, completion, rest)
    assert all(f", {name} = {column}" in examples.shape for name, column in columns.items())


def test_columns_that_cannot_be_named_so(tmp_path: Path) -> None:
    rows = [{"question": "q", "prompt": "p"}]
    text = fault(tmp_path, *rows, columns={"prompt": "question", "answer": "qestion"})
    assert "answer = 'qestion': no such column (columns found: question, prompt); did you mean question?" in text
    assert "prompt = 'question', but the file has a column 'prompt' too" in text
    for task, source in (
        (AnswerTaskConfig, "reasoning_gym:chain_sum"),
        (AnswerTaskConfig, "runs/collected"),
        (DialogueTaskConfig, "dialogue:file.py:World"),
    ):
        with pytest.raises(ValueError, match="columns names those of a file of rows"):
            task(source=source, columns={"prompt": "question"})


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ({"conversations": [HUMAN, GPT]}, {"conversations": [GPT, HUMAN, GPT]}, "begins with the assistant's turn"),
        (
            {"conversations": [HUMAN, GPT]},
            {"conversations": [{"from": "bing", "value": "x"}, GPT]},
            "from 'bing'; known: human",
        ),
        ({"conversations": [HUMAN, GPT]}, {"conversations": None}, "is not a list of turns"),
        (
            {"conversations": [HUMAN, GPT]},
            {"conversations": [HUMAN, {"from": "function_call", "value": "add(2)"}]},
            "a call that is no table",
        ),
        ({"instruction": "q", "output": "a"}, {"instruction": "", "output": "a"}, "`instruction` is missing, empty"),
        ({"instruction": "q", "output": "a"}, {"instruction": "q", "output": "a", "input": 2}, "`input` is a int"),
        (
            {"instruction": "q", "output": "a"},
            {"instruction": "q", "output": "a", "history": ["x"]},
            "pairs of question",
        ),
        ({"question": "q", "answer": SOLVED}, {"question": "q", "answer": "1,000"}, "does not end in a line `#### N`"),
    ],
)
def test_rows_that_do_not_show_the_shape_of_the_others_are_faults(
    tmp_path: Path, good: dict[str, Any], bad: dict[str, Any], message: str
) -> None:
    text = fault(tmp_path, good, good, bad)
    assert message in text
    assert "in 1 of 3 rows: 3" in text
    kept = read_examples(tmp_path / "data.jsonl", need="prompt-completion", on_bad_row="drop")
    assert len(kept) == 2


def test_half_of_the_rows_are_not_most(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": SOLVED}, {"question": "q", "answer": "42"}]
    assert "no column 'prompt'" in fault(tmp_path, *rows)
    assert "1 of 3" in fault(tmp_path, *rows, rows[0])


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            {"chosen": "Human: a\n\nAssistant: b", "rejected": "Human: a\n\nAssistant: c"},
            {"chosen": "Human: a", "rejected": "Human: a\n\nAssistant: c"},
            "`chosen` does not go from `Human:`",
        ),
        (ULTRA, {**ULTRA, "prompt": "3+3?"}, "`prompt` is none of the messages"),
    ],
)
def test_pairs_that_do_not_show_the_shape_of_the_others(
    tmp_path: Path, good: dict[str, Any], bad: dict[str, Any], message: str
) -> None:
    assert message in fault(tmp_path, good, good, bad, need="preference")


@pytest.mark.parametrize("label", [0, 1, "good"])
def test_labels_other_than_true_and_false_are_asked_about(tmp_path: Path, label: object) -> None:
    row = {"prompt": "a", "completion": "b", "label": label}
    assert f"`label` is {label!r}, expected true or false" in fault(tmp_path, row, need="unpaired")
    assert read_examples(jsonl(tmp_path, row), need="prompt-completion")[0].columns == {"label": label}


def test_further_columns_change_no_shape(tmp_path: Path) -> None:
    """Columns that no shape knows, in a file of each shape: read as before, and passed on."""
    shapes: dict[str, tuple[Any, dict[str, Any]]] = {
        "ShareGPT": ("prompt-completion", {"conversations": [HUMAN, GPT]}),
        "Alpaca": ("prompt-completion", {"instruction": "q", "output": "a"}),
        "GSM8K": ("prompt-completion", {"question": "q", "answer": SOLVED}),
        "verl": ("prompt", {"prompt": "q", "data_source": "d", "reward_model": {"ground_truth": "4"}}),
        "HH": ("preference", {"chosen": "Human: a\n\nAssistant: b", "rejected": "Human: a\n\nAssistant: c"}),
        "labelled answers": ("unpaired", {"prompt": "q", "completion": "a", "label": True}),
        "labelled steps": ("stepwise", {"prompt": "q", "completions": ["a"], "labels": [True]}),
    }
    for name, (need, row) in shapes.items():
        examples: ExampleDataset = read_examples(jsonl(tmp_path, {"source": 7, **row, "solution": "s"}), need=need)
        assert name in examples.shape
        assert (examples[0].columns["source"], examples[0].columns["solution"]) == (7, "s")
