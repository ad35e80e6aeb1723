"""An environment of verifiers and an OpenEnv server, unchanged: 20 steps of GRPO from random weights in each.

Both stand in environments of their own (`peers.py verifiers`, `peers.py openenv`). The environment of verifiers asks
the policy by an address, with its own harness, and its rubric gives the reward; the server pays by itself. `gap`: mean
distance between the log-probability with which a token was drawn and the trainer's of the same token in its row; a
history that was encoded again would show there.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from demonstrations import Bar
from peers import require_peer
from text_runs import run_recipe

from hone.core.credit import Metrics

TITLE = "Environments of other libraries: verifiers and OpenEnv"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="verifiers: reward rises by", at_least=0.15),
    Bar(figure="OpenEnv: reward rises by", at_least=0.15),
    Bar(figure="largest gap, nats", at_most=1e-5),
)
STEPS, SESSIONS = 20, 128
ENVIRONMENTS = Path(__file__).resolve().parents[1] / "foreign_environments"
SMALL = {
    "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64,
    "max_positions": 64, "alphabet": "0123456789+=",
}  # fmt: skip


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Mean rewards of the first and the last three steps, and the largest gap of any step."""
    steps = 3 if quick else STEPS
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        told = {"verifiers": _verifiers(Path(name), seed, steps), "OpenEnv": _openenv(Path(name), seed, steps)}
    found: dict[str, float] = {}
    for library, each in told.items():
        rewards = [one["reward/mean"] for one in each]
        first, last = float(np.mean(rewards[:3])), float(np.mean(rewards[-3:]))
        found |= {f"{library}: first reward": first, f"{library}: last reward": last}
        found[f"{library}: reward rises by"] = last - first
    name = "mismatch/log_perplexity_gap"  # of steps that updated something
    gaps = [one[name] for each in told.values() for one in each if name in one]
    return {**found, "largest gap, nats": max(gaps)}


def _verifiers(folder: Path, seed: int, steps: int) -> list[Metrics]:
    python = require_peer("verifiers")
    shutil.copy(ENVIRONMENTS / "sums_env.py", folder)
    environment = {"agent": {"runtime": {"type": "subprocess"}}}
    task = {"source": "verifiers:sums_env", "agents": {"python": str(python)}, "options": environment}
    return _train(folder / "verifiers", {"task": task, "rollout": {"max_tokens": 1}}, seed, steps)


def _openenv(folder: Path, seed: int, steps: int) -> list[Metrics]:
    with digits_server(SESSIONS) as address:
        task = {"source": f"openenv:{address}", "turns": 2, "size": 4}
        # A turn ends with its digit: one that has none within three tokens is cut, and ends the dialogue.
        rollout = {"max_tokens": 3, "stop": list("0123456789")}
        return _train(folder / "openenv", {"task": task, "rollout": rollout}, seed, steps)


def _train(folder: Path, tables: dict[str, Any], seed: int, steps: int) -> list[Metrics]:
    told: list[Metrics] = []
    rollout = {"prompts_per_step": 4, "samples_per_prompt": 8, **tables["rollout"]}
    ratio = {"denominator": "recomputed", "diagnostics": True}
    config = {**tables, "rollout": rollout, "learner": {"lr": 5e-3, "ratio": ratio}}
    tables = {"steps": steps, "seed": seed, "model": {"new": SMALL, "compute": "float32"}, **config}
    run_recipe("grpo", tables, folder, after_step=told.append)
    return told


@contextlib.contextmanager
def digits_server(sessions: int) -> Iterator[str]:
    """The OpenEnv server of `digits_server.py` in a process of its own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    left = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(require_peer("openenv")), str(ENVIRONMENTS / "digits_server.py"), str(port), str(sessions)]
    server = subprocess.Popen(command, env=left)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                break
            assert server.poll() is None, "the server ended"
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(20)
