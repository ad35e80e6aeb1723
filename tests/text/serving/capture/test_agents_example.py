"""The agent of examples/agents/, trained for some steps by the address that it calls."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.slow  # a training run of a dozen steps against an agent in a process of its own
def test_the_example_learns_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "agents", tmp_path / "agents")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started: list[subprocess.Popen[str]] = []
    ended = threading.Event()

    def start_agent() -> None:
        while not ended.is_set():
            try:
                urllib.request.urlopen(f"http://{address}/health", timeout=5).close()
            except OSError:
                time.sleep(0.05)
                continue
            command = [sys.executable, "agents/digits_agent.py", f"http://{address}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
            return

    starter = threading.Thread(target=start_agent)
    starter.start()
    try:
        options = [f'task.source="agents:{address}"', "steps=4"]
        assert main(["train", "agents/digits.toml", *options]) == 0
        said, _ = started[0].communicate(timeout=300)
    finally:
        ended.set()
        starter.join()
        for one in started:
            one.kill()
    assert said.startswith("no more dialogues: ")
    lines = [json.loads(line) for line in Path("runs/digits/metrics.jsonl").read_text().splitlines()]
    assert [(line["capture/requests"], line["capture/rows"]) for line in lines] == [(2.0, 1.0)] * 4
    assert lines[-1]["reward/mean"] > lines[0]["reward/mean"] + 0.1
