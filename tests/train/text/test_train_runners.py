"""Answers written in lower precision than the trainer computes in: the ratio stays 1, and the gap is told."""

import json
from pathlib import Path

import pytest
from tiny_runs import GRPO, hone, lay_out

ONE_UPDATE = GRPO.replace("epochs = 2", "epochs = 1").replace("minibatches = 2", "minibatches = 1")


COMPILED = pytest.param(
    "torch_compiled", 0.0, 2e-6,
    marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")],  # torch's own
)  # fmt: skip


@pytest.mark.parametrize(
    ("runner", "least", "most"), [("native", 0.0, 2e-6), ("native_bfloat16", 1e-5, 0.03), COMPILED]
)
def test_mismatch_is_told_and_the_ratio_is_one(
    runner: str, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.toml").write_text(ONE_UPDATE, encoding="utf-8")
    assert hone("train", "grpo.toml", f'rollout.runner="{runner}"') == 0
    lines = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["policy/ratio_max"] for line in lines} == {1.0}
    assert {line["policy/clip_fraction"] for line in lines} == {0.0}
    assert least <= min(line["mismatch/mean"] for line in lines)
    assert max(line["mismatch/mean"] for line in lines) <= most


def test_a_compiler_is_not_promised_to_be_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ('rollout.runner="torch_compiled"', 'model.exactness="bitwise"', 'model.compute="float32"')
    assert hone("train", "grpo.toml", *words) == 2
    assert 'takes runner = "torch"' in capsys.readouterr().err


def test_the_alarm_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ('rollout.runner="native_bfloat16"', "learner.ratio.max_mismatch_nats=1e-6")
    assert hone("train", "grpo.toml", *words) == 6
    assert "above learner.ratio.max_mismatch_nats = 1e-06" in capsys.readouterr().err
