"""The examples of examples/smollm2: planned on a stand-in of the model, and run on the model where it can be had."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from real_chat_model import smollm2, smollm2_stand_in

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "smollm2"
PAGE = ROOT / "docs" / "language" / "real_chat_model.md"
SHORTER = {
    "sft.toml": ["steps=1", "batch=4", "evaluation.max_tokens=2"],
    "dpo.toml": ["steps=1", "batch=2", "evaluation.max_tokens=2"],
    "kto.toml": ["steps=1", "batch=2", "samples.prompts=2", "evaluation.max_tokens=2"],
    "reward_model.toml": [
        *("stage.0.steps=1", "stage.0.batch=2", "stage.1.rollout.prompts_per_step=2", "stage.1.rollout.max_tokens=4"),
        *("stage.1.evaluation.max_tokens=2", "stage.2.evaluation.max_tokens=2", "stage.2.steps=1"),
        *("stage.2.rollout.prompts_per_step=2", "stage.2.rollout.samples_per_prompt=2", "stage.2.rollout.max_tokens=4"),
    ],
    "grpo.toml": [
        *("shared.evaluation.task.size=4", "shared.evaluation.max_tokens=4", "stage.0.task.size=2"),
        *("stage.0.rollout.prompts_per_step=2", "stage.0.rollout.max_tokens=4", "stage.1.steps=1", "stage.1.batch=4"),
        *("stage.2.steps=1", "stage.2.rollout.prompts_per_step=2", "stage.2.rollout.samples_per_prompt=2"),
    ],
    "tools.toml": [
        *("shared.evaluation.max_tokens=8", "shared.evaluation.task.source=few.jsonl"),
        *("stage.0.rollout.prompts_per_step=2", "stage.0.rollout.max_tokens=8", "stage.1.steps=1", "stage.1.batch=2"),
        *("stage.2.steps=1", "stage.2.rollout.prompts_per_step=2", "stage.2.rollout.samples_per_prompt=2"),
        "stage.2.rollout.max_tokens=8",
    ],
}
BYTES = {
    "tools.toml": [f"{place}.context=2048" for place in ("shared.evaluation", "stage.0.rollout", "stage.2.rollout")]
}
"""Beside the stand-in, whose tokens are bytes: the tool's description is longer in them."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FOLDER, tmp_path / "examples" / "smollm2", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    runpy.run_path("examples/smollm2/chats.py", run_name="__main__")
    Path("few.jsonl").write_text("".join(Path("products_held_out.jsonl").read_text().splitlines(keepends=True)[:3]))
    return tmp_path


def test_every_example_is_here_and_on_its_page() -> None:
    assert {path.name for path in FOLDER.glob("*.toml")} == set(SHORTER)
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in SHORTER if f"examples/smollm2/{name}" not in page] == []


@pytest.mark.parametrize("name", SHORTER)
def test_an_example_is_valid(name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = smollm2_stand_in(Path("cache"), monkeypatch)
    assert main(["plan", f"examples/smollm2/{name}", *BYTES.get(name, [])]) == 0, capsys.readouterr().err
    assert f'"{file}"' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORTER)
def test_an_example_runs_on_the_published_model(name: str, workplace: Path, capsys) -> None:
    smollm2()
    words = ["train", f"examples/smollm2/{name}", *SHORTER[name], "name=short"]
    assert main(words) == 0, capsys.readouterr().err
    assert (workplace / "runs" / "short" / "report.html").is_file()


def test_held_out_rows_share_no_question_or_answer_with_the_rows_that_are_learnt(workplace: Path) -> None:
    def asked(row: dict[str, Any]) -> str:
        prompt = row.get("prompt") or row["messages"][:1]
        return prompt if isinstance(prompt, str) else prompt[0]["content"]

    for learnt, held_out in (
        *(("pairs", "pairs_held_out"), ("capitals", "capitals_held_out"), ("facts", "facts_held_out")),
        ("marked", "pairs_held_out"),
        *(("products", "products_held_out"), ("calls", "products_held_out")),
    ):
        rows = [Path(f"{file}.jsonl").read_text().splitlines() for file in (learnt, held_out)]
        questions = [{asked(json.loads(line)) for line in some} for some in rows]
        assert all(questions)
        assert not questions[0] & questions[1], held_out


def test_marked_answers_are_those_of_the_pairs(workplace: Path) -> None:
    pairs, marked = (
        [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()] for name in ("pairs", "marked")
    )
    expected = [(pair["prompt"], pair[side], side == "chosen") for pair in pairs for side in ("chosen", "rejected")]
    assert [(row["prompt"], row["completion"], row["label"]) for row in marked] == expected


def test_answers_of_at_most_five_words_are_brief(workplace: Path) -> None:
    brief = runpy.run_path("examples/smollm2/chats.py")["brief"]
    assert brief(["Paris.", "", "one two three four five", "one two three four five six"]) == [1.0, 0.0, 1.0, 0.0]
    assert brief([[{"role": "assistant", "content": "Mexico City."}]]) == [1.0]
