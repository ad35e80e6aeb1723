"""The vocabulary head in bfloat16 products on a CPU: what a step of SmolLM2-135M saves by it, and how far it moves
log-probabilities.

`python benchmarks/half_head.py [--quick] [--only NAME]`: real runs on the published model (`hone fetch smollm2`), with
products in bfloat16 (`model.compute = "bfloat16"`), whose steps take turns: one with the head in bfloat16 products and
float32 sums, the next with the head in float32, as processors without AMX and AVX-512 BF16 have it. CPU seconds of one
thread, medians of pairs of neighbours; the first pair is left out. Then the distance of the engine's log-probabilities
of English text from the trainer's, with each head.

Prints one JSON line a row.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coded_base import logp_of, runner_of, scored, text_rows
from real_model import write_rows
from tables import Row

from hone.cli.commands.fetch import fetch_model
from hone.models.language import decoder
from hone.models.language.hf_checkpoint import load_model
from hone.native.build import keep_freed_memory
from hone.recipes.registry import load_recipe
from hone.run.loop import train

NEVER = lambda _device, _compute: False  # noqa: E731 - stands for a function of the module
OWN = decoder.uses_half_products
LORA = {"rank": 16}
GAP_BAR = 0.02
"""Nats: of the engine and the trainer on the real model, mean."""

RUNS: dict[str, dict[str, Any]] = {
    "SFT of all weights, 1,000 tokens": {"recipe": "sft", "batch": 3, "task": {"source": "chats.jsonl"}},
    "SFT of an adapter, 1,000 tokens": {
        "recipe": "sft", "batch": 3, "task": {"source": "chats.jsonl"}, "model": {"lora": LORA},
    },
    "DPO, 2 pairs": {
        "recipe": "dpo", "batch": 2, "task": {"source": "pairs.jsonl"}, "samples": {"prompts": 0},
        "algorithm": {"loss": {"kind": "dpo", "beta": 0.1}},
    },
    "GRPO, 2 x 8 answers of 48 tokens, with generation": {
        "recipe": "grpo", "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": "chance.py:chance"}]},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 8, "max_tokens": 48},
    },
}  # fmt: skip
CHANCE = '''"""A reward that every answer differs in."""


def chance(completions, **_):
    """Score answers by a number of their text."""
    return [len(str(text)) % 7 / 7 for text in completions]
'''


def step_seconds(name: str, *, pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of steps with the head in bfloat16 and in float32, in pairs."""
    entry, words = load_recipe(RUNS[name]["recipe"]), dict(RUNS[name])
    model = {"path": str(fetch_model("smollm2")), "compute": "bfloat16", **words.pop("model", {})}
    steps = 2 * pairs + 2
    own = {"name": "run", "steps": steps, "model": model, "run": {"threads": 1}, "learner": {"lr": 1e-6}}
    job, marks = entry.build(entry.config.model_validate({**words, **own})), list[float]()

    def report(*_told: object, **_more: object) -> None:
        marks.append(time.process_time())
        decoder.uses_half_products = OWN if len(marks) % 2 else NEVER

    try:
        report()
        train(job.recipe, steps=steps, callback=report)
    finally:
        decoder.uses_half_products = OWN
    took = np.diff(marks).tolist()
    return took[2::2], took[3::2]


def speed(name: str, *, pairs: int) -> Row:
    half, whole = step_seconds(name, pairs=pairs)
    ratio = float(np.median(np.divide(whole, half)))
    return Row(
        row=f"{name}: a step with the head in bfloat16 products",
        value=float(np.median(half)),
        unit="CPU s",
        peer="the head in float32",
        peer_value=float(np.median(whole)),
        ratio=ratio,
        bar="> 1",
        met=ratio > 1,
    )


def mismatch() -> Iterator[Row]:
    """Distance of the engine's log-probabilities (bfloat16) from the trainer's."""
    file = fetch_model("smollm2")
    rows = text_rows(file, count=2)
    model = load_model(file)
    exact = np.concatenate([logp_of(model, row) for row in rows])
    model.set_compute_dtype("bfloat16")
    runner = runner_of(model, "bfloat16")
    engine = np.concatenate([scored(runner, row) for row in rows])
    for name, function in (("bfloat16", OWN), ("float32", NEVER)):
        decoder.uses_half_products = function
        trainer = np.concatenate([logp_of(model, row) for row in rows])
        gap, own = np.abs(engine - trainer), np.abs(trainer - exact)
        yield Row(
            row=f"engine against trainer, the trainer's head in {name}: mean distance of {len(gap)} log-probabilities; "
            f"largest {gap.max():.3f}, trainer against float32 {own.mean():.4f}",
            value=float(gap.mean()),
            unit="nats",
            bar=f"<= {GAP_BAR}",
            met=bool(gap.mean() <= GAP_BAR),
        )
    decoder.uses_half_products = OWN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair of steps")
    parser.add_argument("--only", help="rows whose name begins so, or `mismatch`")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command `hone train` does
    names = [name for name in RUNS if name.startswith(asked.only or "")]
    if asked.only in (None, "mismatch"):
        for row in mismatch():
            print(json.dumps(asdict(row)), flush=True)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_rows(Path())
        Path("chance.py").write_text(CHANCE, encoding="utf-8")
        for name in names:
            print(json.dumps(asdict(speed(name, pairs=1 if asked.quick else 3))), flush=True)


if __name__ == "__main__":
    main()
