"""`hone dataset`: a collection, or a file of scored answers, in TRL's formats, and read back."""

import json
from pathlib import Path

import pytest
from tiny_runs import hone

from hone.text.tasks.collection import FOLDER, CollectedAnswer, collection_bytes
from hone.text.tasks.dataset import read_examples


def answer(
    sample: int, text: str, score: float | None, *, prompt: object = "2+2=", **changes: object
) -> CollectedAnswer:
    """An answer of one token a character."""
    row = {
        "id": "sum", "prompt": json.dumps(prompt), "columns": json.dumps({"answer": "4"}), "group": 0,
        "sample": sample, "completion": text, "tokens": list(range(4 + len(text))),
        "at": list(range(4, 4 + len(text))), "logp": [-0.5] * len(text), "version": [0] * len(text),
        "score": score, "status": "error" if score is None else "scored", "rewards": {"right": score},
        "truncated": False, "labels": None, "steps": None,
    }  # fmt: skip
    return CollectedAnswer(**row | changes)  # type: ignore[arg-type]


ANSWERS = [
    answer(0, "1;4", 1.0, labels=[float("nan"), 0.375, 1.0], steps=["1;", "4"]),
    answer(1, "2;5", 0.0, labels=[float("nan"), 0.0, 0.0], steps=["2;", "5"]),
    answer(2, "4", 0.8),
    answer(3, "7", None),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, ANSWERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, answers: list[CollectedAnswer]) -> None:
    folder = place / "runs" / "mine" / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step_00000001.parquet").write_bytes(collection_bytes(answers, vocabulary="x"))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("dataset", "mine", "best.jsonl", "--kind", "preference") == 0
    said = capsys.readouterr().out
    assert "1 of 4 answers have no score and are left out" in said
    assert "best.jsonl: 1 rows of the preference kind" in said
    assert rows(place / "best.jsonl") == [
        {"id": "sum", "prompt": "2+2=", "chosen": "1;4", "rejected": "2;5", "answer": "4"}
    ]
    assert hone("dataset", "mine", "all.parquet", "--kind", "preference", "--pairs", "all") == 0
    examples = read_examples("all.parquet", need="preference")
    assert [[(one.content, one.score) for one in example.answers] for example in examples] == [
        [("1;4", 1.0), ("2;5", 0.0)], [("1;4", 1.0), ("4", 0.8)], [("4", 0.8), ("2;5", 0.0)],
    ]  # fmt: skip


def test_labelled_answers_and_answers_to_imitate(place: Path) -> None:
    assert hone("dataset", "runs/mine", "labels.jsonl", "--kind", "unpaired", "--min-score", "0.9") == 0
    examples = read_examples("labels.jsonl", need="unpaired")
    assert [(one.answers[0].content, one.answers[0].score) for one in examples] == [("1;4", 1), ("2;5", 0), ("4", 0)]
    assert hone("dataset", "mine", "imitate.jsonl", "--kind", "imitation", "--max-per-prompt", "1") == 0
    assert [(one.prompt, one.completion) for one in read_examples("imitate.jsonl", need="prompt-completion")] == [
        ("2+2=", "1;4")
    ]


def test_steps_keep_their_shares(place: Path) -> None:
    assert hone("dataset", "mine", "steps.jsonl", "--kind", "stepwise") == 0
    assert [(row["completions"], row["labels"]) for row in rows(place / "steps.jsonl")] == [
        (["1;", "4"], [0.375, 1.0]),
        (["2;", "5"], [0.0, 0.0]),
    ]
    first, second = read_examples("steps.jsonl", need="stepwise")
    assert first.answers[0].labels == (0.375, 1.0)
    assert second.answers[0].steps == ("2;", "5")


def test_labels_that_are_all_certain_are_true_and_false(place: Path) -> None:
    write(place, [answer(0, "1;4", 1.0, labels=[float("nan"), 1.0, 0.0], steps=["1;", "4"])])
    for name in ("steps.jsonl", "steps.parquet"):
        assert hone("dataset", "mine", name, "--kind", "stepwise") == 0
        assert read_examples(name, need="stepwise")[0].answers[0].labels == (1.0, 0.0)
    assert rows(place / "steps.jsonl")[0]["labels"] == [True, False]


def test_conversations_stay_conversations(place: Path) -> None:
    prompt = [{"role": "user", "content": "2+2?"}]
    write(place, [answer(0, "4", 1.0, prompt=prompt), answer(1, "5", 0.0, prompt=prompt)])
    assert hone("dataset", "mine", "chat.jsonl", "--kind", "preference") == 0
    (example,) = read_examples("chat.jsonl", need="preference")
    assert example.prompt == prompt
    assert example.answers[0].content == [{"role": "assistant", "content": "4"}]


def test_a_file_becomes_another_kind_of_file(place: Path) -> None:
    (place / "pairs.jsonl").write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    assert hone("dataset", "pairs.jsonl", "labels.jsonl", "--kind", "unpaired") == 0
    assert [(row["completion"], row["label"]) for row in rows(place / "labels.jsonl")] == [("b", True), ("c", False)]
    assert len(read_examples("labels.jsonl", need="unpaired")) == 2


def test_answers_without_text_are_left_out_and_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place, [answer(0, "4", 1.0), answer(1, " ", 0.0)])
    assert hone("dataset", "mine", "labels.jsonl", "--kind", "unpaired") == 0
    assert "1 rows have an answer that is empty as text, to the prompts sum#2 (left out)" in capsys.readouterr().out
    assert len(rows(place / "labels.jsonl")) == 1
    assert hone("dataset", "mine", "pairs.jsonl", "--kind", "preference") == 3
    assert "no format of text can hold them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["mine", "a.jsonl"], 2, "--kind is missing; known: imitation, preference, stepwise, unpaired"),
        (["mine", "a.jsonl", "--kind", "preferences"], 2, "did you mean preference?"),
        (["mine", "a.jsonl", "--kind", "preference", "--pairs", "best"], 2, "--pairs best; known: all, best_worst"),
        (["mine", "a.csv", "--kind", "preference"], 2, "a.csv: unknown kind of file '.csv'"),
        (["mine", "no/a.jsonl", "--kind", "preference"], 2, "there is no folder no"),
        (["mine", "runs/mine/collected/step_00000001.parquet", "--kind", "unpaired"], 2, "exists already"),
        (["mine", "a.jsonl", "--kind", "unpaired", "--min-score", "high"], 2, "--min-score must be a number"),
        (["mine", "a.jsonl", "--kind", "imitation", "--min-score", "2"], 3, "no answers to imitate in 4 answers"),
        (["pairs.jsonl", "a.jsonl", "--kind", "unpaired", "--min-score", "1"], 2, "--min-score: for collected answers"),
        (["nothing", "a.jsonl", "--kind", "preference"], 3, "nothing: no such file"),
        (["runs", "a.jsonl", "--kind", "preference"], 3, "runs: no collected answers"),
    ],
)
def test_what_cannot_be_written_is_refused(
    arguments: list[str], code: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("dataset", *arguments) == code
    assert said in capsys.readouterr().err
    assert not (place / "a.jsonl").exists()
