"""A GRPO step on sums with a tool, beside TRL with `tools=`: the same model folder, sums, calls and turns.

    python benchmarks/calls_step.py            both, ten minutes on two quiet cores
    python benchmarks/calls_step.py --quick    few steps: decides nothing

Model S has learnt to call a calculator in the format of Hermes and Qwen, half of the time with a wrong operand, and to
repeat what it is told: every dialogue has two turns of the policy, about 90 tokens, and half of them pay. A step is: 16
sums x 8 dialogues, scores, one update. TRL runs with the attention that transformers takes by default (sdpa). Both are
told in seconds of the processor and of the wall; the bar is on the former, which a busy machine changes less.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chains import SHAPES, WORK
from peers import require_peer
from tables import Row, grow, tell
from text_runs import run_recipe, write_rows

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.tokenizers import ROLE_TOKENS, character_tokenizer
from hone.native.build import keep_freed_memory
from hone.recipes.text import grpo
from hone.run.loop import train
from hone.text.games.calculator import sum_rows

HERE = Path(__file__).resolve().parent
PEER, BAR = "trl", 4.0
PROMPTS, SAMPLES, TURNS, TURN_TOKENS = 16, 8, 3, 90
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '<tool_call>\n' ~ (call['function'] | tojson) ~ '\n</tool_call>' -}}{%- endfor -%}"
    "{{- '<eos>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
PROGRAM = (HERE / "calls_step_trl.py").read_text(encoding="utf-8")


def call_of(expression: str) -> str:
    """A call as Hermes and Qwen write it."""
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def imitation_rows(count: int) -> list[dict[str, object]]:
    """Both turns of each sum: a call, half of the time with another second operand, and what the tool said."""
    found: list[dict[str, object]] = []
    for place, row in enumerate(sum_rows(count, seed=1)):
        random, asked = generator(1, "calls", place), {"role": "user", "content": row["prompt"]}
        first, second = str(row["prompt"])[:-1].split("+")
        second = second if random.random() < 0.5 else str(random.integers(10, 100))
        call = {"role": "assistant", "content": call_of(f"{first}+{second}")}
        told = str(int(first) + int(second))
        found.append({"prompt": [asked], "completion": [call]})
        heard = [asked, call, {"role": "tool", "content": told}]
        found.append({"prompt": heard, "completion": [{"role": "assistant", "content": told}]})
    return found


def model_folder() -> Path:
    """The model after imitation, made once."""
    folder = WORK / "S-calls"
    if not folder.exists():
        tokenizer = character_tokenizer([ALPHABET], chat_template=TEMPLATE, chat_tokens=ROLE_TOKENS)
        config = ModelConfig(family="llama", vocab_size=tokenizer.size, max_positions=512, **SHAPES["S"])
        fresh = WORK / "S-calls-fresh"
        save_model(new_model(config, seed=0), fresh, tokenizer_from=None)
        tokenizer.save(fresh)
        tables = {
            "steps": 150, "seed": 0, "model": {"path": str(fresh)}, "batch": 32,
            "task": {"source": write_rows(WORK / "calls.jsonl", imitation_rows(6000))},
            "learner": {"lr": 1e-3, "warmup_steps": 20, "lr_decay": "cosine"},
        }  # fmt: skip
        run_recipe("sft", tables, folder)
    return folder


def problems_file(*, chat: bool) -> Path:
    """Sums that were not imitated, as plain text or as a user's messages."""
    path = WORK / f"sums_{'chat' if chat else 'plain'}.jsonl"
    if not path.exists():
        rows = sum_rows(8000, seed=1)[6000:]
        asked = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} if chat else row for row in rows]
        write_rows(path, asked)
    return path


