"""A frozen base in codes of 8 and 4 bits with an adapter, beside bfloat16: memory, likelihood, CPU seconds, accuracy.

`python benchmarks/coded_base.py [--folder DIR] [--only memory,likelihood,step,generation,shape] [--accuracy]` takes
SmolLM2-135M-Instruct (`hone fetch smollm2`), and prints one JSON line for each row. All of it runs on one thread; times
are CPU seconds, of which variants take turns. `--accuracy` (an hour or more) trains one-digit sums by GRPO with
products in bfloat16, on a base in 4 bits and on merged weights, from three seeds each (`--first-seed`), and judges both
on sums that neither saw.

The package's weights were rounded to 4 bits of another kind (Q4_1) before they were published, and are decoded to
bfloat16 here: that is the base, and what is told of accuracy is what a second rounding costs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from peers import PEERS_FOLDER
from real_model import model_folder
from tables import Row

from hone.core.random import generator
from hone.engine.native.library import NumberKind
from hone.engine.native.runner import NativeRunner
from hone.engine.work import DRAW, ForwardBatch, SamplerInput
from hone.learner.low_rank_parameters import LowRankParameters
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model, load_with_adapter
from hone.models.language.lora import ATTENTION_LAYERS, MLP_LAYERS, LoraAdapter, LoraConfig
from hone.models.language.tokenizers import load_tokenizer
from hone.models.packing import pack_rows
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.run_memory import RunDimensions, run_memory
from hone.planner.run_settings import adapter_copies, adapter_sizes
from hone.planner.training_step import StepSettings

RANK = 16
TEXTS = (Path(__file__).parents[1] / "README.md", Path(__file__).parents[1] / "docs" / "language" / "adapters.md")
BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "layers": 28,
    "heads": 12,
    "kv_heads": 2,
    "head_dim": 128,
}
"""The shape of Qwen2.5-1.5B."""
STEP_TOKENS = 512
ALL = (*ATTENTION_LAYERS, *MLP_LAYERS)
GIB = 1 << 30


def held_bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def adapted(folder: Path, dtype: str) -> LoraAdapter:
    """A base, its products in bfloat16, with an adapter that is not 0."""
    adapter = load_with_adapter(folder, LoraConfig(rank=RANK), seed=0, dtype=dtype)
    with torch.no_grad():
        for name, factor in adapter.factors():
            noise = generator(0, "benchmark", name).standard_normal(tuple(factor.shape), dtype=np.float32)
            factor.add_(2e-3 * torch.from_numpy(noise))
    adapter.merge()
    adapter.decoder.set_compute_dtype("bfloat16")
    return adapter


def text_rows(folder: Path, *, count: int) -> list[np.ndarray]:
    """English text in rows of 512 tokens."""
    tokenizer = load_tokenizer(folder)
    text = "".join(path.read_text(encoding="utf-8") for path in TEXTS)
    ids = np.array(tokenizer.backend.encode(text).ids, np.int32)[: 512 * count]
    return [ids[start : start + 512] for start in range(0, len(ids), 512)]


@torch.no_grad()
def logp_of(model: Decoder, row: np.ndarray) -> np.ndarray:
    """Log-probabilities of a row's tokens but the first, by the trainer."""
    hidden = model.hidden(pack_rows([row]))[:-1]
    return model.token_logprobs(hidden, torch.from_numpy(row[1:].astype(np.int64))).logp.numpy()


# ----------------------------------------------------------------------------------------------------------------- rows


def memory(folder: Path, *, quick: bool) -> Iterator[Row]:
    del quick
    whole = held_bytes(load_model(folder, dtype="bfloat16"))
    for dtype, bar in (("int8", 0.55), ("int4", 0.30)):
        share = held_bytes(load_model(folder, dtype=dtype)) / whole
        yield Row(
            row=f"memory of SmolLM2's weights in {dtype}, trainer and engine together, of bfloat16's in one of them",
            value=share,
            unit="",
            bar=f"<= {bar}",
            met=share <= bar,
        )


