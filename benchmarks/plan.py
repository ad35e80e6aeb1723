"""The memory planner against what happens: closed form, tracker, allocator, a process with limited memory, and time.

`python benchmarks/plan.py out.json` measures, on a CPU:

- shapes: the closed form of a step against a tracker of every tensor, the tracker against the allocator's own events
  (torch's profiler), and a step of fake tensors against a real one;
- recipes: the same of a recipe's own update: a policy with all weights or an adapter, with its critic, a reward model;
- ranks: the same of one rank of two that talk over gloo: all weights, `run.tensor = 2`, an adapter, a reward model;
- limit: the largest micro-batch that the plan says fits runs in a process whose private memory (RLIMIT_DATA: heap and
  anonymous maps, which is what tensors are; RLIMIT_AS would count libraries and reserved addresses as well) is limited
  to libraries and planned bytes, and 1.15 times it does not. The C library's allocator maps each tensor by itself there
  (MALLOC_MMAP_THRESHOLD_), because its heap keeps what is freed;
- time: CPU seconds of `hone plan --memory` and `hone plan --memory --exact`, each in a process of its own.

`--only shapes|recipes|ranks|limit|time` measures one part, `--quick` one shape.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile

from hone.core.clock import SystemClock
from hone.models.native.library import available_kernels, uses_amx_tiles, widens_half_products
from hone.parallel.group import RankMeeting, joined, open_meeting
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import PlannedRanks
from hone.planner.run_memory import HOLES, GenerationSettings, RunDimensions, run_memory
from hone.planner.run_settings import adapter_copies, adapter_sizes
from hone.planner.training_step import NumberType, StepSettings, step_memory
from hone.process.machine_memory import resident_bytes
from hone.recipes.recipe_step import take_recipe_step
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig
from hone.text.tracked_step import tracked_step, why_not_tracked

S: Final = PlannedDecoder(
    family="qwen3", layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=768, vocab=2048, tied=True,
    qk_norm=True,
)  # fmt: skip
STEP: Final = StepSettings(tokens=2048, text_tokens=256)
SHAPES: Final[dict[str, tuple[PlannedDecoder, StepSettings]]] = {
    "S, float32": (S, STEP),
    "S, bfloat16 products": (S, replace(STEP, compute="bfloat16")),
    "S, bfloat16 weights": (S, replace(STEP, weights="bfloat16", compute="bfloat16")),
    "S, bfloat16 weights, checkpointing": (
        S, replace(STEP, weights="bfloat16", compute="bfloat16", checkpointing=True)
    ),
    "S, rounded again": (S, replace(STEP, compute="bfloat16", rounds_again=True)),
    "S, checkpointing": (S, replace(STEP, checkpointing=True)),
    "S, untied, no head norms": (replace(S, family="llama", tied=False, qk_norm=False), STEP),
    "S, grouped queries": (replace(S, heads=8, kv_heads=1), STEP),
    "S, long texts": (S, replace(STEP, text_tokens=1024, compute="bfloat16")),
    "S, entropy": (S, replace(STEP, entropy=True)),
    "M, bfloat16 products": (
        replace(S, layers=8, hidden=512, heads=8, intermediate=1536, vocab=8192), replace(STEP, compute="bfloat16")
    ),
    "experts, float32": (replace(S, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=384), STEP),
    "experts, bfloat16 products": (
        replace(S, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=384),
        replace(STEP, compute="bfloat16"),
    ),
    "experts, bfloat16 weights": (
        replace(S, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=384),
        replace(STEP, weights="bfloat16", compute="bfloat16"),
    ),
}  # fmt: skip
WRITERS: Final = ("grpo", "ppo_text")
RECIPES: Final[tuple[tuple[str, str, int, NumberType], ...]] = (
    ("grpo", "grpo", 0, "float32"),
    ("grpo, adapter", "grpo", 16, "float32"),
    ("grpo, adapter, bfloat16 products", "grpo", 16, "bfloat16"),
    ("ppo_text, with its critic", "ppo_text", 0, "float32"),
    ("ppo_text, with its critic, bfloat16 products", "ppo_text", 0, "bfloat16"),
    ("reward_pairs", "reward_pairs", 0, "float32"),
)
"""Row, recipe, rank of the adapter (0: all weights) and type of the products."""
RANKED: Final[tuple[tuple[str, str, int, int], ...]] = (
    ("grpo", "grpo", 0, 1), ("grpo, run.tensor = 2", "grpo", 0, 2), ("grpo, adapter", "grpo", 16, 1),
    ("reward_pairs", "reward_pairs", 0, 1),
)  # fmt: skip
"""Row, recipe, rank of the adapter and `run.tensor`, on two ranks."""
RANKS_ADDRESS: Final = "127.0.0.1"
OUT_OF_MEMORY: Final = 3
USABLE: Final = 0.95
"""Share of a device's memory that a plan gives to tensors; the rest is rounding to pages and small objects."""
Row = dict[str, Any]


