"""Steps on SmolLM2-135M-Instruct beside TRL: fine-tuning whole and of an adapter, DPO, GRPO; CPU seconds and memory.

    python benchmarks/real_model_step.py               everything, about half an hour on two cores
    python benchmarks/real_model_step.py --quick       one pair of two steps each: decides nothing
    python benchmarks/real_model_step.py --only DPO    one kind
    python benchmarks/real_model_step.py --steps 3 --pairs 2 --prompts 4    smaller, which the rows say

Both sides read the same folder of weights, the same conversations and the template of the model's own tokenizer. hone
runs with products in bfloat16 and weights of the optimizer in float32, TRL at the best of `VARIANTS`, of which each is
measured first. A pair is one process of each side; the table has medians of CPU seconds a step over all threads, the
median of the ratios pair by pair, and the greatest resident memory of each process. The first step is left out. Where
the sides draw answers of their own (GRPO), or a template's last newline counts on one side only, both are divided by
their tokens.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from peers import PEERS_FOLDER, require_peer
from real_model import WORDS, assistant, model_folder, user
from tables import Row, grow, tell

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.native.build import keep_freed_memory
from hone.recipes.registry import load_recipe
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
PEER = "trl"
THREADS = 2
ROWS = 64
RANK = 16
BATCH = 4
"""Examples or pairs of a step."""
PROMPTS, SAMPLES, NEW_TOKENS = 16, 8, 128


class Size(NamedTuple):
    """What is run of a kind."""

    steps: int
    """Of a process, the first of which is left out."""
    pairs: int
    prompts: int
    """Of a GRPO step."""


BARS = {"SFT, adapter": 2.5, "SFT": 2.0, "DPO": 3.0, "GRPO": 6.0}
VARIANTS = {
    "float32": [{"attention": "sdpa"}],
    "bfloat16": [
        {"attention": "sdpa"},
        {"attention": "sdpa", "dtype": "bfloat16"},
        {"attention": "eager", "dtype": "bfloat16"},
        {"attention": "sdpa", "bf16": True},
    ],
}
"""What TRL is tried with: attention, weights in bfloat16, or autocast to it. Some processors are faster in float32."""
PROGRAM = (HERE / "real_model_step_trl.py").read_text(encoding="utf-8")


def rows_of(kind: str, folder: Path) -> Path:
    """Conversations of drawn words: 1,000 tokens in four examples, 1,400 in four pairs; questions for long answers."""
    path = folder / f"step_{kind.split(',')[0].lower()}.jsonl"
    chance = random.Random(0)
    words = [word for word in WORDS if word.isalpha()]

    def drawn(count: int) -> str:
        return " ".join(chance.choices(words, k=count))

    def make() -> dict[str, Any]:
        if kind == "GRPO":
            return {"prompt": [user(f"Write a long story with the words {drawn(24)}. Do not stop early.")]}
        question, length = [user(drawn(30))], 180 if kind.startswith("SFT") else 120
        if kind == "DPO":
            return {"prompt": question, "chosen": [assistant(drawn(length))], "rejected": [assistant(drawn(length))]}
        return {"prompt": question, "completion": [assistant(drawn(length))]}

    path.write_text("".join(json.dumps(make()) + "\n" for _ in range(ROWS)), encoding="utf-8")
    return path


def hone_step(kind: str, compute: str, steps: int, prompts: int, folder: str) -> dict[str, float]:
    recipe = kind.split(",")[0].lower()
    table: dict[str, Any] = {
        "recipe": recipe,
        "name": "bench",
        "steps": steps,
        "run": {"threads": THREADS},
        "model": {"path": str(model_folder(Path(folder))), "compute": compute},
        "task": {"source": str(rows_of(kind, Path(folder)))},
        "learner": {"lr": 1e-6},
    }
    if kind == "SFT, adapter":
        table["model"]["lora"] = {"rank": RANK}
    if recipe == "grpo":
        table["rewards"] = {"functions": [{"use": f"{HERE / 'answers.py'}:even"}]}
        table["user_code"] = {"workers": 1}
        table["rollout"] = {
            "prompts_per_step": prompts,
            "samples_per_prompt": SAMPLES,
            "max_tokens": NEW_TOKENS,
            "max_concurrent": prompts * SAMPLES,
            "runner": "native" if compute == "float32" else "native_bfloat16",
        }
    else:
        table["batch"] = BATCH
    if recipe == "dpo":
        table["samples"] = {"prompts": 0}
    entry = load_recipe(recipe)
    torch.set_num_threads(THREADS)
    keep_freed_memory()  # as the command `hone train` does
    job = entry.build(entry.config.model_validate(table))
    marks, tokens = [time.process_time()], list[int]()

    def report(_step: int, episodes: Episodes, _credits: object, _metrics: Metrics) -> None:
        marks.append(time.process_time())
        tokens.append(episodes.decisions)

    train(job.recipe, steps=steps, callback=report)
    job.close()
    return {
        "cpu_s": float(np.median(np.diff(marks)[1:])),
        "tokens": float(np.mean(tokens[1:])),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def in_a_process(kind: str, compute: str, size: Size, folder: Path) -> dict[str, float]:
    """A fresh process, as the peer's: caches of one measurement must not serve the next."""
    words = [sys.executable, __file__, "--hone", json.dumps([kind, compute, size.steps, size.prompts, str(folder)])]
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False, env=environment))


