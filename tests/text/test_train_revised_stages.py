"""A pipeline without any person: answers are revised by a constitution, and later stages learn from the pairs."""

import json
from pathlib import Path

import pytest
from judge_servers import Body, judge_server, material
from tiny_runs import MODEL, hone, lay_out

from hone.text.tasks.collection import read_collection

PIPELINE = f"""
name = "revised"
shared.run = {{ threads = 1, rollouts_every = 0, certify = false }}

[[stage]]
name = "answers"
recipe = "collect"
steps = 2
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
samples_per_prompt = 2
max_tokens = 3
[stage.collect.revise]
by = {{ kind = "server", url = "URL", model = "wise", attempts = 1 }}
principles = ["Write the number only."]
cache = "replies"

[[stage]]
name = "imitate"
recipe = "sft"
steps = 1
batch = 4
[stage.model]
path = "stage:answers"
[stage.task]
source = "stage:answers"
answers = {{ min_score = 1.0 }}
[stage.learner]
lr = 1e-2

[[stage]]
name = "scorer"
recipe = "reward_pairs"
steps = 1
batch = 4
[stage.model]
path = "stage:answers"
[stage.task]
source = "stage:answers"
[stage.learner]
lr = 1e-2
"""


def corrected(body: Body) -> str:
    """Adds up the numbers of the prompt."""
    parts = material(body)
    if "criticism" not in parts:
        return "It is no number."
    terms = parts["prompt"].rstrip("=").split("+")
    return json.dumps({"reason": "sum", "revision": "?" if terms[0] == "0" else str(sum(map(int, terms)))})


def test_stages_learn_from_revised_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    with judge_server(corrected) as server:
        (tmp_path / "revised.toml").write_text(PIPELINE.replace("URL", server.url))
        assert hone("train", "revised.toml") == 0, capsys.readouterr().err
        told = capsys.readouterr().out
    assert "at most 32 requests, 2 a round" in told
    examples = read_collection(str(tmp_path / "runs" / "revised" / "answers"))
    rows = [(example.prompt, answer) for example in examples for answer in example.answers]
    good = [(str(prompt), answer) for prompt, answer in rows if answer.score == 1.0]
    assert good
    for prompt, answer in good:
        assert answer.content == str(sum(map(int, prompt.rstrip("=").split("+"))))
        assert answer.tokens is not None
        assert len(answer.tokens.at) == len(str(answer.content)) + 1, "and the end token"
    assert sum(answer.score == 0.0 for _, answer in rows) == len(good)
    assert len(rows) == 16 + len(good)
    if any(str(prompt).startswith("0") for prompt, _ in rows):
        assert "answers were not revised to the end" in told


def test_the_plan_finds_a_reviser_that_is_not_there_with_the_other_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = PIPELINE.split("[[stage]]")[1].replace("stage.", "").replace("URL", "http://127.0.0.1:9")
    (tmp_path / "alone.toml").write_text(text.replace("sums.jsonl", "nothing.jsonl"))
    assert hone("plan", "alone.toml") == 3
    error = capsys.readouterr().err
    assert "judge 'revise' (http://127.0.0.1:9) cannot be reached" in error
    assert "nothing.jsonl" in error
    (tmp_path / "alone.toml").write_text(
        text.replace("[collect.revise]", '[collect]\ncontinue_from = "steps"\n[collect.revise]')
    )
    assert hone("plan", "alone.toml") == 2
    assert "collect.revise and collect.continue_from exclude each other" in capsys.readouterr().err
