"""Measurements of the training service: a JSON line a row.

    python benchmarks/training_service.py [--base DIR] [--cookbook PYTHON] [--only WORD ...]

`--base` is a model folder of Hugging Face, SmolLM2 say; without it a tiny one is made. `--cookbook` names the python of
an environment with tinker-cookbook, whose loops then run unchanged with data made here.
Times are processor seconds, in turns, and ratios of them.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import torch
from starlette.testclient import TestClient
from tables import Row, tell
from tinker.proto import tinker_public_pb2 as wire

from hone.core.clock import SystemClock
from hone.core.generation import Request, SamplingParams
from hone.engine.open_engine import EngineSize, open_engine
from hone.engine.protocol import RunnerKind, UnmergedAdapter
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.text.evaluate.engine_actor import tokenizer_rules
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.training_service.learner import AdapterShape, ServedBase
from hone.text.training_service.ledger import ModelRecord, RequestRecord
from hone.text.training_service.messages import PROTOBUF
from hone.text.training_service.rows import TrainedRow
from hone.text.training_service.run_training_service import TrainingService, _base, open_training_service
from hone.text.training_service.service_config import ServedBaseConfig, TrainingServiceConfig

PREFIX = "/api/v1"
KILLS = 30
TOGETHER = 8


def tiny_base(folder: Path) -> Path:
    """A model folder with random weights, one token a byte."""
    tokenizer = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2,
        head_dim=16, max_positions=512, tie_embeddings=True,
    )  # fmt: skip
    TokenPolicy(new_model(config, seed=3), tokenizer).save_merged(folder)
    return folder


def opened_base(folder: Path) -> tuple[ServedBase, TokenPolicy]:
    policy = open_policy(ModelSource(path=str(folder), compute="float32"), seed=0, device="cpu", temperature=1.0)
    return _base(policy, str(folder)), policy


# ------------------------------------------------------------------------------------------------------------ together


def adapters_of(base: ServedBase, count: int) -> list:
    """Adapters of rank 8 that differ from the base."""
    made = []
    for seed in range(count):
        adapter = base.adapter(AdapterShape(rank=8).settings(base.rows.decoder)).initialise(seed=seed)
        draws = torch.Generator().manual_seed(seed)
        for name, factor in adapter.factors():
            if "lora_B" in name:
                factor.data.normal_(0, 0.01, generator=draws)
        made.append(adapter)
    return made


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def training_together(base: ServedBase, tokens: int) -> Iterator[Row]:
    """Rows of several adapters in one pass against one after another, and their bits."""
    draws = np.random.default_rng(0)
    rows = [
        TrainedRow(adapter=one, tokens=ids[:-1], targets=ids[1:], loss=lambda logp: -logp.sum())
        for one, ids in zip(
            adapters_of(base, TOGETHER), draws.integers(3, base.rows.vocab_used, (TOGETHER, tokens + 1)), strict=True
        )
    ]
    alone = [base.rows.compute([row], gradients=True)[0] for row in rows]
    mixed = base.rows.compute(rows, gradients=True)
    same = sum(
        np.array_equal(a.logprobs, b.logprobs)
        and all(torch.equal(x, y) for x, y in zip(a.gradient or [], b.gradient or [], strict=True))
        for a, b in zip(alone, mixed, strict=True)
    )
    yield Row(row=f"bits of {tokens}-token rows beside 7 others", value=same, unit="of 8", bar="all", met=same == 8)
    ratios = []
    for _ in range(3):
        one = cpu_s(lambda: [base.rows.compute([row], gradients=True) for row in rows])
        ratios.append(one / cpu_s(lambda: base.rows.compute(rows, gradients=True)))
    ratio = float(np.median(ratios))
    yield Row(row=f"training, 8 adapters together, {tokens} tokens each", value=ratio, unit="x one after another",
              bar=">= 1.3", met=ratio >= 1.3)  # fmt: skip


def sampling_together(policy: TokenPolicy, base: ServedBase, tokens: int, runner: RunnerKind) -> Iterator[Row]:
    """Answers of several adapters in the same passes against one after another, and their bits."""
    if runner == "torch":
        base.rows.prepare(256)
    engine = open_engine(policy.decoder, tokenizer_rules(policy), size=EngineSize(slots=TOGETHER, sequence_tokens=256),
                         seed=0, runner=runner)  # fmt: skip
    engine.publish(0)
    for number, one in enumerate(adapters_of(base, TOGETHER)):
        engine.add_adapter(f"a{number}", UnmergedAdapter(product=one.added_product, factors=one.stacked_factors))

    def asked(turn: str) -> list[Request]:
        sampling = SamplingParams(max_tokens=tokens, stop_tokens=())
        return [
            Request(id=f"{turn} {number}", draw_id=str(number), prompt=np.arange(5, 13, dtype=np.int32), samples=1,
                    sampling=sampling, adapter=f"a{number}")
            for number in range(TOGETHER)
        ]  # fmt: skip

    answers: dict[str, list[list[int]]] = {"together": [], "alone": []}

    def take(kind: str, requests: list[Request]) -> None:
        engine.submit(requests)
        taken = {}
        while (answer := engine.next_completion()) is not None:
            taken[answer.request_id] = answer.tokens.tolist()
        answers[kind] += [taken[one.id] for one in requests]

    ratios = []
    for turn in range(3):
        one = cpu_s(lambda turn=turn: [take("alone", [request]) for request in asked(f"alone {turn}")])
        ratios.append(one / cpu_s(lambda turn=turn: take("together", asked(f"together {turn}"))))
    same = sum(a == b for a, b in zip(*answers.values(), strict=True))
    yield Row(row=f"bits of answers beside 7 others, {runner}", value=same, unit="of 24", bar="all", met=same == 24)
    ratio = float(np.median(ratios))
    yield Row(row=f"sampling, 8 adapters together, {tokens} tokens each, {runner}", value=ratio,
              unit="x one after another", bar=">= 2.5", met=ratio >= 2.5)  # fmt: skip


def memory(base: ServedBase) -> Iterator[Row]:
    """Bytes and time of an adapter."""
    base.rows.prepare(256)
    settings = AdapterShape(rank=8).settings(base.rows.decoder)
    adapters = [base.adapter(settings).initialise(seed=seed) for seed in range(8)]
    numbers = sum(factor.numel() for _, factor in adapters[0].factors())
    mib = 12 * numbers / 2**20  # with both moments
    yield Row(row="an adapter with its optimizer, rank 8", value=mib, unit="MiB", bar="<= 35", met=mib <= 35)
    spent = cpu_s(lambda: [base.adapter(settings).initialise(seed=seed) for seed in range(8)]) / 8
    yield Row(row="create_model", value=spent, unit="CPU s", bar="<= 0.2", met=spent <= 0.2)


# --------------------------------------------------------------------------------------------------------------- kills


@dataclass
class Server:
    """`hone serve training` in a process that may be killed."""

    file: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "hone", "serve", "training", str(self.file), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def new_server(folder: Path, base: Path, names: list[str]) -> Server:
    file = folder / "service.toml"
    file.write_text(f'folder = "store"\n[model]\npath = "{base}"\nnames = {json.dumps(names)}\ncontext = 256\n')
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return Server(file, one.getsockname()[1])


def plan_of(session: str, steps: int) -> list[tuple[str, object]]:
    """Calls of a training: passes and steps, numbered."""
    model, number = f"{session}:train:0", 0
    lora = {"rank": 4, "seed": 1}
    plan: list[tuple[str, object]] = [
        ("create_model", {"session_id": session, "model_seq_id": 0, "base_model": "base", "lora_config": lora})
    ]
    for step in range(steps):
        ids = np.random.default_rng(step).integers(5, 100, 9)
        data = wire.Datum(
            model_input=[wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=ids[:-1].astype(np.int32).tobytes()))],
            loss_fn_inputs={
                "target_tokens": wire.Tensor(dense=ids[1:].tobytes(), dtype=wire.DTYPE_INT64, shape=[8]),
            },
        )
        message = wire.ForwardBackwardRequest(model_id=model, seq_id=number + 1, data=[data], loss_fn="cross_entropy")
        adam = {"model_id": model, "seq_id": number + 2, "adam_params": {"learning_rate": 1e-2}}
        plan += [("forward_backward", message.SerializeToString()), ("optim_step", adam)]
        number += 2
    return plan


def patient(http: httpx2.Client, url: str, body: object, revive: Callable[[], None]) -> httpx2.Response:
    """Post as the SDK does: again, where the server is away."""
    kind = PROTOBUF if isinstance(body, bytes) else "application/json"
    while True:
        try:
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = http.post(url, headers={"x-api-key": "k", "content-type": kind}, **sent)
            if answer.status_code < 500 and answer.status_code != 408:
                return answer
        except httpx2.TransportError:
            revive()
        time.sleep(0.05)


def kills(folder: Path, base: Path) -> Iterator[Row]:
    """The service killed between calls, with a request on its way: what was acknowledged is there, to the bit."""
    server = new_server(folder, base, ["base"])
    server.start()
    http, killed = httpx2.Client(timeout=60), 0

    def revive() -> None:
        if server.process is not None and server.process.poll() is not None:
            server.start()

    session = patient(http, f"{server.url}{PREFIX}/create_session", {}, revive).json()["session_id"]
    results = []
    for path, body in plan_of(session, KILLS // 2):
        promise = patient(http, f"{server.url}{PREFIX}/{path}", body, revive).json()
        if killed < KILLS:
            server.kill()
            killed += 1
            server.start()
        results.append(patient(http, f"{server.url}{PREFIX}/retrieve_future", promise, revive).content)
    server.stop()
    kept = final_state(open_store(folder, base))
    other = folder / "undisturbed"
    other.mkdir()
    service = open_store(other, base)
    expected = undisturbed(service)
    yield Row(row="kills of the service between any two calls", value=killed, unit="kills", bar=f">= {KILLS}",
              met=killed >= KILLS)  # fmt: skip
    same = sum(a == b for a, b in zip(results[1:], expected[1:], strict=True))
    yield Row(row="results as without a kill", value=same, unit=f"of {len(results) - 1}", bar="all",
              met=same == len(results) - 1)  # fmt: skip
    equal = final_state(service) == kept
    yield Row(row="adapter and optimizer as without a kill", value=float(equal), unit="equal bits", bar="1", met=equal)


def open_store(folder: Path, base: Path) -> TrainingService:
    config = TrainingServiceConfig(folder="store", model=ServedBaseConfig(path=str(base), names=["base"], context=256))
    return open_training_service(config, beside=folder, clock=SystemClock())


def undisturbed(service: TrainingService) -> list[bytes]:
    """Results of the same calls in this process."""
    service.start()
    http, ledger = TestClient(service.routes.app()), service.desk.ledger
    made = http.post(f"{PREFIX}/create_session", json={}).json()["session_id"]
    results = []
    for path, body in plan_of(made, KILLS // 2):
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        promise = http.post(f"{PREFIX}/{path}", **sent).json()
        http.post(f"{PREFIX}/retrieve_future", json=promise)
        record = ledger.find(RequestRecord, promise["request_id"])
        assert record is not None and record.result is not None
        results.append(record.result)
    return results


def final_state(service: TrainingService) -> bytes:
    """All numbers of the only model of a store."""
    (model,) = service.desk.ledger.records(ModelRecord, {})
    with service.trainer.computing:
        trained = service.trainer._model(model.id)
    arrays = [trained.parameters.data.detach(), *trained.optimizer.means, *trained.optimizer.squares]
    service.lock.release()
    return b"".join(one.numpy().tobytes() for one in arrays)


# ------------------------------------------------------------------------------------------------------------ cookbook

QUESTIONS = (
    ("Name a colour.", "Blue is a colour."), ("Count to three.", "One, two, three."), ("What is 2+2?", "2+2 is 4."),
    ("Say hello.", "Hello there, friend."), ("Name a fruit.", "An apple is a fruit."), ("Name a day.", "Monday."),
    ("Where is Paris?", "Paris is in France."), ("What is water?", "Water is a liquid."),
)  # fmt: skip
ALIAS = "Qwen/Qwen3-4B-Instruct-2507"
"""A name that the cookbook has a renderer for; the base answers to it."""
RL = """
import asyncio, sys
from functools import partial
import chz
from tinker_cookbook import renderers
from tinker_cookbook.rl import train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