def likelihood(folder: Path, *, quick: bool) -> Iterator[Row]:
    rows = text_rows(folder, count=4 if quick else 16)
    nll: dict[str, float] = {}
    for dtype in ("bfloat16", "int8", "int4"):
        model = load_model(folder, dtype=dtype)
        model.set_compute_dtype("bfloat16")
        nll[dtype] = -float(np.concatenate([logp_of(model, row) for row in rows]).mean())
        bar = 0.02 if dtype == "int8" else None
        lost = nll[dtype] - nll["bfloat16"]
        yield Row(
            row=f"negative log-likelihood of English text, base in {dtype}",
            value=nll[dtype],
            unit="nats a token",
            peer="bfloat16",
            peer_value=nll["bfloat16"],
            bar=bar and f"<= {bar} more",
            met=bar and lost <= bar,
        )
    for dtype in ("int8", "int4"):
        decoder = adapted(folder, dtype).decoder
        runner = runner_of(decoder)
        theirs = scored(runner, rows[0])
        low = logp_of(decoder, rows[0])
        decoder.set_compute_dtype("float32")
        exact = logp_of(decoder, rows[0])
        gap, own = float(np.abs(theirs - exact).mean()), float(np.abs(low - exact).mean())
        yield Row(
            row=f"engine against a float32 trainer, base in {dtype} with an adapter, mean distance of a token's "
            "log-probability",
            value=gap,
            unit="nats",
            peer="the trainer with bfloat16 products",
            peer_value=own,
            ratio=gap / own,
            bar="<= 1e-3",
            met=gap <= 1e-3,
        )


