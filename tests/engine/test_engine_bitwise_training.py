"""Training runs with `model.exactness = "bitwise"`: engine and trainer differ by nothing at all, step after step."""

import json
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.engine.clients.http import ServerEngine
from hone.text.evaluate.engine_actor import make_client
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy

RUN = """
recipe = "grpo"
name = "exact"
steps = 4
[model]
exactness = "bitwise"
[model.new]
hidden_size = 16
layers = 2
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 96
alphabet = "0123456789+="
[task]
source = "sums.jsonl"
[user_code]
workers = 1

[rewards]
[[rewards.functions]]
use = "rewards.py:short"
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 70
max_concurrent = 5
temperature = 0.9
[learner]
lr = 1e-2
minibatches = 2
micro_batch_tokens = 300
[run]
threads = 1
"""
REWARDS = """
def short(completions):
    return [-float(len(text)) for text in completions]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    Path("run.toml").write_text(RUN, encoding="utf-8")


def figures(name: str) -> list[dict[str, float]]:
    lines = (Path("runs") / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [told for told in map(json.loads, lines) if "mismatch/mean" in told]


@pytest.mark.parametrize("denominator", ["recomputed", "recorded"])
def test_nothing_lies_between_engine_and_trainer(denominator: str) -> None:
    assert main(["train", "run.toml", f"learner.ratio.denominator={denominator}"]) == 0
    told = figures("exact")
    assert len(told) == 4
    if denominator == "recomputed":
        assert [(one["mismatch/mean"], one["mismatch/value_max"]) for one in told] == [(0.0, 0.0)] * 4
        assert [one["mismatch/ratio_ess"] for one in told] == [1.0] * 4
    assert len({one["policy/entropy_nats"] for one in told}) == 4, "the policy moved"


def test_parity_differs_in_the_last_bits() -> None:
    """The test above can fail."""
    assert main(["train", "run.toml", "model.exactness=parity", "model.compute=float32"]) == 0
    assert max(one["mismatch/value_max"] for one in figures("exact")) > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.compute=bfloat16", 'remove model.compute = "bfloat16"'),
        ("rollout.runner=native", 'model.exactness = "bitwise" takes the torch runner'),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.toml", change]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_server_is_refused() -> None:
    source = ModelSource(new=NewModelConfig(), exactness="bitwise")
    policy = open_policy(source, seed=0, device="cpu", temperature=1.0)
    with pytest.raises(ConfigError, match="server arithmetic differs"):
        make_client(policy, ServerEngine(kind="vllm", url="http://127.0.0.1:9"), slots=1, seed=0)


def test_another_device_is_refused() -> None:
    source = ModelSource(new=NewModelConfig(), exactness="bitwise")
    with pytest.raises(ConfigError, match=r'needs run.device = "cpu"; it is \'meta\''):
        open_policy(source, seed=0, device="meta", temperature=1.0)
