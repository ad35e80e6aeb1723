"""What products, weights and keys allow a decoding pass of the compiled runner, and the share that it reaches.

    python benchmarks/floors.py                          models S and M, and keys at 2,048 tokens: ten minutes
    HONE_NATIVE_ISA=avx512_bf16 python benchmarks/floors.py   without AMX: torch is lowered alike
    python benchmarks/floors.py --quick                  model S, one round: decides nothing

64 rows, thread CPU time of one thread, everything interleaved, the fastest of all rounds; on a busy machine a short
loop finds a quiet moment and a whole decode does not, so that shares are low there. The floor of a pass is the larger
of two times: its products, at the better rate of torch (the same shapes) and of a loop over registers alone
(`floors.cpp`; bfloat16 in pairs or widened, whichever is faster), and its weights, at the rate of a plain read.
Keys: the time that 2,048 tokens of context take over 16, by the bytes of keys and values in it, beside a plain read of
as many bytes; their pages lie in random order. A token is multiplied with 3.2 million weights in model S (6.5 million
operations) and with 25 million in M, and reads twice the features of its key heads from each earlier position.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from engine_native import MODELS, draws_of, flops_per_token, generate
from tables import HERE, Row, rewrite, tell

from hone.core.errors import ResourceError
from hone.engine.native.library import CacheKind, NumberKind, load_library
from hone.engine.native.runner import NativeRunner
from hone.engine.work import ForwardBatch
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.native.build import find_compiler, instruction_set_limit

ROWS, NEW, CONTEXT, LOOP_ROUNDS = 64, 64, 2048, 20_000
ONEDNN = {"avx512_bf16": "AVX512_CORE_BF16", "avx512": "AVX512_CORE", "avx2": "AVX2"}
KINDS: tuple[tuple[NumberKind, CacheKind], ...] = (
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "int8"),
)  # fmt: skip
NUMBERS: tuple[tuple[Literal["float32", "bfloat16"], torch.dtype], ...] = (
    ("float32", torch.float32), ("bfloat16", torch.bfloat16),
)  # fmt: skip
Loop = Callable[..., float]


def compiled_loops(folder: Path) -> dict[str, Loop]:
    """The loops of floors.cpp. Raises ResourceError without a compiler or a processor for them."""
    compiler, sets = find_compiler(), load_library().instruction_sets()
    if compiler is None or "avx2" not in sets:
        raise ResourceError("floors.py needs a C++ compiler and a processor with AVX2")
    path = folder / "floors.so"
    level = ["-mavx512f"] if "avx512" in sets else ["-mavx2", "-mfma"]
    subprocess.run(
        [compiler, "-std=c++17", "-O3", "-fPIC", "-shared", *level, str(HERE / "floors.cpp"), "-o", str(path)],
        check=True,
    )
    library = ctypes.CDLL(str(path))
    names = ("float32_products", "read_once") + ("bfloat16_products",) * ("avx512_bf16" in sets)
    loops: dict[str, Loop] = {name: library[name] for name in names}
    for loop in loops.values():
        loop.restype = ctypes.c_double  # type: ignore[attr-defined]
    return loops | {"chains": library["chains"], "lanes": library["lanes"]}


def register_rate(loops: dict[str, Loop], kind: NumberKind) -> float:
    """Operations a second of products of registers: of bfloat16 in pairs or widened, whichever is more."""
    sink, products = ctypes.c_float(), LOOP_ROUNDS * loops["chains"]() * loops["lanes"]()
    each = {"float32_products": 2} | ({"bfloat16_products": 4} if kind == "bfloat16" else {})
    return max(
        products * operations / loops[name](ctypes.c_int64(LOOP_ROUNDS), ctypes.byref(sink))
        for name, operations in each.items()
        if name in loops
    )


def read_rate(loops: dict[str, Loop], array: np.ndarray) -> float:
    """Bytes a second of a plain read of `array`."""
    sink, size = ctypes.c_float(), array.nbytes // 256 * 256
    return size / loops["read_once"](ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(size), ctypes.byref(sink))


def products(config: ModelConfig, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Activations and weights of each product of a pass."""
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 2 * inner), (inner, hidden)]
    shapes = layer * config.layers + [(hidden, config.vocab_size)]
    return [(torch.ones(ROWS, k, dtype=dtype), torch.ones(n, k, dtype=dtype)) for k, n in shapes]