def turns(jobs: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Least CPU seconds of each job, in turns."""
    found = {name: float("inf") for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            found[name] = min(found[name], time.process_time() - start)
    return found


def step(folder: Path, *, quick: bool) -> Iterator[Row]:
    draws = np.random.default_rng(0)
    rows = [draws.integers(0, 49_152, 256).astype(np.int32) for _ in range(4)]
    jobs = {dtype: sft_step(adapted(folder, dtype), rows) for dtype in ("float32", "int8", "int4")}
    found = turns(jobs, rounds=3 if quick else 6)
    for dtype in ("int8", "int4"):
        yield Row(
            row=f"LoRA SFT step of {sum(map(len, rows))} tokens, base in {dtype}",
            value=found[dtype],
            unit="CPU s",
            peer="merged float32 weights, both with bfloat16 products",
            peer_value=found["float32"],
            ratio=found[dtype] / found["float32"],
            bar="<= 1.1",
            met=found[dtype] <= 1.1 * found["float32"],
        )


def sft_step(adapter: LoraAdapter, rows: list[np.ndarray]) -> Callable[[], None]:
    """One optimizer step of imitation."""
    store = LowRankParameters(adapter)
    optimizer = torch.optim.AdamW([factor for _, factor in adapter.factors()], lr=1e-4, fused=True)
    packed, tokens = pack_rows(rows), torch.from_numpy(np.concatenate(rows).astype(np.int64))

    def take() -> None:
        with store.collect_gradients():
            hidden = adapter.decoder.hidden(packed)[:-1]
            (-adapter.decoder.token_logprobs(hidden, tokens[1:]).logp.mean()).backward()
        optimizer.step()
        adapter.merge()

    return take


def generation(folder: Path, *, quick: bool) -> Iterator[Row]:
    plain = runner_of(load_model(folder, dtype="bfloat16"))
    runners = {"bfloat16": plain}
    for dtype in ("int8", "int4"):
        decoder = adapted(folder, dtype).decoder
        runners |= {dtype: runner_of(decoder), f"{dtype}, activations in 8 bits": runner_of(decoder, "int8")}
    for count in (1, 16):
        jobs = {name: decoding(runner, count) for name, runner in runners.items()}
        found = turns(jobs, rounds=3 if quick else 6)
        for name in list(found)[1:]:
            yield Row(
                row=f"decoding, {count} sequences, base in {name}, with an adapter",
                value=TOKENS * count / found[name],
                unit="tokens a CPU s",
                peer="bfloat16 without one",
                peer_value=TOKENS * count / found["bfloat16"],
                ratio=found["bfloat16"] / found[name],
            )


TOKENS = 24


def runner_of(model: Decoder, dtype: NumberKind | None = None) -> NativeRunner:
    runner = NativeRunner(model, vocab_used=model.config.vocab_size, threads=1, dtype=dtype)
    runner.publish()
    runner.reserve(16 * 32)
    return runner


def draws_of(at: np.ndarray, given: np.ndarray | None = None) -> SamplerInput:
    rows = len(at)
    return SamplerInput(
        token_index=at.astype(np.int32),
        forced_token=np.full(rows, DRAW, np.int32) if given is None else given,
        uniform=np.zeros(rows),
        temperature=np.ones(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        greedy=np.ones(rows, np.bool_),
    )


def scored(runner: NativeRunner, row: np.ndarray) -> np.ndarray:
    count = len(row)
    work = ForwardBatch(
        tokens=row,
        positions=np.arange(count, dtype=np.int32),
        sequence=np.zeros(count, np.int32),
        pages=np.arange(-(-count // 16), dtype=np.int32)[None],
        draws=draws_of(np.arange(count - 1), row[1:]),
    )
    return runner.run(work).logp


def decoding(runner: NativeRunner, count: int) -> Callable[[], None]:
    """TOKENS passes of one token for each of `count` sequences, from position 64 on."""
    pages = np.arange(count * 8, dtype=np.int32).reshape(count, 8)

    def decode() -> None:
        token = np.arange(count, dtype=np.int32) + 100
        for number in range(TOKENS):
            work = ForwardBatch(
                tokens=token,
                positions=np.full(count, 64 + number, np.int32),
                sequence=np.arange(count, dtype=np.int32),
                pages=pages,
                draws=draws_of(np.arange(count)),
            )
            token = runner.run(work).token.astype(np.int32)

    return decode


def shape(folder: Path, *, quick: bool) -> Iterator[Row]:
    """The memory of a LoRA step on a base of 1.5 billion random weights, in a process of its own."""
    del folder, quick
    program = [sys.executable, str(Path(__file__)), "--shape-step"]
    told = subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ)
    facts = json.loads(told.stdout.splitlines()[-1])
    planned = planned_bytes() / GIB
    measured = facts["peak"] / GIB
    yield Row(
        row="memory of weights of a base of 1.54 billion in 4 bits, of bfloat16's",
        value=facts["weights"] / facts["bfloat16"],
        unit="",
        bar="<= 0.30",
        met=facts["weights"] <= 0.30 * facts["bfloat16"],
    )
    yield Row(
        row=f"LoRA SFT step of {STEP_TOKENS} tokens on it, peak beyond the interpreter's",
        value=measured,
        unit="GiB",
        peer="planned",
        peer_value=planned,
        ratio=measured / planned,
        bar="<= 24 GiB",
        met=measured <= 24,
    )


def planned_bytes() -> int:
    sizes = PlannedDecoder(
        family="qwen2",
        layers=BILLION["layers"],
        hidden=BILLION["hidden_size"],
        heads=BILLION["heads"],
        kv_heads=BILLION["kv_heads"],
        head_dim=BILLION["head_dim"],
        intermediate=BILLION["intermediate_size"],
        vocab=BILLION["vocab_size"],
        tied=True,
        qkv_bias=True,
    )
    trained, _ = adapter_sizes(sizes, RANK, "all")
    settings = StepSettings(
        tokens=STEP_TOKENS,
        text_tokens=STEP_TOKENS,
        compute="bfloat16",
        code_bits=4,
        update_rank=7 * RANK,
        update_numbers=sizes.update_numbers(RANK, ALL),
        trained_vocabulary=False,
    )
    run = RunDimensions(
        shape=sizes, step=settings, trained_parameters=trained, copies=adapter_copies(trained, 0, "float32")
    )
    return run_memory(run).peak_bytes


def shape_step() -> None:
    """Make the base, take two steps, and print what they held."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # a process begins with the peak of its parent
    before = status_bytes("VmRSS")
    config = ModelConfig(family="qwen2", tie_embeddings=True, **BILLION)
    decoder = Decoder(config, dtype="int4")
    draws = np.random.default_rng(0)
    for parameter in decoder.parameters():
        if parameter.dtype == torch.uint8:
            codes = parameter.detach().split((parameter.shape[2] - 64, 64), dim=2)
            part = draws.integers(0, 256, (1, *codes[0].shape[1:]), np.uint8)
            codes[0].copy_(torch.from_numpy(part).expand(codes[0].shape))
            codes[1].view(torch.float16).fill_(2e-3)
    adapter = LoraAdapter(decoder, LoraConfig(rank=RANK).settings(config), base_folder=Path(), base_sha256="")
    adapter.initialise(seed=0)
    decoder.set_compute_dtype("bfloat16")
    take = sft_step(adapter, [draws.integers(0, config.vocab_size, STEP_TOKENS).astype(np.int32)])
    weights = sum(one.nbytes for name, one in decoder.named_parameters() if ".lora_" not in name)
    numbers = sum(one.numel() for one in dense_parameters(config))
    take()
    take()
    print(json.dumps({"weights": weights, "bfloat16": 2 * numbers, "peak": status_bytes("VmHWM") - before}))


def status_bytes(name: str) -> int:
    """A figure of this process's memory, by Linux."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def dense_parameters(config: ModelConfig) -> list[torch.Tensor]:
    with torch.device("meta"):
        return list(Decoder(config).parameters())


# ------------------------------------------------------------------------------------------------------------- accuracy


ACCURACY = """
recipe = "grpo"
seed = {seed}
steps = 40
name = "{name}"
task.source = "sums.jsonl"
rewards.functions = [{{ use = "exact_match" }}]
rollout = {{ prompts_per_step = 16, samples_per_prompt = 8, max_tokens = 6 }}
learner.lr = 2e-4
run.threads = 2
model = {{ path = "{folder}", weights = "{weights}", compute = "bfloat16", lora = {{ rank = 16 }} }}
evaluation.max_tokens = 6
evaluation.temperature = 0.0
evaluation.task.source = "held.jsonl"
evaluation.rewards.functions = [{{ use = "exact_match" }}]
"""


def accuracy(folder: Path, *, seeds: range) -> Iterator[Row]:
    """Accuracy on held-out one-digit sums after GRPO, by seeds, of a base in 4 bits beside merged weights.

    Both multiply in bfloat16. An adapter is never merged into weights in bfloat16, which would round it away."""
    place = folder.parent / "accuracy"
    place.mkdir(exist_ok=True)
    sums = [
        {"messages": [{"role": "user", "content": f"{a}+{b}=? Answer with the number only."}], "answer": str(a + b)}
        for a in range(10)
        for b in range(10)
    ]
    order = np.random.default_rng(0).permutation(100)
    for name, part in (("sums", order[:80]), ("held", order[80:])):
        rows = [{"prompt": sums[i]["messages"], "answer": sums[i]["answer"]} for i in part]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found: dict[str, list[float]] = {"float32": [], "int4": []}
    for seed in seeds:
        for weights, scores in found.items():
            name = f"{weights}-{seed}"
            toml = ACCURACY.format(seed=seed, name=name, folder=folder.resolve(), weights=weights)
            (place / f"{name}.toml").write_text(toml, encoding="utf-8")
            subprocess.run([sys.executable, "-m", "hone", "train", f"{name}.toml"], cwd=place, check=True)
            told = (place / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            scores.append(next(row["eval/score"] for row in map(json.loads, reversed(told)) if "eval/score" in row))
    low, high = min(found["float32"]), max(found["float32"])
    value = float(np.mean(found["int4"]))
    yield Row(
        row="accuracy on 20 held-out one-digit sums after 40 GRPO steps, base in 4 bits",
        value=value,
        unit="",
        low=min(found["int4"]),
        high=max(found["int4"]),
        seeds=len(seeds),
        peer="merged weights, products in bfloat16",
        peer_value=float(np.mean(found["float32"])),
        bar=f"within the seeds' {low:.2f} to {high:.2f}",
        met=low <= value <= high,
    )


ROWS = {"memory": memory, "likelihood": likelihood, "step": step, "generation": generation, "shape": shape}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and less text")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, by their names")
    parser.add_argument("--accuracy", action="store_true", help="the accuracy after GRPO, by seeds, and nothing else")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of --accuracy")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--folder", type=Path, default=PEERS_FOLDER / "real_model", help="where the model lies")
    parser.add_argument("--shape-step", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.shape_step:
        return shape_step()
    folder = model_folder(asked.folder)
    found = (
        [accuracy(folder, seeds=range(asked.first_seed, asked.first_seed + asked.seeds))]
        if asked.accuracy
        else [ROWS[name](folder, quick=asked.quick) for name in asked.only.split(",")]
    )
    for row in (row for part in found for row in part):
        print(json.dumps(asdict(row)), flush=True)
    return None


if __name__ == "__main__":
    main()
