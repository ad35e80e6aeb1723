"""Reward functions that reach for the trainer and the run: they become errors, and the run goes on."""

import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tiny_runs import lay_out, start

from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.workers import RewardBatch, RewardWorkerPool

HELD = subprocess.run(
    [sys.executable, "-m", "hone.process.confine"], capture_output=True, text=True, check=True
).stdout.splitlines()
pytestmark = pytest.mark.skipif(not all(HELD), reason="this system cannot hold both limits")

HARM = '''
import os, pathlib

def kills(completions, **columns):
    """Kills the trainer for an answer that begins with 1, without a word."""
    return [(os.kill(os.getppid(), 9) or 0.0) if text.startswith("1") else 0.5 * len(text) for text in completions]

def overwrites(completions, **columns):
    metrics = next(pathlib.Path("runs").rglob("metrics.jsonl"))
    return [metrics.write_text("mine") * 0.0 if text.startswith("1") else 0.5 * len(text) for text in completions]
'''
ORDINARY = """
import multiprocessing, os, pathlib, subprocess, sys, tempfile, threading, urllib.request

def ordinary(completion, url, shared):
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        file.write(b"x")
    pathlib.Path("cache.txt").write_text("x")
    pathlib.Path(shared, "cache.txt").write_text("x")
    pathlib.Path(shared, "cache.txt").unlink()
    held = [pathlib.Path("cache.txt").read_text() == "x"]
    held.append(urllib.request.urlopen(url).read() == b"hello")
    held.append(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n")
    child = subprocess.Popen(["sleep", "100"])
    child.terminate()
    held.append(child.wait() == -15)
    thread = threading.Thread(target=held.append, args=(True,))
    thread.start()
    thread.join()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        held.append(pool.map(abs, [-1, -2]) == [1, 2])
    os.kill(os.getpid(), 0)
    return float(sum(held))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    (tmp_path / "harm.py").write_text(HARM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_harm_is_an_error_score_with_its_reason_and_the_run_goes_on(folder: Path) -> None:
    functions = 'rewards.functions=[{use="harm.py:kills"}, {use="harm.py:overwrites"}]'
    process = start(
        folder, "train", "grpo.toml", functions, "steps=2", "user_code.missing_allowed=1.0", "run.certify=false"
    )
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    run = folder / "runs" / "tiny"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert 0 < lines[0]["reward/missing"] < 1
    log = (run / "log.txt").read_text()
    assert "PermissionError: [Errno 1]" in log
    assert "OSError: [Errno 30] Read-only file system" in log


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("confined", [True, False])
def test_an_ordinary_function_works_as_ever(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, confined: bool
) -> None:
    (folder / "ordinary.py").write_text(ORDINARY)
    (folder / "runs" / "mine").mkdir(parents=True)
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    columns = {"url": [f"http://127.0.0.1:{server.server_port}/"], "shared": [str(tmp_path_factory.mktemp("shared"))]}
    settings = {"functions": [{"use": "ordinary.py:ordinary"}]}
    with RewardWorkerPool(RewardsConfig.model_validate(settings), UserCodeConfig(workers=1, confined=confined)) as pool:
        pool.write_protect(folder / "runs" / "mine")
        scores = pool.score(RewardBatch(prompts=["?"], completions=["a"], columns=columns))
        assert pool.warnings == pool.notices == []
    server.shutdown()
    server.server_close()
    assert scores.reasons == ("",)
    assert scores.score.tolist() == [6.0]


def test_a_replaced_worker_is_confined_too_and_the_key_turns_it_off(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "writes.py").write_text(
        "import os, pathlib\n"
        "def writes(completion):\n"
        "    if completion == 'dies':\n        os._exit(1)\n"
        "    pathlib.Path('run', completion).write_text('x')\n"
        "    return 1.0\n"
        "def fine(completion):\n    return 1.0\n"
    )
    batch = RewardBatch(prompts=["?"] * 3, completions=["a", "dies", "b"], columns={})
    for confined, status in ((True, [2, 2, 2]), (False, [0, 2, 0])):
        functions = [{"use": "writes.py:fine"}, {"use": "writes.py:writes"}]
        settings = {"functions": functions}
        with RewardWorkerPool(
            RewardsConfig.model_validate(settings), UserCodeConfig(workers=1, confined=confined)
        ) as pool:
            pool.write_protect(folder / "run")
            if confined:
                columns, _ = pool.results([pool.submit(RewardBatch(prompts=[], completions=[], columns={}))])
                assert columns == [[], []]
            pool._stats[1].has_succeeded = True
            assert pool.score(batch).status.tolist() == status
    assert sorted(path.name for path in (folder / "run").iterdir()) == ["a", "b"]


PLAIN = """
from hone.rewards.config import RewardsConfig
from hone.rewards.config import UserCodeConfig
from hone.rewards.workers import RewardBatch
from hone.rewards.workers import RewardWorkerPool
for confined in (True, False):
    config = RewardsConfig.model_validate({"functions": [{"use": "exact_match"}]})
    with RewardWorkerPool(config, UserCodeConfig(workers=2, confined=confined)) as pool:
        scores = pool.score(RewardBatch(prompts=["?"], completions=["a"], columns={"answer": ["a"]}))
        print(scores.score.tolist(), pool.warnings)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare(1)")
def test_a_limit_that_the_system_lacks_is_one_warning_and_breaks_nothing(folder: Path) -> None:
    (folder / "plain.py").write_text(PLAIN)
    switch_off = "echo 0 > /proc/sys/user/max_user_namespaces"
    result = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", f"{switch_off} && exec {sys.executable} plain.py"],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    if "max_user_namespaces" in result.stderr:
        pytest.skip("this system does not let namespaces be switched off")
    confined, free = result.stdout.splitlines()
    assert confined.startswith("[1.0] [\"reward functions are not fully confined: the run's folder stays writable")
    assert "user_code.confined = false" in confined
    assert free == "[1.0] []"