def peer_step(kind: str, variant: dict[str, Any], size: Size, folder: Path) -> dict[str, float]:
    settings = {
        "kind": kind,
        "model": str(model_folder(folder)),
        "rows": str(rows_of(kind, folder)),
        "answers": str(HERE),
        "rank": RANK,
        "batch": BATCH,
        "prompts": size.prompts,
        "samples": SAMPLES,
        "new_tokens": NEW_TOKENS,
        "steps": size.steps,
        "threads": THREADS,
        **variant,
    }
    words = [str(require_peer(PEER)), "-c", PROGRAM, json.dumps(settings)]
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False))


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    if done.returncode:
        raise SystemExit(f"{done.args[:3]} failed:\n{done.stderr[-3000:]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def measure(kind: str, compute: str, folder: Path, size: Size, *, quick: bool) -> Iterator[Row]:
    variants = VARIANTS[compute][: 1 if quick or kind == "GRPO" else None]
    trial = size._replace(steps=min(size.steps, 4))
    several = variants if len(variants) > 1 else []
    tried = {json.dumps(one): peer_step(kind, one, trial, folder)["cpu_s"] for one in several}
    best = min(variants, key=lambda one: tried.get(json.dumps(one), 0.0))
    print(f"TRL, {kind} {compute}: {tried}", file=sys.stderr, flush=True)
    both = [(in_a_process(kind, compute, size, folder), peer_step(kind, best, size, folder)) for _ in range(size.pairs)]
    print(f"hone, TRL: {both}", file=sys.stderr, flush=True)
    cpu, tokens, memory = (
        [float(np.median([pair[side][name] for pair in both])) for side in (0, 1)]
        for name in ("cpu_s", "tokens", "memory")
    )
    ratio = float(
        np.median([theirs["cpu_s"] / theirs["tokens"] / (ours["cpu_s"] / ours["tokens"]) for ours, theirs in both])
    )
    part = (
        f"{size.prompts} x {SAMPLES} x {NEW_TOKENS}"
        if kind == "GRPO"
        else f"{BATCH} {'pairs' if kind == 'DPO' else 'rows'}"
    )
    shape = f"SmolLM2-135M, {kind}, {part}, {compute}"
    decides = not quick and (kind != "GRPO" or size.prompts == PROMPTS)
    peer = f"TRL 1.16, {json.dumps(best)}"
    yield Row(
        row=f"{shape} ({tokens[0]:,.0f} trained tokens a step, TRL {tokens[1]:,.0f}; "
        f"ratio a token; {size.steps - 1} steps a process)",
        value=cpu[0],
        unit="CPU s a step",
        seeds=size.pairs,
        peer=peer,
        peer_value=cpu[1],
        ratio=ratio,
        bar=f">= {BARS[kind]:g} x TRL",
        met=ratio >= BARS[kind] if decides else None,
    )
    yield Row(
        row=f"{shape}: greatest resident memory",
        value=memory[0] / 1e9,
        unit="GB",
        seeds=size.pairs,
        peer=peer,
        peer_value=memory[1] / 1e9,
        ratio=memory[1] / memory[0],
        bar="<= TRL",
        met=memory[0] <= memory[1] if decides else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(BARS))
    parser.add_argument("--compute", choices=list(VARIANTS))
    parser.add_argument("--folder", type=Path, default=PEERS_FOLDER / "real_model", help="where model and rows lie")
    parser.add_argument("--steps", type=int, help="of a process, the first of which is left out")
    parser.add_argument("--pairs", type=int, help="processes of each side")
    parser.add_argument(
        "--prompts", type=int, default=PROMPTS, help="of a GRPO step; its bar is decided by the default"
    )
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.hone:
        print(json.dumps(hone_step(*json.loads(settings.hone))))
        return
    model_folder(settings.folder)
    require_peer(PEER)
    for kind in BARS:
        if settings.only in {None, kind}:
            steps, pairs = (2, 1) if settings.quick else (3, 1) if kind == "GRPO" else (8, 3)
            size = Size(settings.steps or steps, settings.pairs or pairs, settings.prompts)
            rows = (
                row
                for compute in VARIANTS
                if settings.compute in {None, compute}
                for row in measure(kind, compute, settings.folder, size, quick=settings.quick)
            )
            title = f"Step of {kind}, SmolLM2"
            tell(grow(title, "benchmarks/real_model_step.py", rows, threads=THREADS, quick=settings.quick))


if __name__ == "__main__":
    main()