class Vowels(ProblemEnv):
    def __init__(self, n, renderer):
        super().__init__(renderer, convo_prefix=None, format_coef=0.0)
        self.n = n
    def get_question(self): return f"Say something about {self.n}."
    def check_answer(self, text): return sum(c in "aeiou" for c in text) / max(1, len(text))
    def check_format(self, text): return True
    def get_reference_answer(self): return "vowels"

class Questions(RLDataset):
    def __init__(self, renderer, batches): self.renderer, self.batches = renderer, batches
    def get_batch(self, index):
        return [ProblemGroupBuilder(env_thunk=partial(Vowels, n, self.renderer), num_envs=8) for n in range(2)]
    def __len__(self): return self.batches

@chz.chz
class Builder(RLDatasetBuilder):
    model: str
    async def __call__(self):
        return Questions(renderers.get_renderer("qwen3_instruct", get_tokenizer(self.model)), 12), None

url, model, log = sys.argv[1:4]
config = train.Config(
    learning_rate=1e-3, dataset_builder=Builder(model=model), model_name=model, recipe_name="vowels", max_tokens=12,
    log_path=log, eval_every=0, save_every=3, lora_rank=8, renderer_name="qwen3_instruct", base_url=url,
)
asyncio.run(train.main(config))
"""


def cookbook(folder: Path, base: Path, python: str) -> Iterator[Row]:
    """The cookbook's supervised loop and `rl.train`, SDK and cookbook unchanged, with local data."""
    server = new_server(folder, base, [ALIAS])
    server.start()
    place = folder / "work"
    (place / "Qwen").mkdir(parents=True)
    (place / ALIAS).symlink_to(base.resolve())
    data = place / "HuggingFaceH4" / "no_robots"
    data.mkdir(parents=True)
    for split in ("train", "test"):
        lines = [
            {"prompt": ask, "prompt_id": str(number), "category": "x",
             "messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
            for number, (ask, answer) in enumerate(QUESTIONS * 4)
        ]  # fmt: skip
        (data / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {**os.environ, "TINKER_API_KEY": "tml-x", "TINKER_BASE_URL": server.url, "TINKER_TELEMETRY": "0",
                   "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hf")}  # fmt: skip
    loop = [python, "-m", "tinker_cookbook.recipes.sl_loop", f"base_url={server.url}", f"model_name={ALIAS}",
            "batch_size=4", "lora_rank=8", "learning_rate=1e-3", "max_length=128",
            f"log_path={place / 'sl'}"]  # fmt: skip
    done = subprocess.run(loop, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    losses = [one["train_mean_nll"] for one in metrics_of(place / "sl") if "train_mean_nll" in one]
    falls = done.returncode == 0 and losses[-1] < 0.5 * losses[0]
    shown = losses[-1] / losses[0] if losses else float("nan")
    yield Row(row=f"tinker-cookbook sl_loop, {len(losses)} steps", value=shown, unit="last loss / first",
              bar="<= 0.5, rc 0", met=falls)  # fmt: skip
    run = [python, "-c", RL, server.url, ALIAS, str(place / "rl")]
    done = subprocess.run(run, cwd=place, env=environment, capture_output=True, text=True, check=False)
    rewards = [one["env/all/reward/total"] for one in metrics_of(place / "rl") if "env/all/reward/total" in one]
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    third = len(rewards) // 3
    gain = float(np.mean(rewards[-third:]) - np.mean(rewards[:third])) if third else float("nan")
    yield Row(row=f"tinker-cookbook rl.train, {len(rewards)} batches", value=gain, unit="gain, last third over first",
              bar=">= 0.05, rc 0", met=done.returncode == 0 and gain >= 0.05)  # fmt: skip
    server.stop()


def metrics_of(folder: Path) -> list[dict[str, float]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--cookbook", default="")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=["together", "memory", "kills", "cookbook"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = options.base or tiny_base(place / "tiny")
        if {"together", "memory"} & set(options.only):
            base, policy = opened_base(folder)
            if "together" in options.only:
                tell(sampling_together(policy, base, options.tokens, "native"))  # the bitwise arithmetic stays
                tell(sampling_together(policy, base, options.tokens, "torch"))
                tell(training_together(base, options.tokens))
            if "memory" in options.only:
                tell(memory(base))
        if "kills" in options.only:
            (place / "kills").mkdir()
            tell(kills(place / "kills", tiny_base(place / "small")))
        if "cookbook" in options.only and options.cookbook:
            (place / "cookbook").mkdir()
            tell(cookbook(place / "cookbook", folder, options.cookbook))


if __name__ == "__main__":
    main()
