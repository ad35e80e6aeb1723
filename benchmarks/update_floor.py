"""The update of a GRPO step beside the matrix products in it, each measured alone: the share that products set.

    python benchmarks/update_floor.py               two minutes on a quiet core; float32 and bfloat16, models S and M
    python benchmarks/update_floor.py --quick       model S once: decides nothing
    python benchmarks/update_floor.py --threads 2   by wall clock, for a machine without other work

The floor counts every product of the forward pass, of the gradients of inputs and weights, and of the logits (three
times: they are computed again for their gradient), at the width and the number of tokens that the update has, in the
time of the library's fastest form of it. hone's own kernels may be faster: a share above 1. Updates and products take
turns; the fastest of each counts. With one thread times are CPU seconds, with more they are wall clock.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from grpo_step import CASES, step_config
from tables import Row, grow, processor, tell
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.models.native.library import widens_half_products
from hone.native.build import keep_freed_memory
from hone.recipes.text import grpo
from hone.text.rows import TokenBatch, TokenRows

BARS = {"S": 0.55, "M": 0.75}
CASE = {"S": "chains", "M": "even"}
PARTS = {
    "products": ("_TiledLinear", "_MixedLinear", "aten::mm", "aten::addmm", "aten::linear", "mkldnn"),
    "attention": ("_NativeAttention", "aten::bmm"),
    "norms": ("_AddNorm", "_RmsNorm"),
    "gates": ("_NativeGate", "_GatedSilu"),
    "logits and chosen tokens": ("_TokenLogprobs", "aten::_log_softmax", "aten::gather", "aten::scatter_add_"),
    "optimizer": ("aten::_fused_adamw_", "aten::linalg_vector_norm"),
    "copies and casts": ("aten::copy_", "aten::fill_", "aten::zero_", "aten::cat", "aten::index"),
}
"""Parts of an update, by how the names of their operations begin; the rest is small operations and Python."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """Products `[rows, inputs] x [inputs, outputs]` with both gradients, `count` of them in an update."""

    rows: int
    inputs: int
    outputs: int
    count: int
    dtype: torch.dtype
    forwards: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inputs * self.outputs * self.count * (self.forwards + 2)


def product_shapes(policy: TokenPolicy, tokens: int, decisions: int) -> list[ProductShape]:
    """The products of an update over packed `tokens`, of which `decisions` are turned into log-probabilities."""
    c, kind = policy.decoder.config, policy.decoder.compute
    if widens_half_products():
        kind = torch.float32  # the library's own products of bfloat16 are slower
    width = c.heads * c.head_dim
    pairs = [
        (c.hidden_size, width + 2 * c.kv_heads * c.head_dim),
        (width, c.hidden_size),
        (c.hidden_size, 2 * c.mlp_width),
        (c.mlp_width, c.hidden_size),
    ]
    layers = [ProductShape(tokens, inputs, outputs, c.layers, kind) for inputs, outputs in pairs]
    return [*layers, ProductShape(decisions, c.hidden_size, policy.vocab_size_used, 1, torch.float32, forwards=2)]


def fastest_forms(shape: ProductShape) -> list[tuple[int, list[Callable[[], Tensor]]]]:
    """How often each product occurs, and the forms in which the library may compute it."""
    x, weight, g = (
        torch.randn(size).to(shape.dtype)
        for size in ((shape.rows, shape.inputs), (shape.outputs, shape.inputs), (shape.rows, shape.outputs))
    )
    forward, to_x, to_weight = torch.empty_like(g), torch.empty_like(x), torch.empty_like(weight)
    turned = torch.empty(shape.inputs, shape.outputs, dtype=shape.dtype)
    return [
        (shape.count * shape.forwards, [partial(torch.mm, x, weight.t(), out=forward)]),
        (shape.count, [partial(torch.mm, g, weight, out=to_x)]),
        (shape.count, [partial(torch.mm, g.t(), x, out=to_weight), partial(torch.mm, x.t(), g, out=turned)]),
    ]


def measure(shape: str, kind: str, *, threads: int, rounds: int) -> dict[str, float]:
    """Seconds of the update, of its products and of its parts, in this process."""
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the command `hone train` does
    clock = time.process_time if threads == 1 else time.perf_counter
    case = next(case for case in CASES[shape] if case[0] == CASE[shape])
    job = grpo.ENTRY.build(step_config(shape, case, kind, steps=1, threads=threads))
    learner, source = job.recipe.learner, job.recipe.source
    assert isinstance(learner, GradientLearner)
    source.publish(learner.policy)
    episodes = source.collect()
    credits = job.recipe.credit(episodes, learner.values(episodes))
    shapes = _shapes_of(cast("GradientLearner[TokenPolicy, TokenBatch]", learner), episodes, credits)
    forms = [pair for one in shapes for pair in fastest_forms(one)]
    best, best_form = float("inf"), [[float("inf")] * len(ways) for _, ways in forms]
    for _ in range(rounds):
        best = min(best, _seconds(partial(learner.update, episodes, credits), clock))
        for place, (_, ways) in enumerate(forms):
            best_form[place] = [min(a, _seconds(way, clock)) for a, way in zip(best_form[place], ways, strict=True)]
    floor = sum(count * min(found) for (count, _), found in zip(forms, best_form, strict=True))
    parts = _parts(partial(learner.update, episodes, credits), best)
    job.close()
    return {"update": best, "floor": floor, "flops": float(sum(one.flops for one in shapes)), **parts}


def _shapes_of(
    learner: GradientLearner[TokenPolicy, TokenBatch], episodes: Episodes, credits: Credits
) -> list[ProductShape]:
    rows = learner.layout(episodes, credits)
    assert isinstance(rows, TokenRows)
    kept = rows.weighted()
    assert int(kept.sizes().sum()) <= learner.micro_batch_tokens, "a floor is counted of one micro-batch"
    batch = kept.tensors()
    return product_shapes(learner.policy, len(batch.packed.tokens), len(batch.at))


def _seconds(action: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    action()
    return clock() - began


def _parts(action: Callable[[], object], seconds: float) -> dict[str, float]:
    """`seconds` by part, in the proportions of the fastest of three profiled updates."""
    found: list[dict[str, float]] = []
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            action()
        taken = dict.fromkeys([*PARTS, "small operations and Python"], 0.0)
        for event in trace.key_averages():
            name = event.key.removeprefix("autograd::engine::evaluate_function: ")
            part = next((part for part, heads in PARTS.items() if name.startswith(heads)), list(taken)[-1])
            taken[part] += event.self_cpu_time_total
        found.append(taken)
    fastest = min(found, key=lambda one: sum(one.values()))
    whole = sum(fastest.values())
    return {part: seconds * value / whole for part, value in fastest.items()}


def in_a_process(shape: str, kind: str, threads: int, rounds: int) -> dict[str, float]:
    """A fresh process, so that no measurement is served by the caches of another."""
    words = [sys.executable, __file__, "--measure", json.dumps([shape, kind, threads, rounds])]
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{words} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def rows_of(shape: str, kind: str, *, threads: int, rounds: int, quick: bool) -> list[Row]:
    found = in_a_process(shape, kind, threads, rounds)
    update, floor = found["update"], found["floor"]
    rate = found["flops"] / floor / 1e9
    share = Row(
        row=f"{shape}, {CASE[shape]}, {kind}: {update:.3f} s an update, its products alone {floor:.3f} s "
        f"({found['flops'] / 1e9:,.0f} GFLOP at {rate:,.0f} GFLOP/s)",
        value=floor / update,
        unit="of the floor",
        seeds=rounds,
        bar=f">= {BARS[shape]}",
        met=None if quick else floor / update >= BARS[shape],
    )
    names = [*PARTS, "small operations and Python"]
    return [share, *(Row(row=f"{shape}, {kind}: {name}", value=found[name], unit="s", seeds=rounds) for name in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the update of a GRPO step beside its matrix products.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(CASE))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        shape, kind, threads, rounds = json.loads(asked.measure)
        print(json.dumps(measure(shape, kind, threads=threads, rounds=rounds)))
        return
    print(processor(), file=sys.stderr)
    shapes = ["S"] if asked.quick else [shape for shape in CASE if asked.only in {None, shape}]
    rounds = {"S": 2 if asked.quick else 15, "M": 4}
    rows = (
        row
        for shape in shapes
        for kind in ("float32", "bfloat16")
        for row in rows_of(shape, kind, threads=asked.threads, rounds=rounds[shape], quick=asked.quick)
    )
    tell(grow("Update and its products", "benchmarks/update_floor.py", rows, threads=asked.threads, quick=asked.quick))


if __name__ == "__main__":
    main()
