"""The example of a critic: imitation, then PPO with rewards per step, as the command runs it."""

from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.clock import SystemClock
from hone.run.store.folder import open_run

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "critics" / "ppo_text.toml"
SMALLER = {
    "steps = 500": "steps = 2",
    "steps = 60": "steps = 2",
    "batch = 48": "batch = 8",
    "size = 20000": "size = 40",
    "prompts_per_step = 64": "prompts_per_step = 4",
    "max_tokens = 60": "max_tokens = 12",
    "warmup_steps = 8": "warmup_steps = 1",
    "hidden_size = 64": "hidden_size = 16",
}


@pytest.mark.slow  # two runs and reasoning-gym in their processes
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    for line, smaller in SMALLER.items():
        assert line in text
        text = text.replace(line, smaller)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo_text.toml").write_text(text, encoding="utf-8")
    assert main(["train", "ppo_text.toml"]) == 0
    metrics = open_run(tmp_path / "runs" / "critics" / "ppo", clock=SystemClock()).metrics_path.read_text(
        encoding="utf-8"
    )
    assert '"critic/warming_up": 1.0' in metrics and '"critic/warming_up": 0.0' in metrics