def hone_step(steps: int, threads: int) -> dict[str, float]:
    """Medians of a step, without the first two."""
    config = grpo.GrpoConfig.model_validate(
        {
            "recipe": "grpo",
            "name": "bench",
            "steps": steps,
            "run": {"threads": threads},
            "model": {"path": str(model_folder()), "compute": "float32"},
            "task": {
                "source": str(problems_file(chat=True)),
                "turns": TURNS,
                "tools": {"use": ["hone:calculator"], "format": "hermes"},
            },
            "rewards": {"functions": [{"use": "exact_match"}]},
            "user_code": {"workers": 1},
            "rollout": {
                "prompts_per_step": PROMPTS,
                "samples_per_prompt": SAMPLES,
                "max_tokens": TURN_TOKENS,
                "max_concurrent": 128,
            },
            "learner": {"lr": 1e-6},
        }
    )
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the command `hone train` does
    job = grpo.ENTRY.build(config)
    marks, cpu, told = [time.perf_counter()], [time.process_time()], dict[str, list[float]]()

    def report(_step: int, episodes: Episodes, _credits: object, _metrics: Metrics, /) -> None:
        marks.append(time.perf_counter())
        cpu.append(time.process_time())
        live = {**job.recipe.source.metrics(), "tokens": float(episodes.decisions)}
        for name in ("tokens", "tools/called", "turns/mean", "reward/mean"):
            told.setdefault(name, []).append(live[name])

    train(job.recipe, steps=steps, callback=report)
    job.close()
    return {
        "seconds": float(np.median(np.diff(marks)[2:])),
        "cpu_s": float(np.median(np.diff(cpu)[2:])),
        **{name: float(np.mean(own)) for name, own in told.items()},
    }


def in_a_process(steps: int, threads: int) -> dict[str, float]:
    """A fresh process, as the peer's: caches of one measurement must not serve the next."""
    words = [sys.executable, __file__, "--hone", json.dumps([steps, threads])]
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False, env=environment))


def peer_step(steps: int, threads: int) -> dict[str, float]:
    """The same of TRL, in its own environment."""
    asked: dict[str, Any] = {
        "model": str(model_folder()), "problems": str(problems_file(chat=False)), "prompts": PROMPTS,
        "samples": SAMPLES, "max_tokens": 2 * TURN_TOKENS, "turns": TURNS, "steps": steps, "threads": threads,
        "attention": "sdpa",
    }  # fmt: skip
    words = [str(require_peer(PEER)), "-c", PROGRAM, json.dumps(asked)]
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False))


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    if done.returncode:
        raise SystemExit(f"{done.args[:3]} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(*, quick: bool) -> list[Row]:
    """Rows of processor and wall time."""
    steps, pairs, threads = (3, 1, 1) if quick else (4, 2, 1)
    model_folder()
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    for _ in range(pairs):
        found.append((in_a_process(steps, threads), peer_step(steps, threads)))
        print(f"hone, TRL: {found[-1]}", file=sys.stderr, flush=True)
    ours, theirs = found[0]
    work = f"{ours['tokens']:,.0f} drawn tokens; TRL {theirs['tokens']:,.0f}, the tool's included"
    rows: list[Row] = []
    for name, unit in (("cpu_s", "CPU s a step"), ("seconds", "s a step")):
        ratio = float(np.median([other[name] / own[name] for own, other in found]))
        rows.append(
            Row(
                row=f"{PROMPTS} x {SAMPLES} dialogues, {ours['turns/mean']:.2f} turns, {unit} ({work})",
                value=float(np.median([own[name] for own, _ in found])),
                unit=unit,
                seeds=pairs,
                peer="TRL 1.16, tools=",
                peer_value=float(np.median([other[name] for _, other in found])),
                ratio=ratio,
                bar=f">= {BAR} x TRL" if name == "cpu_s" else None,
                met=None if quick or name != "cpu_s" else ratio >= BAR,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a GRPO step with tools beside TRL.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        print(json.dumps(hone_step(*json.loads(asked.hone))))
        return
    require_peer(PEER)
    rows = measure(quick=asked.quick)
    tell(grow("GRPO step with tools, model S", "benchmarks/calls_step.py", rows, threads=1, quick=asked.quick))


if __name__ == "__main__":
    main()