def here(settings: StepSettings) -> StepSettings:
    """The settings with this machine's kernels."""
    path = "torch" if available_kernels() is None else "compiled"
    return replace(settings, path=path, tile_scratch=uses_amx_tiles(), widens=widens_half_products())


def allocator_peak(work: Callable[[], object]) -> int:
    """Most bytes that the allocator gave out at once, by its own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    live = peak = 0
    for event in sorted(_memory_events(found), key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _memory_events(found: profile) -> Iterable[Any]:
    return (event for event in found.profiler.kineto_results.events() if event.name() == "[memory]")


def shapes(*, quick: bool = False) -> list[Row]:
    """Closed form, tracker, fake tensors and allocator over the shapes; `quick`: over the first."""
    rows: list[Row] = []
    for name, (shape, asked) in list(SHAPES.items())[: 1 if quick else None]:
        settings, clock = here(asked), SystemClock()
        real = tracked_step(shape, settings, clock=clock, fake=False)
        whole = real.resident_bytes + real.working_bytes
        taken = allocator_peak(partial(tracked_step, shape, settings, clock=clock, fake=False))
        planned = real.resident_bytes + step_memory(shape, settings).peak
        row = {
            "shape": name, "path": settings.path, "tracker_mib": whole / 2**20, "closed_off": planned / whole - 1,
            "step_off": step_memory(shape, settings).peak / real.working_bytes - 1, "allocator_off": whole / taken - 1,
        }  # fmt: skip
        if not why_not_tracked(RunDimensions(shape=shape, step=settings)):
            fake = tracked_step(shape, settings, clock=clock)
            row["fake_off"] = (fake.resident_bytes + fake.working_bytes) / whole - 1
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def recipe_config(name: str, rank: int) -> RunConfig:
    """Settings of a small run; its model and data are never opened."""
    model: Row = {"path": "nowhere", **({"lora": {"rank": rank}} if rank else {})}
    values: Row = {
        "name": name, "recipe": name, "steps": 1, "task": {"source": "prompts.jsonl"}, "model": model,
        "learner": {"lr": 1e-4, "micro_batch_tokens": STEP.tokens},
    }  # fmt: skip
    if name in WRITERS:
        values["rewards"] = {"functions": [{"use": "exact_match"}]}
        values["rollout"] = {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 192}
    return load_recipe(name).config.model_validate(values)


def recipe_run(recipe: str, rank: int, compute: NumberType = "float32") -> RunDimensions:
    """Dimensions of an update of `recipe_config`."""
    trained, adapted = adapter_sizes(S, rank, "all") if rank else (None, 0)
    writes = recipe in WRITERS
    step = replace(
        here(STEP), compute=compute, trained_vocabulary=not rank, predicts_tokens=writes,
        chosen_tokens=192 if writes else 0, texts_together=1 if writes else 2,
    )  # fmt: skip
    answers = GenerationSettings(concurrent=8, prompt_tokens=64, answer_tokens=192, weights_bytes=0)
    copies = {} if trained is None else adapter_copies(trained, adapted, "float32")
    return RunDimensions(
        shape=S, step=step, generation=answers if writes else None, trained_parameters=trained, copies=copies
    )


def ranks() -> list[Row]:
    """Closed form, tracker, fake tensors and allocator over updates of both of two ranks."""
    rows: list[Row] = []
    for place, (name, recipe, rank, tensor) in enumerate(RANKED):
        with socket.create_server((RANKS_ADDRESS, 0)) as free:
            port = free.getsockname()[1]
        words = [[sys.executable, __file__, "--rank", str(place), str(each), str(port)] for each in range(2)]
        children = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for line in words]
        told = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
        for each, (real, taken) in enumerate(told):
            run = ranked_run(recipe, rank, tensor, each)
            fake = take_recipe_step(recipe_config(recipe, rank), run, clock=SystemClock())
            memory = run_memory(replace(run, generation=None))
            closed = memory.phases["learn"] - memory.components.get(HOLES, 0)
            row = {
                "shape": f"{name}, rank {each} of 2", "path": run.step.path, "tracker_mib": real / 2**20,
                "closed_off": closed / real - 1, "allocator_off": real / taken - 1,
                "fake_off": (fake.resident_bytes + fake.working_bytes) / real - 1,
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def ranked_run(recipe: str, rank: int, tensor: int, each: int) -> RunDimensions:
    """Dimensions of an update of two ranks, from the place of rank `each`."""
    run = recipe_run(recipe, rank)
    step = replace(run.step, step_tokens=STEP.tokens * 2 // tensor)
    return replace(run, step=step, ranks=PlannedRanks(count=2, tensor=tensor, is_driver=each == 0))


def one_rank(place: int, each: int, port: int) -> int:
    """Be one of two ranks, and print most bytes of an update, by the tracker and by the allocator."""
    _, recipe, rank, tensor = RANKED[place]
    meeting = RankMeeting(
        rank=each, ranks=2, virtual=0, tensor=tensor, patience_s=300.0, device="cpu", address=RANKS_ADDRESS, port=port
    )
    begun = open_meeting(meeting)[0] if each == 0 else None
    with joined(meeting, begun) as group:
        taken = partial(
            take_recipe_step, recipe_config(recipe, rank), ranked_run(recipe, rank, tensor, each), clock=SystemClock(),
            fake=False, group=group,
        )  # fmt: skip
        found, peak = taken(), allocator_peak(taken)
    print(json.dumps([found.resident_bytes + found.working_bytes, peak]), flush=True)
    return 0


def recipes() -> list[Row]:
    """Closed form, tracker, fake tensors and allocator over updates of recipes."""
    rows: list[Row] = []
    for name, recipe, rank, compute in RECIPES:
        run = recipe_run(recipe, rank, compute)
        step = run.step
        taken = partial(take_recipe_step, recipe_config(recipe, rank), run, clock=SystemClock())
        real, fake = taken(fake=False), taken()
        whole, closed = real.resident_bytes + real.working_bytes, step_memory(S, step).peak
        row = {
            "shape": name, "path": step.path, "tracker_mib": whole / 2**20,
            "closed_off": (real.resident_bytes + closed) / whole - 1, "step_off": closed / real.working_bytes - 1,
            "allocator_off": whole / allocator_peak(partial(taken, fake=False)) - 1,
            "fake_off": (fake.resident_bytes + fake.working_bytes) / whole - 1,
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def limited(tokens: int, limit: int) -> int:
    """Code of a child that takes steps of `tokens` tokens in `limit` bytes beyond its libraries."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    words = [sys.executable, __file__, "--child", str(tokens), str(limit)]
    return subprocess.run(words, env=environment, capture_output=True, check=False).returncode


