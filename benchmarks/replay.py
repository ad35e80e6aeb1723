"""Replay: what a sample, an update of priorities and an addition cost, in CPU time.

`python benchmarks/replay.py` rewrites the table of RESULTS.md and prints one JSON line per row; `--quick` decides
nothing. Medians over single calls of the thread's own time; the machine's load is printed beside them.
"""

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
from tables import Row, rewrite, tell

from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.replay import kernels as loops
from hone.replay.kernels import Kernels, kernels
from hone.replay.priority import Priorities, Prioritised
from hone.replay.ring import Ring
from hone.replay.steps import Steps
from hone.replay.tree import SumTree

CAPACITY, BATCH, ADDED = 1_000_000, 256, 64
NUMPY = Kernels(change=loops.change, find=loops.find, compiled=False)


def transitions(count: int) -> Episodes:
    """Four numbers seen, one chosen."""
    draws = generator(0, "benchmark", count)
    return Episodes(
        offsets=np.arange(count + 1),
        seen=draws.standard_normal((count, 4), "float32"),
        chosen=draws.integers(0, 2, count),
        logp=np.zeros(count, np.float32),
        version=np.zeros(count, np.int32),
        reward=np.ones(count, np.float32),
        group=np.arange(count),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        final=draws.standard_normal((count, 4), "float32"),
        score=np.zeros(count),
        status=np.zeros(count, np.uint8),
    )


def microseconds(work: Callable[[int], object], times: int) -> tuple[float, float, float]:
    """Median and quartiles of one call's CPU time; the first tenth warms up."""
    taken = np.empty(times)
    for k in range(-(times // 10), times):
        begin = time.thread_time_ns()
        work(k)
        taken[k] = (time.thread_time_ns() - begin) / 1000
    low, middle, high = np.percentile(taken, (25, 50, 75))
    return float(middle), float(low), float(high)


def row(name: str, figures: tuple[float, float, float], *, bar: float | None = None, quick: bool) -> Row:
    value, low, high = figures
    met = None if quick or bar is None else value <= bar
    text = None if bar is None else f"<= {bar:.0f}"
    print(f"{name}: {value:.1f} us ({low:.1f} .. {high:.1f}), load {os.getloadavg()[0]:.1f}", flush=True)
    return Row(row=name, value=value, unit="us", bar=text, met=met)


def tree_rows(using: Kernels, name: str, *, bar: float | None, quick: bool) -> list[Row]:
    tree, draws = SumTree(CAPACITY, using=using), np.random.default_rng(0)
    tree.change(np.arange(CAPACITY), draws.random(CAPACITY))
    masses = draws.random((100, BATCH))

    def cycle(k: int) -> None:
        rows, _ = tree.draw(BATCH, draws)
        tree.change(rows, masses[k % 100])

    figures = microseconds(cycle, 300 if quick else 5000)
    return [row(f"Sum tree, {name}: draw and update {BATCH} of 1e6", figures, bar=bar, quick=quick)]


def memory_rows(*, quick: bool) -> list[Row]:
    times = 300 if quick else 5000
    memory, draws = Prioritised(Ring(CAPACITY), Priorities()), np.random.default_rng(0)
    memory.add(transitions(CAPACITY))
    errors, fresh = draws.random((100, BATCH)), transitions(ADDED)

    def cycle(k: int) -> None:
        memory.sample(BATCH, draws)
        memory.learn(errors[k % 100])

    name = f"Prioritised ring of 1e6: sample {BATCH} (weights, all columns gathered) and update"
    found = [row(name, microseconds(cycle, times), quick=quick)]
    name = f"Prioritised ring of 1e6: add {ADDED} transitions"
    found.append(row(name, microseconds(lambda _: memory.add(fresh), times), bar=20, quick=quick))
    ring = memory.memory
    assert isinstance(ring, Ring)
    uniform = microseconds(lambda _: ring.sample(BATCH, draws), times)
    found.append(row(f"Ring of 1e6: sample {BATCH} uniformly", uniform, quick=quick))
    found.append(
        row(f"Ring of 1e6: add {ADDED} transitions", microseconds(lambda _: ring.add(fresh), times), quick=quick)
    )
    steps = Steps(CAPACITY, length=3, discount=0.99)
    steps.add(transitions(CAPACITY))
    name = f"Linked steps, 1e6: sample {BATCH} windows of 3"
    found.append(row(name, microseconds(lambda _: steps.sample(BATCH, draws), times), quick=quick))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure replay memories.")
    parser.add_argument("--quick", action="store_true", help="few repetitions, decides nothing")
    quick = parser.parse_args().quick
    installed = kernels()
    rows = tree_rows(NUMPY, "numpy", bar=None if installed.compiled else 60, quick=quick)
    if installed.compiled:
        rows += tree_rows(installed, "numba", bar=60, quick=quick)
    rows += memory_rows(quick=quick)
    rewrite("Replay", "benchmarks/replay.py", rows, threads=1, quick=quick)
    tell(rows)


if __name__ == "__main__":
    main()
