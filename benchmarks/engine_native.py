"""The compiled CPU runner by itself: tokens per second of a bare decode loop, against what matrix products alone allow.

    python benchmarks/engine_native.py                 models S and M, float32 and bfloat16, about a minute
    python benchmarks/engine_native.py --rows 256      more sequences at once
    python benchmarks/engine_native.py --isa avx2      another instruction set
    python benchmarks/engine_native.py --cpu           one thread, by its CPU time: for a machine that others use too

64 sequences with prompts of 24 tokens, 64 tokens each; no scheduler, so this is a ceiling for the engine. The bound is
the machine's rate of matrix products (torch, 1024 cubed, measured just before each row) over the model's operations for
a token. Medians of 5 repetitions. Prints one JSON line per row.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from hone.engine.native.runner import NativeRunner
from hone.engine.work import DRAW, ForwardBatch, SamplerInput
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model

PROMPT, NEW, REPEATS = 24, 64, 5
Clock = Callable[[], float]
"""Seconds: time.perf_counter, or time.process_time."""
MODELS = {
    "S": ModelConfig(family="llama", vocab_size=64, hidden_size=256, intermediate_size=704, layers=4, heads=4),
    "M": ModelConfig(family="llama", vocab_size=512, hidden_size=512, intermediate_size=1408, layers=8, heads=8),
}


def matmul_flops(dtype: torch.dtype, clock: Clock) -> float:
    """Operations per second of a large product."""
    a, b = torch.ones(1024, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    seconds: list[float] = []
    for _ in range(12):
        began = clock()
        a @ b
        seconds.append(clock() - began)
    return 2 * 1024**3 / statistics.median(seconds[2:])


def flops_per_token(model: Decoder) -> int:
    weights = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name)
    return 2 * (weights + model.output_weight.numel())


def draws_of(rows: int, at: np.ndarray) -> SamplerInput:
    return SamplerInput(
        token_index=at.astype(np.int32),
        forced_token=np.full(rows, DRAW, np.int32),
        uniform=np.random.default_rng(0).random(rows),
        temperature=np.ones(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        greedy=np.zeros(rows, np.bool_),
    )


def generate(runner: NativeRunner, rows: int, vocab: int, clock: Clock) -> tuple[float, float]:
    """Seconds of the prompts and of the decode loop."""
    most = -(-(PROMPT + NEW) // runner.page_tokens)
    pages = np.arange(rows * most, dtype=np.int32).reshape(rows, most)
    runner.reserve(pages.size)
    prompt = ForwardBatch(
        tokens=np.random.default_rng(1).integers(0, vocab, rows * PROMPT).astype(np.int32),
        positions=np.tile(np.arange(PROMPT, dtype=np.int32), rows),
        sequence=np.repeat(np.arange(rows, dtype=np.int32), PROMPT),
        pages=pages,
        draws=draws_of(rows, np.arange(rows) * PROMPT + PROMPT - 1),
    )
    began = clock()
    token = runner.run(prompt).token
    middle = clock()
    every = np.arange(rows, dtype=np.int32)
    step = replace(prompt, sequence=every, draws=draws_of(rows, every))
    for position in range(PROMPT, PROMPT + NEW):
        positions = np.full(rows, position, np.int32)
        token = runner.run(replace(step, tokens=token, positions=positions)).token
    return middle - began, clock() - middle


def measure(name: str, dtype: str, options: argparse.Namespace) -> dict[str, object]:
    rows, clock = options.rows, time.process_time if options.cpu else time.perf_counter
    model = new_model(MODELS[name], seed=0, dtype=dtype)
    runner = NativeRunner(model, vocab_used=model.config.vocab_size, threads=options.threads, isa=options.isa)
    runner.publish()
    packing: list[float] = []
    prefill: list[float] = []
    decode: list[float] = []
    flops = matmul_flops(torch.float32 if dtype == "float32" else torch.bfloat16, clock)
    for _ in range(REPEATS + 1):
        began = clock()
        runner.publish()
        packing.append(clock() - began)
        first, second = generate(runner, rows, model.config.vocab_size, clock)
        prefill.append(rows * PROMPT / first)
        decode.append(rows * NEW / second)
    bound = flops / flops_per_token(model)
    speed = statistics.median(decode[1:])
    return {
        "model": name,
        "rows": rows,
        "runner": runner.name,
        "threads": options.threads,
        "clock": "cpu" if options.cpu else "wall",
        "decode_tokens_per_s": round(speed),
        "prefill_tokens_per_s": round(statistics.median(prefill[1:])),
        "publish_ms": round(1000 * statistics.median(packing[1:]), 2),
        "matmul_gflops": round(flops / 1e9),
        "bound_tokens_per_s": round(bound),
        "share_of_bound": round(speed / bound, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--isa", default=None)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["S", "M"])
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    options.threads = 1 if options.cpu else options.threads
    torch.set_num_threads(options.threads)
    for name in options.models:
        for dtype in ("float32", "bfloat16"):
            print(json.dumps(measure(name, dtype, options)))


if __name__ == "__main__":
    main()
