"""How generation grows: requests from 16 to 1,024, answers from 32 to 2,048 tokens, and what exactness costs.

    python benchmarks/engine_scaling.py                     about fifteen minutes on two cores
    python benchmarks/engine_scaling.py --quick             small sizes: decides nothing
    python benchmarks/engine_scaling.py --only exactness    one part: growth, exactness

Model S, float32. Near-linear growth means that tokens per second do not fall as requests are added, and fall with the
length only as attention's share of the operations grows: the table gives both.

Compiled code has one order of additions and no other: batch invariance is not an option there that could be switched
off, and its speed beside engines without it is in generate.py. What can be compared on a CPU is the torch runner: its
own row-invariant products and attention (tiles of 16 rows, keys in steps of 32) beside the same runner over the same
weights with rows and attention as suits the batch (`hone.lab.free_rows`). The last row is not about batches: it is a
whole GRPO step with `model.exactness = "bitwise"`, where the trainer computes as the torch runner does, beside the
same step with that runner and the trainer's usual arithmetic. Both sides of a pair alternate in one process; medians
of pairs.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from chains import TASKS, cold_start, fresh, problems
from tables import Row, grow, tell

from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.generation import Request, SamplingParams, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.lab.free_rows import FreeRows
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model, read_config
from hone.models.language.init import new_model
from hone.recipes.text import grpo
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
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


def engine_of(chosen: RunnerChoice, *, slots: int, length: int, vocab: int) -> EmbeddedEngine:
    limits = default_limits(
        slots=slots, page_tokens=chosen.runner.page_tokens, sequence_tokens=length + 32, vocab=vocab
    )
    engine = EmbeddedEngine(chosen, TokenizerRules(decode=None, eos=(), vocab=vocab), limits=limits, seed=0)
    engine.publish(1)
    return engine


def work_of(requests: int, length: int) -> list[Request]:
    random = generator(0, "prompts")
    return [
        Request(
            id=str(number),
            prompt=random.integers(3, 35, 24).astype(np.int32),
            samples=1,
            sampling=SamplingParams(max_tokens=length),
        )
        for number in range(requests)
    ]


def timed(engine: EmbeddedEngine, asked: list[Request], number: int) -> float:
    """Tokens drawn per second."""
    begin = time.perf_counter()
    drawn = sum(len(one.tokens) for one in generate(engine, asked, round=number))
    return drawn / (time.perf_counter() - begin)


def speed(requests: int, length: int, *, slots: int = 64) -> float:
    """Tokens drawn per second, the better of two goes."""
    model = model_of(length + 32)
    vocab = model.config.vocab_size
    chosen = choose_runner("auto", model, vocab_used=vocab, threads=THREADS)
    engine = engine_of(chosen, slots=min(slots, requests), length=length, vocab=vocab)
    asked = work_of(requests, length)
    return max(timed(engine, asked, number) for number in range(2))


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


def growth_rows(*, quick: bool) -> Iterator[Row]:
    counts, spans = ([16, 64], [32, 128]) if quick else ([16, 64, 256, 1024], [32, 128, 512, 2048])
    first = 0.0
    for count in counts:
        found = speed(count, 64)
        first = first or found
        yield Row(
            row=f"S, {count} requests of 64 tokens, 64 slots",
            value=found,
            unit="tokens/s",
            peer=f"{counts[0]} requests",
            peer_value=first,
            ratio=found / first,
            bar=">= 0.9 of the first",
            met=None if quick else found >= 0.9 * first,
        )
    first = 0.0
    for span in spans:
        found, share = speed(64, span), attention_share(span)
        first = first or found * share
        yield Row(
            row=f"S, 64 requests of {span} tokens (operations a token x {share:.2f})",
            value=found,
            unit="tokens/s",
            peer=f"{spans[0]} tokens, by operations",
            peer_value=first / share,
            ratio=found * share / first,
            bar=">= 0.7 of the first",
            met=None if quick else found * share >= 0.7 * first,
        )


def invariance_row(requests: int, length: int, *, quick: bool) -> Row:
    """The torch runner with invariant rows, and with free ones."""
    model = model_of(length + 32)
    vocab = model.config.vocab_size
    sides = [TorchRunner(model, vocab_used=vocab), TorchRunner(FreeRows(model), vocab_used=vocab)]
    engines = [
        engine_of(RunnerChoice(runner=side, own_weights=False), slots=min(64, requests), length=length, vocab=vocab)
        for side in sides
    ]
    asked, repetitions = work_of(requests, length), 1 if quick else 5
    pairs = [[timed(engine, asked, number) for engine in engines] for number in range(repetitions + 1)][1:]
    here, there = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
    ratio = float(np.median([one / other for one, other in pairs]))
    return Row(
        row=f"S, {requests} requests of {length} tokens, torch runner, rows that are invariant",
        value=here,
        unit="tokens/s",
        seeds=repetitions,
        peer="free rows",
        peer_value=there,
        ratio=ratio,
        bar=">= 0.9 of free rows",
        met=None if quick else ratio >= 0.9,
    )


def step_seconds(exactness: str, *, steps: int) -> float:
    """Median seconds of a GRPO step on short answers with the torch runner; the first is left out."""
    config = grpo.GrpoConfig.model_validate(
        {
            "recipe": "grpo",
            "name": "bench",
            "steps": steps,
            "run": {"threads": THREADS},
            "model": {"path": str(cold_start("S", "short")), "exactness": exactness},
            "task": {"source": str(problems("short", count=2000, seed=2))},
            "rewards": {"functions": [{"use": f"{HERE / 'answers.py'}:right"}]},
            "user_code": {"workers": 1},
            "rollout": {
                "prompts_per_step": 64,
                "samples_per_prompt": 8,
                "max_tokens": TASKS["short"],
                "max_concurrent": 128,
                "runner": "torch",
            },
            "learner": {"lr": 1e-6},
        }
    )
    job = grpo.ENTRY.build(config)
    marks: list[float] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del step, episodes, credits, metrics
        marks.append(time.perf_counter())

    train(job.recipe, steps=steps, callback=report)
    job.close()
    return float(np.median(np.diff(marks)))


def bitwise_row(*, quick: bool) -> Row:
    repetitions, steps = (1, 2) if quick else (3, 4)
    pairs = [[step_seconds(kind, steps=steps) for kind in ("bitwise", "parity")] for _ in range(repetitions)]
    here, there = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
    return Row(
        row='S, a GRPO step, short answers, 64 x 8, torch runner, model.exactness = "bitwise"',
        value=here,
        unit="s a step",
        seeds=repetitions,
        peer="parity",
        peer_value=there,
        ratio=float(np.median([one / other for one, other in pairs])),
    )


def exactness_rows(*, quick: bool) -> Iterator[Row]:
    for requests, length in [(16, 16)] if quick else [(16, 64), (64, 64), (256, 64)]:
        yield invariance_row(requests, length, quick=quick)
    yield bitwise_row(quick=quick)


PARTS = {"growth": growth_rows, "exactness": exactness_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how generation grows, and what exactness costs.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(PARTS))
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            rows = measure(quick=asked.quick)
            title = f"Generation, {part}"
            tell(grow(title, "benchmarks/engine_scaling.py", rows, threads=THREADS, quick=asked.quick))


if __name__ == "__main__":
    main()
