"""What the plan says of preference data: contradictions, sides that hardly differ, one label, near ties, lengths."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hone.cli.main import main
from hone.text.preference.data_checks import _circular, _shared, data_warnings
from hone.text.tasks.dataset import DatasetKind, read_examples

PLAIN = [
    {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
    {"prompt": "3+4=", "chosen": "7", "rejected": "34"},
    {"prompt": "1+6=", "chosen": "7", "rejected": "8"},
]


def warnings(tmp_path: Path, rows: list[dict[str, Any]], kind: Any = "preference") -> list[str]:
    need: DatasetKind = "unpaired" if kind == "outcome" else kind
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    inputs: Any = SimpleNamespace(waits_for_answers=False, examples=read_examples(path, need=need))
    found = data_warnings(inputs, kind)
    assert all(line.startswith(f"{path}: ") for line in found)
    return [line.removeprefix(f"{path}: ") for line in found]


def pair(prompt: str, chosen: Any, rejected: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_sound_pairs_are_silent(tmp_path: Path) -> None:
    assert warnings(tmp_path, PLAIN) == []


def test_data_that_an_earlier_stage_collects_are_not_read() -> None:
    assert data_warnings(SimpleNamespace(waits_for_answers=True), "preference") == []  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([pair("q", "a one", "b two"), pair("q", "b two", "a one")], "2 of 2 pairs contradict each other: rows 1, 2"),
        (
            [pair("q", "a", "b"), pair("q", "b", "c"), pair("q", "c", "a"), pair("q", "a", "z")],
            "3 of 4 pairs contradict each other: rows 1, 2, 3",
        ),
        ([pair("q", "a", "b"), pair("other q", "b", "a")], ""),
        ([pair("q", "a", "b"), pair("q", "b", "c"), pair("q", "a", "c")], ""),
        ([pair("q", "A  b", "c"), pair(" q ", "c", "a B")], "2 of 2 pairs contradict each other"),
    ],
)
def test_pairs_that_prefer_in_a_circle(rows: list[dict[str, Any]], says: str, tmp_path: Path) -> None:
    found = [line for line in warnings(tmp_path, rows) if "contradict" in line]
    assert len(found) == bool(says)
    assert says in " ".join(found)


def test_conversations_contradict_too(tmp_path: Path) -> None:
    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    asked = [{"role": "user", "content": "which?"}]
    rows = [{"prompt": asked, "chosen": said("this"), "rejected": said("that")}]
    rows.append({"prompt": asked, "chosen": said("that"), "rejected": said("this")})
    assert "2 of 2 pairs contradict each other: rows 1, 2" in " ".join(warnings(tmp_path, rows))


def test_a_path_between_two_circles_is_on_none() -> None:
    edges = [("a", "b", 1), ("b", "a", 2), ("b", "c", 3), ("c", "d", 4), ("d", "c", 5)]
    assert _circular(edges) == [1, 2, 4, 5]


# ------------------------------------------------------------------------------------------------- near-equal sides


LONG = "The quick brown fox jumps over the lazy dog while the band plays on. " * 3


@pytest.mark.parametrize(
    ("chosen", "rejected", "says"),
    [
        ("It is 4.", "it is 4", "the sides of 1 of 1 pairs differ only in case, spaces, quotes or a final stop: row 1"),
        ('"Yes", he said', "Yes,  he said!", "differ only in case"),
        ("**bold** words", "bold words", "differ only in case"),
        (LONG + "It is 41.", LONG + "It is 42.", "the sides of 1 of 1 pairs differ in at most 2% of their characters"),
        (LONG, LONG.replace("lazy", "lame", 1), "differ in at most 2%"),
        ("-1", "1", ""),
        ("It is 41.", "It is 42.", ""),
        ("x = 1.5", "x = 15", ""),
        (LONG, LONG[: len(LONG) // 2], ""),
    ],
)
def test_sides_that_hardly_differ(chosen: str, rejected: str, says: str, tmp_path: Path) -> None:
    found = warnings(tmp_path, [pair("q: ", chosen, rejected)])
    assert len(found) == bool(says)
    assert says in " ".join(found)


@pytest.mark.parametrize(
    ("one", "other", "shared"), [("abc", "abd", 2), ("", "a", 0), ("ab", "abc", 2), ("é😀x", "é😀y", 2)]
)
def test_shared_beginnings(one: str, other: str, shared: int) -> None:
    assert _shared(one, other) == _shared(other, one) == shared


# ------------------------------------------------------------------------------------------------- scores and lengths


def test_near_ties_of_scores(tmp_path: Path) -> None:
    scores = [(10.0, 0.0), (0.51, 0.5), (5.0, 4.0), (0.1, 0.0)]
    rows = [
        pair(f"q{number}", f"good {number}", f"worse {number * 7}") | {"score_chosen": high, "score_rejected": low}
        for number, (high, low) in enumerate(scores)
    ]
    (line,) = warnings(tmp_path, rows)
    assert line.startswith("2 of 4 pairs are near ties, with scores within 1% of the widest margin (10): rows 2, 4")


@pytest.mark.parametrize(
    ("longer", "says"),
    [(60, "the chosen side is the longer one in 100% of 60 pairs (mean 25 characters chosen, 2 rejected)"), (53, ""),
     (0, "the rejected side is the longer one in 100% of 60 pairs")],
)  # fmt: skip
def test_a_side_that_is_always_longer(longer: int, says: str, tmp_path: Path) -> None:
    lengthy, short = "a much longer answer %4d", "%2d"
    rows = [
        pair(f"q{n}", lengthy % n, short % n) if n < longer else pair(f"q{n}", short % n, lengthy % n)
        for n in range(60)
    ]
    found = warnings(tmp_path, rows)
    assert len(found) == bool(says)
    assert says in " ".join(found)


# ------------------------------------------------------------------------------------------------- labels


def labelled(*labels: bool, answers: list[str] | None = None, prompts: list[str] | None = None) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"q{n}" if prompts is None else prompts[n],
            "completion": f"answer {n}" if answers is None else answers[n],
            "label": label,
        }
        for n, label in enumerate(labels)
    ]


def test_one_label_only(tmp_path: Path) -> None:
    (good,) = warnings(tmp_path, labelled(True, True, True), "unpaired")
    assert good.startswith("all 3 answers are labelled good, none bad: there is nothing to tell them from")
    assert 'add bad answers, or imitate them (recipe = "sft")' in good
    (bad,) = warnings(tmp_path, labelled(False, False), "unpaired")
    assert bad.startswith("all 2 answers are labelled bad, none good")
    assert "add good answers, or add answers that are better" in bad
    assert warnings(tmp_path, labelled(True, False), "unpaired") == []


def test_a_rare_label_is_told_with_its_weight(tmp_path: Path) -> None:
    (line,) = warnings(tmp_path, labelled(*[True] * 19, False), "unpaired")
    assert line.startswith("1 of 20 answers are labelled bad (5.0%): the others outweigh them 19 to 1")
    assert warnings(tmp_path, labelled(*[True] * 9, False), "unpaired") == []  # a tenth is not rare


def test_an_answer_with_two_labels(tmp_path: Path) -> None:
    rows = labelled(True, False, True, answers=["so", "So ", "no"], prompts=["q", "q", "q"])
    (line,) = warnings(tmp_path, rows, "unpaired")
    assert line.startswith("1 answers have two labels: rows 1 and 2.")
    rows = labelled(True, False, True, answers=["so", "so", "no"], prompts=["q", "p", "q"])
    assert warnings(tmp_path, rows, "unpaired") == []


def test_data_of_one_score_or_one_step_label(tmp_path: Path) -> None:
    assert "all answers have the score 1" in " ".join(warnings(tmp_path, labelled(True, True), "outcome"))
    steps = [{"prompt": "q", "completions": ["a", "b"], "labels": [True, True]}]
    assert "all steps have the label 1" in " ".join(warnings(tmp_path, steps, "stepwise"))
    steps[0]["labels"] = [True, False]
    assert warnings(tmp_path, steps, "stepwise") == []


# ------------------------------------------------------------------------------------------------- the plan


CONFIG = """
recipe = "kto"
steps = 2
batch = 2
task = { source = "rows.jsonl" }
learner = { lr = 1e-3 }
samples = { prompts = 0 }
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 16
"""


@pytest.mark.parametrize("recipe", ["kto", "reward_outcome"])
def test_the_plan_tells(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = CONFIG.replace("kto", recipe)
    if recipe == "reward_outcome":
        text = text.replace("samples = { prompts = 0 }\n", "")
    Path("run.toml").write_text(text, encoding="utf-8")
    rows = labelled(True, True, True, True)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["plan", "run.toml"]) == 0, capsys.readouterr().err
    out = " ".join(capsys.readouterr().out.split())
    expected = "all 4 answers are labelled good, none bad" if recipe == "kto" else "all answers have the score 1"
    assert expected in out
