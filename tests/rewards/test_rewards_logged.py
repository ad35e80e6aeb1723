"""What reward functions record reaches the lines of metrics, whichever process scored."""

from pathlib import Path

import pytest

import hone.api
from hone.run.store.metrics import depends_on_clock, metric_catalogue, read_metrics

REWARD = """
def close(completions, answer, log_metric, log_extra, **columns):
    log_extra("characters", [len(text) for text in completions])
    log_metric("answers of a call", 1.0)
    return [{"score": float(text == wanted), "right": text == wanted} for text, wanted in zip(completions, answer)]
"""


def test_a_run_writes_what_its_functions_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD, encoding="utf-8")
    Path("sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    shape = {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 32,
        "max_positions": 16, "alphabet": "0123456789+=",
    }  # fmt: skip
    hone.api.train(
        {
            "recipe": "grpo", "name": "logged", "steps": 2, "model": {"compute": "float32", "new": shape},
            "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": "mine.py:close"}]},
            "user_code": {"workers": 2}, "learner": {"lr": 1e-3},
            "run": {"threads": 1, "certify": False, "checkpoint_every": 0},
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 3},
        }
    )  # fmt: skip
    metrics = read_metrics(Path("runs/logged/metrics.jsonl")).values
    assert metrics["logged/right"].tolist() == metrics["reward/mean"].tolist()
    assert (metrics["logged/characters"] <= 3).all()
    assert metrics["logged/answers of a call"].tolist() == [1.0, 1.0]
    assert all(
        metric_catalogue().pattern().fullmatch(name) and depends_on_clock(name) for name in metrics if "logged" in name
    )
