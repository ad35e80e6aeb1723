"""Stages that read the answers of an earlier stage: opened when their turn comes, and every wrong reference refused
before anything runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import MODEL, files_of, hone, lay_out

from hone.text.tasks.collection import read_collection

PIPELINE = f"""
name = "filtered"
shared.run = {{ threads = 1, rollouts_every = 0, checkpoint_every = 2 }}

[[stage]]
name = "answers"
recipe = "collect"
steps = 3
{MODEL.replace("[model", "[stage.model")}
[stage.task]
source = "sums.jsonl"
[stage.user_code]
workers = 1

[stage.rewards]
[[stage.rewards.functions]]
use = "rewards.py:close"
[stage.rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 3

[[stage]]
name = "imitate"
recipe = "sft"
steps = 2
batch = 4
[stage.model]
path = "stage:answers"
[stage.task]
source = "stage:answers"
answers = {{ min_score = 0.01, max_per_prompt = 2 }}
[stage.learner]
lr = 1e-2
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    (tmp_path / "filtered.toml").write_text(PIPELINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stage_learns_from_the_answers_of_another_and_resumes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("train", "filtered.toml") == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "answers to imitate from 48 answers to" in told
    runs = place / "runs" / "filtered"
    examples = read_collection(str(runs / "answers"))
    assert sum(len(example.answers) for example in examples) == 48
    metrics = [json.loads(line) for line in (runs / "answers" / "metrics.jsonl").read_text().splitlines()]
    assert [line["collect/answers"] for line in metrics] == [16, 16, 16]
    assert np.isfinite(metrics[0]["reward/mean"])
    before = files_of(runs / "imitate", 2)
    shutil.rmtree(runs / "imitate")
    assert hone("train", "filtered.toml", "--resume") == 0, capsys.readouterr().err
    assert "stage answers is done: passed over" in capsys.readouterr().out
    assert files_of(runs / "imitate", 2) == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'source = "stage:answers"',
            'source = "stage:answer"',
            "no stage before imitate has this name; did you",
        ),
        ('path = "stage:answers"', 'path = "stage:imitate"', 'model.path = "stage:imitate" in filtered.toml'),
        ('recipe = "collect"', 'recipe = "grpo"\nlearner.lr = 1e-3', "stage answers leaves no answers behind"),
    ],
)
def test_references_to_nothing_are_refused_at_once(
    old: str, new: str, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "filtered.toml").write_text(PIPELINE.replace(old, new), encoding="utf-8")
    assert hone("plan", "filtered.toml") == 2
    assert said in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_a_file_without_stages_cannot_name_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = PIPELINE[PIPELINE.rindex("[[stage]]") :].replace("[[stage]]\n", "").replace("[stage.", "[")
    (place / "alone.toml").write_text(alone, encoding="utf-8")
    assert hone("plan", "alone.toml") == 2
    said = capsys.readouterr().err
    assert 'task.source = "stage:answers"' in said and 'model.path = "stage:answers"' in said
    assert "has no [[stage]] tables" in said
