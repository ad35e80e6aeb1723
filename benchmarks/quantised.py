"""Answers drawn in INT8: speed beside bfloat16, distance from the trainer's policy, and what GRPO learns from them.

    python benchmarks/quantised.py             all, about an hour of CPU time
    python benchmarks/quantised.py --speed     decoding alone, a minute of CPU time
    python benchmarks/quantised.py --distance  KL to the trainer's policy after imitation, two minutes
    python benchmarks/quantised.py --learning  GRPO from that policy, on seeds that chose no setting
    python benchmarks/quantised.py --quick     one pair of speeds, half a minute: decides nothing

Speed: interleaved pairs with the fastest `native_bfloat16` of a processor with that instruction set, CPU time of one
thread, 64 rows. The floor of a decoding pass of model S (M) is 0.40 (3.3) G operations and 3.1 (25) MB of weights in
INT8, twice the bytes in bfloat16; attention reads 64 x 88 keys and values of each layer, which bfloat16 widens number
by number.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from chain_sums import TASK, answers, base, write_rows
from chains import cold_start, problems
from engine_native import MODELS, generate
from tables import Row, rewrite, tell

from hone.core.generation import Request, SamplingParams
from hone.core.generation import generate as draw
from hone.engine.native.library import CacheKind, NumberKind, load_library
from hone.engine.native.runner import NativeRunner
from hone.engine.open_engine import EngineGuarantees
from hone.engine.protocol import KvCache, RunnerKind
from hone.lab.tasks.chain_of_sums import hurried_solution, make_problems, right_chain
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.packing import pack_rows
from hone.recipes.text import grpo
from hone.run.loop import train
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy

ROWS, MAX_TOKENS, HELD_OUT = 64, 40, 500
WAYS: tuple[tuple[NumberKind, CacheKind], ...] = (("int8", "bfloat16"), ("int8", "int8"))
RUNNERS: tuple[tuple[RunnerKind, KvCache], ...] = (
    ("native", "auto"), ("native_bfloat16", "auto"), ("native", "int8"),
    ("native_int8", "auto"), ("native_int8", "int8"),
)  # fmt: skip
MOST_KL = 5e-5
LEVELS = {"amx": ("amx",), "avx512_vnni": ("avx512", "avx512_bf16"), "avx2": ("avx2",)}
"""Instruction set of INT8 -> those of bfloat16 on such a processor: the peer is the fastest, `avx512` on Intel's."""


def runner_of(model: Decoder, dtype: NumberKind, cache: CacheKind, isa: str) -> NativeRunner:
    """A runner on one thread, with weights published."""
    vocab = model.config.vocab_size
    runner = NativeRunner(model, vocab_used=vocab, threads=1, dtype=dtype, cache=cache, isa=isa)
    runner.publish()
    return runner


def decoded(runner: NativeRunner, vocab: int) -> float:
    """Tokens decoded in a CPU second."""
    return ROWS * 64 / generate(runner, ROWS, vocab, time.process_time)[1]


def fastest_half(model: Decoder, sets: list[str]) -> NativeRunner:
    """The fastest runner in bfloat16 of those of `sets`, each tried three times."""
    every, vocab = [runner_of(model, "bfloat16", "bfloat16", isa) for isa in sets], model.config.vocab_size
    return max(every, key=lambda one: max(decoded(one, vocab) for _ in range(3))) if len(every) > 1 else every[0]


def speed(pairs: int) -> list[Row]:
    """Decoded tokens per CPU second of INT8, by model, instruction set and cache."""
    library, rows = load_library(), list[Row]()
    torch.set_num_threads(1)
    runs = library.instruction_sets()
    for name, coded in [(name, coded) for name in MODELS for coded in LEVELS if coded in runs]:
        model = new_model(MODELS[name], seed=0, dtype="float32")
        peer = fastest_half(model, [isa for isa in LEVELS[coded] if isa in runs])
        runners = [peer, *(runner_of(model, dtype, cache, coded) for dtype, cache in WAYS)]
        found = [[decoded(one, model.config.vocab_size) for one in runners] for _ in range(pairs)]
        columns = list(zip(*found, strict=True))
        for runner, own in zip(runners[1:], columns[1:], strict=True):
            ratio = statistics.median(a / b for a, b in zip(own, columns[0], strict=True))
            rows.append(
                Row(
                    row=f"decoding {name}, {ROWS} rows, {runner.name}", value=statistics.median(own),
                    unit="tokens per CPU second", seeds=pairs, peer=runners[0].name,
                    peer_value=statistics.median(columns[0]), ratio=ratio, bar=">= 1.3 x bfloat16", met=ratio >= 1.3,
                )
            )  # fmt: skip
    return rows


def imitated(folder: Path, seed: int) -> TokenPolicy:
    """A policy that imitated the hurried teacher of chains of sums."""
    return base(folder, make_problems(3000, seed=seed), hurried_solution, steps=250, seed=seed)


def distance(seed: int, asked: int) -> list[Row]:
    """KL(answers' policy || trainer's), k3 over the answers' tokens, by runner; the bar is for model S.

    S imitated sums of two numbers; the other model, 64 wide, the hurried teacher of chains: narrow layers lose more.
    """
    with tempfile.TemporaryDirectory() as name:
        narrow = imitated(Path(name), seed)
    chain = [one.prompt for one in make_problems(asked, seed=seed + 1)]
    large = open_policy(
        ModelSource(path=str(cold_start("S", "short")), compute="float32"), seed=seed, device="cpu", temperature=1.0
    )
    lines = problems("short", count=2000, seed=2).read_text(encoding="utf-8").splitlines()[:asked]
    sums = [str(json.loads(line)["prompt"]) for line in lines]
    rows = list[Row]()
    for title, policy, prompts, bar in (("S", large, sums, MOST_KL), ("64 wide, chains", narrow, chain, None)):
        for runner, cache in RUNNERS:
            gap = gaps(policy, prompts, runner, cache)
            rows.append(
                distance_row(f"{title}: {runner if cache == 'auto' else f'{runner}, kv_cache {cache}'}", gap, bar)
            )
    return rows


