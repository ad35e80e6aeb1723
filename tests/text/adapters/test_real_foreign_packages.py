"""An environment of verifiers and an OpenEnv server, as their packages run them, each in an environment of its own."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.errors import ResourceError
from hone.text.adapters.openenv import check_server

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "dialogue_figures")]
pytestmark = pytest.mark.slow  # the first use installs the packages

MODEL = """
recipe = "grpo"
steps = 2
model.compute = "float32"
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 64
alphabet = "0123456789+="
[learner]
lr = 1e-2
ratio = { denominator = "recomputed", diagnostics = true }
"""


def trained(name: str, tables: str) -> list[dict[str, float]]:
    """Metrics of the steps of a run."""
    Path(f"{name}.toml").write_text(MODEL + tables, encoding="utf-8")
    assert main(["train", f"{name}.toml"]) == 0
    return [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("harness", ["", 'harness = { id = "null" }, '])
def test_an_environment_of_verifiers_trains_unchanged(
    harness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own harness, and by the package's chat program, which runs as a process of its own and streams."""
    from peers import require_peer

    python = require_peer("verifiers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(python.parent), prepend=":")  # verifiers starts its chat program by `uv`
    shutil.copy(ROOT / "benchmarks" / "foreign_environments" / "sums_env.py", tmp_path)
    steps = trained(
        "sums",
        f"""
[task]
source = "verifiers:sums_env"
options = {{ agent = {{ {harness}runtime = {{ type = "subprocess" }} }} }}
[user_code]
agents.python = "{python}"
[rollout]
prompts_per_step = 2
samples_per_prompt = 2
max_tokens = 1
""",
    )
    assert all(step["reward/missing"] == 0 and step["capture/requests"] == 1 for step in steps)
    assert all(0 <= step["world/right"] <= step["reward/mean"] <= 1 for step in steps)
    assert all(step.get("mismatch/log_perplexity_gap", 0.0) < 1e-4 for step in steps)  # none without an update


def test_an_openenv_server_trains_unchanged_and_is_asked_what_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from foreign import digits_server

    monkeypatch.chdir(tmp_path)
    with digits_server(4) as address:
        steps = trained(
            "digits",
            f"""
[task]
source = "openenv:{address}"
turns = 2
size = 4
[rollout]
prompts_per_step = 2
samples_per_prompt = 2
max_tokens = 3
stop = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
""",
        )
        with pytest.raises(ResourceError, match=r"allows 4 sessions at the same time \(max_sessions\)"):
            check_server(address, 64, {})
    assert all(step["reward/missing"] == 0 for step in steps)
    assert all(step.get("mismatch/log_perplexity_gap", 0.0) < 1e-4 for step in steps)  # none without an update
