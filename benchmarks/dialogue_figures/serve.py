"""`hone serve`: lm-eval over HTTP against `hone eval`, connections that are closed, and the price of HTTP.

Throughput is tokens per CPU second of the process that serves, against the same requests by `generate` on the same
engine, with one thread: other work on the machine does not count. lm-eval runs in an environment of its own
(`python benchmarks/peers.py serving`); a quick run leaves it out.
"""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import uvicorn
from demonstrations import Bar
from peers import require_peer
from serve_load import body
from text_runs import MODEL, run_recipe, write_rows

from hone.core.generation import Request, SamplingParams, generate
from hone.engine.engine import EmbeddedEngine
from hone.evaluate.checkpoint import evaluate_checkpoint
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import byte_tokenizer
from hone.text.evaluate.evaluation_request import EvaluationTask
from hone.text.serving.completions.run_server import OpenedModel, ServedSource, ServerPlace, make_routes, open_served
from hone.text.serving.completions.service import EngineService

TITLE = "hone serve"
SEEDS = (100, 101, 102)
CONNECTIONS = 64
BARS = (
    Bar(figure="lm-eval minus hone eval, accuracy", at_least=0.0, at_most=0.0),
    Bar(figure="pages held after disconnects", at_most=0.0),
    Bar(figure="tokens per CPU second over generate, 64 connections", at_least=0.9),
)
FOLDER = Path(__file__).resolve().parents[1]
LM_EVAL = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: held.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
generation_kwargs: {until: ["="], max_gen_toks: 3, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed; `quick` serves a small model for a moment."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = _throughput(folder / "speed", seed, quick=quick)
        found |= _disconnects(folder / "speed", 100 if quick else 1000)
        found |= {"lm-eval minus hone eval, accuracy": float("nan")} if quick else _lm_eval(folder / "sums", seed)
    return found


@contextlib.contextmanager
def _served(policy: Path) -> Iterator[tuple[OpenedModel, int]]:
    """A server in a thread of this process, and its port."""
    source = ServedSource(policy=policy, run=None, name="served", device="cpu", slots=CONNECTIONS, context=0, seed=0)
    opened = open_served(source)
    service = EngineService(opened.engine)
    routes = make_routes(opened, service, ServerPlace())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(routes.app(), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        service.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield opened, listener.getsockname()[1]
        finally:
            service.close()
            server.should_exit = True
            thread.join()


def _throughput(folder: Path, seed: int, *, quick: bool) -> dict[str, float]:
    """A decoder of 5.6 million weights, which is small: the larger the model, the less HTTP costs beside it."""
    width, layers, requests, tokens = (64, 2, 64, 16) if quick else (384, 6, 192, 96)
    tokenizer = byte_tokenizer()
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=width, intermediate_size=2 * width, layers=layers,
        heads=width // 32, kv_heads=width // 64, head_dim=32, max_positions=512,
    )  # fmt: skip
    TokenPolicy(new_model(config, seed=seed), tokenizer).save_merged(folder)
    load = [sys.executable, FOLDER / "serve_load.py"]
    by_cpu, by_wall = list[float](), list[float]()
    with _served(folder) as (opened, port):
        _generate(opened.engine, requests // 4, tokens)
        for _ in range(1 if quick else 2):
            before = time.process_time()
            command = [*load, port, CONNECTIONS, requests, tokens]
            told = json.loads(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)
            served_s = time.process_time() - before
            opened.engine.publish(opened.engine.version)  # forgets the prompts that were read
            cpu_s, wall_s, drawn = _generate(opened.engine, requests, tokens)
            opened.engine.publish(opened.engine.version)
            assert drawn == told["tokens"], "the server draws what the engine draws"
            by_cpu.append(cpu_s / served_s)
            by_wall.append(wall_s / told["seconds"])
    return {
        "tokens per CPU second over generate, 64 connections": float(np.mean(by_cpu)),
        "tokens per second over generate, the machine as it was": float(np.mean(by_wall)),
    }


def _generate(engine: EmbeddedEngine, requests: int, tokens: int) -> tuple[float, float, int]:
    """CPU seconds, seconds and tokens of the same requests in process."""
    asked = list[Request]()
    for number in range(requests):
        prompt = np.array(body(number, tokens)["prompt"], np.int32)
        key = f"seed {number} of {hashlib.sha256(prompt.tobytes()).hexdigest()[:32]}"
        sampling = SamplingParams(max_tokens=tokens)
        asked.append(Request(id=str(number), prompt=prompt, samples=1, sampling=sampling, draw_id=key))
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    drawn = sum(len(one.tokens) for one in generate(engine, asked))
    return time.process_time() - cpu_s, time.perf_counter() - wall_s, drawn


def _disconnects(folder: Path, count: int) -> dict[str, float]:
    """Requests for long answers whose connection is closed."""
    with _served(folder) as (opened, port):
        for number in range(count):
            _hang_up(port, number)
        until = time.monotonic() + 60
        while opened.engine.has_requests() and time.monotonic() < until:
            time.sleep(0.05)
        return {"pages held after disconnects": float(opened.engine.held_pages)}


def _hang_up(port: int, number: int) -> None:
    """Ask for 1 to 4 answers and close the connection: at once, after a moment, or once a reply has begun."""
    asked = {**body(number, 400), "stream": number % 3 == 0, "n": 1 + number % 4}
    content = json.dumps(asked).encode()
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        link.sendall(content)
        if number % 5 == 0:
            time.sleep(0.01)
        if number % 6 == 0:
            link.recv(64)


def _lm_eval(folder: Path, seed: int) -> dict[str, float]:
    """A model that learnt sums in part: accuracy of greedy answers, by lm-eval over HTTP and by `hone eval`."""
    folder.mkdir()
    rows = [
        {"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a in range(30) for b in range(9)
    ]
    held = write_rows(folder / "held.jsonl", [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows])
    tables = {
        "seed": seed, "steps": 60, "batch": 64, "model": {"new": {**MODEL, "alphabet": "0123456789+="}},
        "task": {"source": write_rows(folder / "sums.jsonl", rows)}, "learner": {"lr": 2e-3},
    }  # fmt: skip
    run_recipe("sft", tables, policy := folder / "policy")
    (folder / "sums.yaml").write_text(LM_EVAL, encoding="utf-8")
    lm_eval = require_peer("serving").parent / "lm_eval"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    with _served(policy) as (_, port):
        arguments = f"model=served,base_url=http://127.0.0.1:{port}/v1/completions,tokenizer={policy},num_concurrent=8"
        command = [str(lm_eval), "--model", "local-completions", "--model_args", arguments, "--tasks", "sums"]
        command += ["--include_path", str(folder), "--output_path", str(folder / "out")]
        subprocess.run(command, cwd=folder, env={**kept, **offline}, capture_output=True, check=True)
    (written,) = (folder / "out").rglob("results_*.json")
    theirs = json.loads(written.read_text(encoding="utf-8"))["results"]["sums"]["exact_match,none"]
    task = EvaluationTask(task=held, rewards=("exact_match",), max_tokens=3)
    evaluation = evaluate_checkpoint(policy, run=None, problems=len(rows), seed=0, device="cpu", task=task)
    ours = evaluation.scores["eval/score"]
    return {"hone eval, accuracy": ours, "lm-eval minus hone eval, accuracy": theirs - ours}
