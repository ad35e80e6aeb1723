"""`hone plan`: memory of a run here and elsewhere, as a table and as JSON."""

import json
from pathlib import Path

import pytest

from hone.cli.main import main

CONFIG = """
recipe = "grpo"
steps = 2
task = { source = "prompts.jsonl" }
rewards.functions = [{ use = "reasoning_gym" }]
rollout = { prompts_per_step = 2, samples_per_prompt = 2, max_tokens = 8 }
learner = { lr = 1e-4, micro_batch_tokens = 64 }
[model.new]
hidden_size = 32
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
max_positions = 64
"""


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpo.toml").write_text(CONFIG.replace("reasoning_gym", "exact_match"), encoding="utf-8")
    rows = [{"prompt": f"{k}+1=", "answer": str(k + 1)} for k in range(4)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_the_table_tells_phases_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "grpo.toml"]) == 0
    out = capsys.readouterr().out
    for words in ("components", "generate", "learn", "update", "a layer keeps", "yes; micro-batches of up to"):
        assert words in out, out


def test_another_machine_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "grpo.toml", "--device", "h100x2"]) == 0
    assert "2 x h100" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "tiny.toml").write_text("memory_gib = 0.0003\n", encoding="utf-8")
    assert main(["plan", "grpo.toml", "--device", "tiny.toml"]) == 5
    out = " ".join(capsys.readouterr().out.split())
    assert "too much" in out
    assert "rollout.sleep=true" in out
    assert main(["plan", "grpo.toml", "--device", "h1000"]) == 2
    assert "no such device, and no TOML file with its figures; did you mean h100?" in capsys.readouterr().err


def test_the_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "grpo.toml", "--json", "--device", "rtx4090"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    memory = plan["memory"]
    assert plan["recipe"] == "grpo"
    assert memory["peak_bytes"] == memory["phases"][memory["peak_phase"]] > 0
    assert memory["device"]["name"] == "rtx4090"
    assert memory["fits"] is True
    assert memory["fixes"] == []
    assert main(["plan", "grpo.toml", "--json", "learner.lrr=1"]) == 2