def distance_row(title: str, gap: np.ndarray, bar: float | None) -> Row:
    """Row of the differences trainer minus engine of all tokens, nats."""
    kl = float((np.expm1(gap) - gap).mean())
    size = np.abs(gap)
    return Row(
        row=f"{title} ({len(gap):,} tokens; difference {size.mean():.2g} on average, {size.max():.2g} at most; "
        f"{(gap > np.log(2)).mean():.2%} above ratio 2)",
        value=kl,
        unit="nats of KL a token",
        bar=None if bar is None else f"<= {bar:g}",
        met=None if bar is None else kl <= bar,
    )


def gaps(policy: TokenPolicy, texts: list[str], runner: RunnerKind, cache: KvCache) -> np.ndarray:
    """Trainer minus engine, nats, of every token of four answers to each prompt."""
    prompts = [policy.tokenizer.encode(one) for one in texts]
    engine = make_engine(
        policy, slots=ROWS, longest_prompt=max(map(len, prompts)), max_tokens=MAX_TOKENS, seed=0, runner=runner,
        guarantees=EngineGuarantees(kv_cache=cache),
    )  # fmt: skip
    engine.publish(0)
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    asked = [Request(id=str(n), prompt=prompt, samples=4, sampling=sampling) for n, prompt in enumerate(prompts)]
    found: list[np.ndarray] = []
    for done in draw(engine, asked):
        text = np.concatenate([prompts[int(done.request_id)], done.tokens]).astype(np.int32)
        answer = torch.arange(len(text) - len(done.tokens), len(text))
        with torch.no_grad():
            hidden = policy.decoder.hidden(pack_rows([text[:-1]]))[answer - 1]
            chosen = torch.from_numpy(text).long()[answer]
            told = policy.decoder.token_logprobs(hidden, chosen, 1.0, vocab_size_used=policy.tokenizer.size)
        found.append(told.logp.numpy().astype(np.float64) - done.logp)
    return np.concatenate(found)


def learning(seeds: list[int], steps: int) -> list[Row]:
    """Share of whole chains that are right, greedily, after GRPO on answers of each runner; the same starts."""
    runners: tuple[RunnerKind, ...] = ("native", "native_int8")
    ends: dict[str, list[float]] = {runner: [] for runner in runners}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            imitated(Path(name), seed)
            for runner in runners:
                ends[runner].append(learnt(Path(name), seed, steps, runner))
                print(seed, runner, ends[runner][-1], flush=True)
    plain, rows = ends["native"], list[Row]()
    half = 2.776 * statistics.stdev(plain) / len(plain) ** 0.5 if len(plain) == 5 else max(plain) - min(plain)
    low, high = statistics.fmean(plain) - half, statistics.fmean(plain) + half
    for runner, own in ends.items():
        mean = statistics.fmean(own)
        rows.append(
            Row(
                row=f"GRPO on chains of sums, {steps} steps, {runner}: right at the end (worst seed {min(own):.3f})",
                value=mean, unit="of held-out problems", low=min(own), high=max(own), seeds=len(own),
                bar=None if runner == "native" else f"within {low:.3f} .. {high:.3f}",
                met=None if runner == "native" else low <= mean <= high or mean > high,
            )
        )  # fmt: skip
    return rows


def learnt(folder: Path, seed: int, steps: int, runner: RunnerKind) -> float:
    trained = make_problems(2000, seed=seed + 2)
    source = write_rows(folder / "problems.jsonl", [{"prompt": one.prompt} for one in trained])
    config = grpo.GrpoConfig.model_validate(
        {
            "recipe": "grpo",
            "name": "quantised",
            "seed": seed,
            "steps": steps,
            "run": {"threads": 1},
            "model": {"path": str(folder / "base"), "compute": "float32"},
            "task": {"source": str(source)},
            "rewards": {"functions": [{"use": f"{TASK}:right_chain"}]},
            "user_code": {"workers": 1},
            "rollout": {"prompts_per_step": 32, "max_tokens": MAX_TOKENS, "runner": runner},
            "learner": {"lr": 3e-4},
        }
    )
    job = grpo.ENTRY.build(config)
    try:
        policy = train(job.recipe, steps=steps, callback=lambda *_: None)
    finally:
        job.close()
    held_out = make_problems(HELD_OUT, seed=seed + 3, exclude=trained)
    drawn = answers(policy, held_out, samples=1, temperature=1e-3, max_tokens=MAX_TOKENS, seed=0)
    return float(np.mean(right_chain([one.prompt for one, _ in drawn], [text for _, text in drawn])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("speed", "distance", "learning"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--asked", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="one pair of speeds: decides nothing")
    options = parser.parse_args()
    if options.quick:
        options.speed, options.pairs = True, 1
    every = not (options.speed or options.distance or options.learning)
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts = {
        "speed": ("Quantised rollouts, speed", lambda: speed(options.pairs)),
        "distance": (
            "Quantised rollouts, distance from the trainer",
            lambda: distance(options.seeds[0], options.asked),
        ),
        "learning": ("Quantised rollouts, learning", lambda: learning(options.seeds, options.steps)),
    }
    asked = [name for name in parts if every or getattr(options, name)]
    for name in asked:
        title, measure = parts[name]
        rows = measure()
        tell(rows)
        rewrite(title, "benchmarks/quantised.py", rows, threads=1, quick=options.quick)


if __name__ == "__main__":
    main()