def library_seconds(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Seconds of all `pairs`' products by torch."""
    began = time.thread_time()
    for a, weight in pairs:
        torch.nn.functional.linear(a, weight)
    return time.thread_time() - began


def runner_of(config: ModelConfig, kind: NumberKind, cache: CacheKind) -> NativeRunner:
    """A runner on one thread, with weights published."""
    model = new_model(config, seed=0, dtype="float32")
    runner = NativeRunner(model, vocab_used=config.vocab_size, threads=1, dtype=kind, cache=cache)
    runner.publish()
    return runner


def pass_times(name: str, loops: dict[str, Loop], rounds: int) -> dict[NumberKind, dict[str, float]]:
    """Seconds of a pass in each kind of numbers, and of its products and weights alone: the fastest of all rounds."""
    config = MODELS[name]
    runners = {kind: runner_of(config, kind, kind) for kind, _ in NUMBERS}
    pairs = {kind: products(config, dtype) for kind, dtype in NUMBERS}
    operations = flops_per_token(new_model(config, seed=0))
    memory = np.ones(1 << 26, np.float32)
    best: dict[NumberKind, dict[str, float]] = {}
    for _ in range(rounds):
        for kind, dtype in NUMBERS:
            rate = register_rate(loops, kind)
            found = {
                "run": generate(runners[kind], ROWS, config.vocab_size, time.thread_time)[1] / NEW,
                "torch": min(library_seconds(pairs[kind]) for _ in range(10)),
                "loop": operations * ROWS / rate,
                "weights": operations / 2 * dtype.itemsize / read_rate(loops, memory),
            }
            old = best.get(kind, found)
            best[kind] = {what: min(seconds, old[what]) for what, seconds in found.items()}
    return best


def decoding(name: str, loops: dict[str, Loop], rounds: int) -> list[Row]:
    """Tokens a second of decoding beside its floor, in float32 and bfloat16, and the ratio of the two."""
    best, rows = pass_times(name, loops, rounds), list[Row]()
    floors = {kind: max(min(one["torch"], one["loop"]), one["weights"]) for kind, one in best.items()}
    for kind, one in best.items():
        parts = ", ".join(f"{what} {1e3 * one[what]:.2f}" for what in ("torch", "loop", "weights"))
        isa, share, low = load_library().choose(None, kind=kind), floors[kind] / one["run"], kind == "bfloat16"
        rows.append(
            Row(
                row=f"decoding {name} in {kind} ({isa}), {ROWS} rows (milliseconds of a pass: {parts})",
                value=ROWS / one["run"], unit="tokens per CPU second", seeds=rounds, peer="floor",
                peer_value=ROWS / floors[kind], ratio=share, bar=">= 0.7 of it" if low else None,
                met=share >= 0.7 if low else None,
            )
        )  # fmt: skip
    ratio = best["float32"]["run"] / best["bfloat16"]["run"]
    of_floors = floors["float32"] / floors["bfloat16"]
    rows.append(
        Row(
            row=f"decoding {name}: bfloat16 over float32, where the floors allow {of_floors:.2f}", value=ratio,
            unit="times", seeds=rounds, bar=">= 1.7", met=ratio >= 1.7,
        )
    )  # fmt: skip
    return rows


def pass_seconds(runner: NativeRunner, pages: np.ndarray, position: int) -> float:
    """A decoding pass of one token for each row of `pages`, at `position`."""
    rows = len(pages)
    every = np.arange(rows, dtype=np.int32)
    work = ForwardBatch(
        tokens=np.zeros(rows, np.int32), positions=np.full(rows, position, np.int32), sequence=every,
        pages=pages, draws=draws_of(rows, every),
    )  # fmt: skip
    began = time.thread_time()
    runner.run(work)
    return time.thread_time() - began


def long_keys(loops: dict[str, Loop], heads: int, kind: NumberKind, cache: CacheKind, rounds: int) -> Row:
    """Bytes a second of keys and values at CONTEXT tokens of model S with `heads` key heads."""
    config = replace(MODELS["S"], kv_heads=heads)
    runner, rows = runner_of(config, kind, cache), 32 // heads
    most = CONTEXT // runner.page_tokens
    pages = np.random.default_rng(0).permutation(rows * most).astype(np.int32).reshape(rows, most)
    runner.reserve(pages.size)
    size = runner.page_bytes * rows * (most - 1)
    memory = np.ones(size // 4, np.float32)
    long, short, plain = np.inf, np.inf, 0.0
    for _ in range(rounds):
        long = min(long, pass_seconds(runner, pages, CONTEXT - 1))
        short = min(short, pass_seconds(runner, pages, runner.page_tokens - 1))
        plain = max(plain, read_rate(loops, memory))
    rate = size / (long - short)
    return Row(
        row=f"keys and values in {cache}, {config.heads} query heads on {heads}, {rows} rows at {CONTEXT:,} tokens "
        f"({size / 1e6:.0f} MB; {rows / long:,.0f} tokens per CPU second)",
        value=rate / 1e9, unit="GB/s", seeds=rounds, peer="plain read", peer_value=plain / 1e9, ratio=rate / plain,
        bar=">= 0.6 of it", met=rate / plain >= 0.6,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    limit = instruction_set_limit()
    if limit in ONEDNN:
        os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN[limit]  # read at the first product
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loops = compiled_loops(Path(folder))
        rows = [row for name in (("S",) if quick else MODELS) for row in decoding(name, loops, 1 if quick else 4)]
        for kind, cache in KINDS:
            for heads in (4,) if quick else (4, 1):
                rows.append(long_keys(loops, heads, kind, cache, 2 if quick else 12))
    tell(rows)
    title = "Floors of generation" + ("" if limit is None else f", lowered to {limit}")
    rewrite(title, "benchmarks/floors.py", rows, threads=1, quick=quick)


if __name__ == "__main__":
    main()
