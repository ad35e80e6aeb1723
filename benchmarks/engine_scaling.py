"""How generation grows: requests from 16 to 1,024, answers from 32 to 2,048 tokens, and what exactness costs.

    python benchmarks/engine_scaling.py            about ten minutes on two cores
    python benchmarks/engine_scaling.py --quick    small sizes: decides nothing

Model S, float32. Near-linear growth means that tokens per second do not fall as requests are added, and fall with the
length only as attention's share of the operations grows: the table gives both. The cost of exactness is the same work
with row-invariant products and without (the torch runner; compiled code has one order of additions and no other).
"""

import argparse
import json
import time

import numpy as np
import torch
from chains import fresh
from tables import Row, rewrite, tell

from hone.core.generation import Request, Sampling
from hone.core.random import generator
from hone.engine.choose import choose_runner
from hone.engine.engine import Engine
from hone.engine.limits import sized
from hone.engine.stops import TextRules
from hone.models.config import ModelConfig
from hone.models.decoder import Decoder
from hone.models.folder import load_model, read_config
from hone.models.init import new_model

THREADS = 2


def model_of(positions: int) -> Decoder:
    config = read_config(fresh("S"))
    if positions <= config.max_positions:
        return load_model(fresh("S"))
    longer = ModelConfig(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_positions=positions,
    )
    return new_model(longer, seed=0)


def speed(requests: int, length: int, *, slots: int = 64, runner: str = "auto") -> float:
    """Tokens drawn per second, the better of two goes."""
    model = model_of(length + 32)
    vocab = model.config.vocab_size
    chosen = choose_runner("torch" if runner == "torch" else "auto", model, vocab_used=vocab, threads=THREADS)
    limits = sized(
        slots=min(slots, requests), page_tokens=chosen.runner.page_tokens, sequence_tokens=length + 32, vocab=vocab
    )
    engine = Engine(chosen, TextRules(decode=None, eos=(), vocab=vocab), limits=limits, seed=0)
    engine.publish(1)
    random = generator(0, "prompts")
    asked = [
        Request(
            id=str(number),
            prompt=random.integers(3, 35, 24).astype(np.int32),
            samples=1,
            sampling=Sampling(max_tokens=length),
        )
        for number in range(requests)
    ]
    best = 0.0
    for number in range(2):
        begin = time.perf_counter()
        drawn = sum(len(one.tokens) for one in engine.generate(asked, round=number))
        best = max(best, drawn / (time.perf_counter() - begin))
    return best


def attention_share(length: int) -> float:
    """Operations with attention over operations without, at half the length (the mean position), for model S."""
    config = read_config(fresh("S"))
    width = config.heads * config.head_dim
    matrices = config.layers * (
        config.hidden_size * (width + 2 * config.kv_heads * config.head_dim)
        + width * config.hidden_size
        + 3 * config.hidden_size * config.intermediate_size
    )
    return 1.0 + config.layers * 2 * width * (24 + length / 2) / matrices


def rows_of(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    counts, spans = ([16, 64], [32, 128]) if quick else ([16, 64, 256, 1024], [32, 128, 512, 2048])
    first = 0.0
    for count in counts:
        found = speed(count, 64)
        first = first or found
        rows.append(
            Row(
                row=f"S, {count} requests of 64 tokens, 64 slots",
                value=found,
                unit="tokens/s",
                peer=f"{counts[0]} requests",
                peer_value=first,
                ratio=found / first,
                bar=">= 0.9 of the first",
                met=None if quick else found >= 0.9 * first,
            )
        )
    first = 0.0
    for span in spans:
        found, share = speed(64, span), attention_share(span)
        first = first or found * share
        rows.append(
            Row(
                row=f"S, 64 requests of {span} tokens (operations a token x {share:.2f})",
                value=found,
                unit="tokens/s",
                peer=f"{spans[0]} tokens, by operations",
                peer_value=first / share,
                ratio=found * share / first,
                bar=">= 0.7 of the first",
                met=None if quick else found * share >= 0.7 * first,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how generation grows.")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = rows_of(quick=asked.quick)
    rewrite("Generation, growth", "benchmarks/engine_scaling.py", rows, threads=THREADS, quick=asked.quick)
    tell(rows)
    print(json.dumps({"threads": THREADS}))


if __name__ == "__main__":
    main()
