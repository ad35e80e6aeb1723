"""Runs rewarded by every kind of reward: functions, a model with a scalar head, a server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reward_servers import served_rewards
from tiny_runs import GRPO, hone, lay_out

from hone.evaluate.checkpoint import evaluate_checkpoint
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import load_scalar_head, new_scalar_head
from hone.models.language.tokenizers import character_tokenizer, load_tokenizer
from hone.run.store.rollouts import read_samples

FUNCTION = '[[rewards.functions]]\nuse = "rewards.py:close"\n'
MODEL = '[[rewards.functions]]\nkind = "model"\npath = "scorer"\nweight = 2.0\n'
EVALUATION = '[evaluation]\nmax_tokens = 3\ntask = { source = "held.jsonl" }\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's files, and a reward model with the policy's vocabulary."""
    lay_out(tmp_path)
    tokenizer = character_tokenizer(["0123456789+="])
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=8, intermediate_size=16, layers=1, heads=2, max_positions=32
    )
    new_scalar_head(new_model(shape, seed=1), seed=1).save(tmp_path / "scorer")
    tokenizer.save(tmp_path / "scorer")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(rewards: str, more: str = "") -> None:
    assert FUNCTION in GRPO
    Path("run.toml").write_text(GRPO.replace(FUNCTION, rewards) + more, encoding="utf-8")


def metrics() -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text().splitlines()]


def test_a_run_is_rewarded_by_a_model_and_evaluated_by_it_again() -> None:
    evaluation = EVALUATION + MODEL.replace("rewards.", "evaluation.rewards.").replace("2.0", "1.0")
    written(MODEL, evaluation)
    assert hone("plan", "run.toml") == 0
    assert hone("train", "run.toml") == 0
    rows = [row for file in Path("runs/tiny/rollouts").glob("*") for row in read_samples(file)]
    tokenizer, model = load_tokenizer(Path("scorer")), load_scalar_head(Path("scorer"))
    whole = [row for row in rows if len(row.completion) == row.tokens]  # others hold special tokens: no text shows them
    texts = [tokenizer.encode(row.prompt + row.completion) for row in whole]
    expected = 2.0 * model.score_sequences(texts, micro_batch_tokens=64)
    np.testing.assert_allclose([row.score for row in whole], expected, rtol=0, atol=1e-5)
    assert len(whole) > 10
    assert expected.std() > 0.1, "a reward that tells answers apart"
    (policy,) = Path("runs/tiny/checkpoints").glob("step_00000006")
    again = evaluate_checkpoint(policy / "policy", run=Path("runs/tiny"), problems=9, seed=0, device="cpu").scores
    assert again["eval/score"] == pytest.approx(metrics()[-1]["eval/score"], abs=1e-6)


def test_the_same_seed_gives_the_same_run_with_a_model() -> None:
    written(MODEL)
    lines = []
    for name in ("one", "two"):
        assert hone("train", "run.toml", "--name", name) == 0
        policy = Path(f"runs/{name}/checkpoints/step_00000006/policy/model.safetensors")
        lines.append(policy.read_bytes())
    assert lines[0] == lines[1]


def test_a_run_is_rewarded_by_a_function_a_model_and_a_server() -> None:
    def answer(body: Mapping[str, Any]) -> tuple[int, object]:
        return 200, {"scores": [float(len(text)) for text in body["completions"]]}

    with served_rewards(answer) as served:
        server = f'[[rewards.functions]]\nkind = "server"\nurl = "{served.url}"\nname = "length"\nweight = 0.5\n'
        written(FUNCTION + MODEL + server)
        assert hone("train", "run.toml") == 0
    assert len(served.requests) == 6 * 4, "one for each prompt of a step"
    assert set(served.requests[0]["columns"]) >= {"answer"}
    for line in metrics():
        parts = {name.removeprefix("rewards/"): value for name, value in line.items() if name.startswith("rewards/")}
        assert set(parts) == {"close", "model", "length"}
        mean = parts["close"] + 2.0 * parts["model"] + 0.5 * parts["length"]
        assert line["reward/mean"] == pytest.approx(mean, abs=1e-5)


def test_an_unreachable_server_stops_the_run_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    written('[[rewards.functions]]\nkind = "server"\nurl = "http://127.0.0.1:9/score"\nattempts = 1\n')
    assert hone("train", "run.toml") == 4
    said = capsys.readouterr().err
    assert "no answer in 3 batches in a row has a score" in said
    assert "POST http://127.0.0.1:9/score: ConnectionRefusedError" in said


@pytest.mark.parametrize(
    ("rewards", "code", "said"),
    [
        (MODEL.replace("scorer", "nowhere"), 3, "model folder 'nowhere' does not exist"),
        (MODEL.replace('"model"', '"modle"'), 2, "rewards.functions.0.kind"),
        (MODEL.replace("weight", "wieght"), 2, "did you mean rewards.functions.0.weight?"),
        (FUNCTION.replace("use", "usee"), 2, "did you mean rewards.functions.0.use?"),
        (MODEL.replace('path = "scorer"', ""), 2, "rewards.functions.0.path"),
    ],
)
def test_faults_are_found_before_the_run(
    rewards: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(rewards)
    assert hone("train", "run.toml") == code
    assert said in capsys.readouterr().err
    assert not Path("runs/tiny").exists()


def test_a_run_from_before_rewards_had_kinds_is_resumed() -> None:
    written(FUNCTION)
    assert hone("train", "run.toml", "steps=2") == 0
    file = Path("runs/tiny/config.json")
    saved = json.loads(file.read_text())
    assert saved.pop("rewards.functions.0.kind")["value"] == "function"
    file.write_text(json.dumps(saved))
    assert hone("train", "run.toml", "steps=4", "--resume") == 0
    assert metrics()[-1]["step"] == 4


def test_a_folder_with_a_head_is_no_policy_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    head = GRPO[GRPO.index("[model]") : GRPO.index("[task]")]
    Path("run.toml").write_text(GRPO.replace(head, '[model]\npath = "scorer"\n'), encoding="utf-8")
    assert hone("train", "run.toml") == 3
    assert "is a scalar head" in capsys.readouterr().err