def child(tokens: int, limit: int) -> int:
    """Steps in a process whose private memory is limited to what it has now and `limit` bytes."""
    settings = here(replace(STEP, compute="bfloat16"))
    tracked_step(S, replace(settings, tokens=256), clock=SystemClock(), fake=False)  # libraries are loaded now
    data = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    held = int(data.split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + limit, held + limit))
    try:
        tracked_step(S, replace(settings, tokens=tokens), clock=SystemClock(), fake=False)
    except (RuntimeError, MemoryError) as error:
        print(error, resident_bytes(), file=sys.stderr)
        return OUT_OF_MEMORY
    return 0


def limit() -> list[Row]:
    """The largest planned micro-batch under a limit, and 1.15 times it."""
    rows: list[Row] = []
    for budget in (256 << 20, 512 << 20):
        settings = here(replace(STEP, compute="bfloat16"))
        low, high = 256, 1 << 17
        while high - low > 1:
            middle = (low + high) // 2
            planned = 16 * S.parameters + step_memory(S, replace(settings, tokens=middle)).peak
            low, high = (middle, high) if planned <= USABLE * budget else (low, middle)
        tokens = low // 256 * 256
        fits, more = limited(tokens, budget), limited(int(1.15 * tokens), budget)
        row = {"budget_mib": budget / 2**20, "tokens": tokens, "runs": fits == 0, "more_runs": more == 0}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def time() -> list[Row]:
    """CPU and wall seconds of the plan's two fast forms, the best of three."""
    config = (
        'recipe = "grpo"\nsteps = 1\ntask.source = "prompts.jsonl"\nrewards.functions = [{ use = "exact_match" }]\n'
        "rollout = { prompts_per_step = 16, samples_per_prompt = 8, max_tokens = 512 }\nlearner.lr = 1e-6\n"
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(config, encoding="utf-8")
        for model in ("Qwen3-0.6B", "Qwen3-8B"):
            for words in ((), ("--exact",)):
                spent = [_spent([sys.executable, "-m", "hone", "plan", str(path), "--memory", "--model", model, *words])
                         for _ in range(3)]  # fmt: skip
                row = {"model": model, "words": " ".join(("--memory", *words)), "cpu_s": min(one[0] for one in spent),
                       "wall_s": min(one[1] for one in spent)}  # fmt: skip
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


def _spent(words: list[str]) -> tuple[float, float]:
    clock = SystemClock()
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), clock.monotonic_s()
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, clock.monotonic_s() - begun


def main() -> int:
    """Measure the parts that are asked for, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="plan.json")
    parser.add_argument("--only", choices=("shapes", "recipes", "ranks", "limit", "time"))
    parser.add_argument("--quick", action="store_true", help="one shape, and no file: decides nothing")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=3, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.child:
        return child(*asked.child)
    if asked.rank:
        return one_rank(*asked.rank)
    if asked.quick:
        shapes(quick=True)
        return 0
    parts = {"shapes": shapes, "recipes": recipes, "ranks": ranks, "limit": limit, "time": time}
    found = {name: work() for name, work in parts.items() if asked.only in (None, name)}
    Path(asked.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
