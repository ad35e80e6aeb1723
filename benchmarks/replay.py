"""Replay: what a sample, an update of priorities and an addition cost, in CPU time.

`python benchmarks/replay.py` rewrites the table of RESULTS.md and prints one JSON line per row; `--quick` decides
nothing. Medians over single calls of the thread's own time; the machine's load is printed beside them. Where a peer
does the same work, blocks of calls take turns, and figures and ratios are medians over the rounds; each peer lives in
an environment of its own (`.peers`). Without one its rows are left out, and that is said.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO

import numpy as np
from peers import require_peer
from tables import HERE, Row, rewrite, tell

from hone.control.replay.priority import PrioritizedSampler, PriorityParams, SumTree
from hone.control.replay.ring import RingBuffer
from hone.control.replay.steps import StepBuffer
from hone.core.episodes import Episodes
from hone.core.random import generator

CAPACITY, BATCH, ADDED = 1_000_000, 256, 64
RIVALS = {"tianshou": "Tianshou 2.0.1", "cpprb": "cpprb 11.0.0"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer's process, which lives as long as its input."""

    name: str
    works: tuple[str, ...]
    asks: IO[str]
    answers: IO[str]

    def microseconds(self, work: str, times: int) -> float:
        """Median of so many calls."""
        self.asks.write(f"{work} {times}\n")
        self.asks.flush()
        return float(json.loads(self.answers.readline()))


def started(folder: str, until: ExitStack) -> list[Peer]:
    """The peer; none where it cannot be installed."""
    name = RIVALS[folder]
    try:
        python = require_peer(folder)
    except subprocess.CalledProcessError as error:
        print(f"{name} could not be installed, its rows are left out: {error}", flush=True)
        return []
    process = until.enter_context(
        subprocess.Popen(
            [str(python), str(HERE / "replay_peer.py"), folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    works = tuple(json.loads(process.stdout.readline()))
    return [Peer(name=name, works=works, asks=process.stdin, answers=process.stdout)]


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


def rows_of(
    name: str,
    work: Callable[[int], object],
    rivals: Sequence[Peer] = (),
    *,
    against: str = "",
    bar: float | None = None,
    quick: bool,
) -> list[Row]:
    """One row against each peer that does the work named `against`; else one row."""
    rivals = [peer for peer in rivals if against in peer.works]
    rounds, calls = (3, 100) if quick else (25, 200)
    found = [
        [microseconds(work, calls)[0], *(peer.microseconds(against, calls) for peer in rivals)] for _ in range(rounds)
    ]
    columns = np.array(found)
    low, value, high = (float(each) for each in np.percentile(columns[:, 0], (25, 50, 75)))
    print(f"{name}: {value:.1f} us ({low:.1f} .. {high:.1f}), load {os.getloadavg()[0]:.1f}", flush=True)
    text = None if bar is None else f"<= {bar:.0f}"
    plain = Row(row=name, value=value, unit="us", bar=text, met=None if quick or bar is None else value <= bar)
    rows: list[Row] = []
    for peer, theirs in zip(rivals, columns.T[1:], strict=True):
        there, ratio = float(np.median(theirs)), float(np.median(theirs / columns[:, 0]))
        rows.append(replace(plain, peer=peer.name, peer_value=there, ratio=ratio, seeds=rounds))
    return rows or [plain]


def tree_rows(rivals: Sequence[Peer], *, quick: bool) -> list[Row]:
    tree, draws = SumTree(CAPACITY), np.random.default_rng(0)
    tree.set_masses(np.arange(CAPACITY), draws.random(CAPACITY))
    masses = draws.random((100, BATCH))

    def cycle(k: int) -> None:
        rows, _ = tree.sample_rows(BATCH, draws)
        tree.set_masses(rows, masses[k % 100])

    return rows_of(f"Sum tree: draw and update {BATCH} of 1e6", cycle, rivals, against="tree", quick=quick)


def memory_rows(rivals: Sequence[Peer], *, quick: bool) -> list[Row]:
    memory, draws = PrioritizedSampler(RingBuffer(CAPACITY), PriorityParams()), np.random.default_rng(0)
    memory.add(transitions(CAPACITY))
    errors, fresh = draws.random((100, BATCH)), transitions(ADDED)

    def cycle(k: int) -> None:
        memory.sample(BATCH, draws)
        memory.update_priorities(errors[k % 100])

    name = f"Prioritised ring of 1e6: sample {BATCH} (weights, all columns gathered) and update"
    found = rows_of(name, cycle, rivals, against="sample", quick=quick)
    name = f"Prioritised ring of 1e6: add {ADDED} transitions"
    found += rows_of(name, lambda _: memory.add(fresh), rivals, against="add", bar=20, quick=quick)
    ring = memory.buffer
    assert isinstance(ring, RingBuffer)
    found += rows_of(f"Ring of 1e6: sample {BATCH} uniformly", lambda _: ring.sample(BATCH, draws), quick=quick)
    found += rows_of(f"Ring of 1e6: add {ADDED} transitions", lambda _: ring.add(fresh), quick=quick)
    steps = StepBuffer(CAPACITY, n_steps=3, discount=0.99)
    steps.add(transitions(CAPACITY))
    name = f"Linked steps, 1e6: sample {BATCH} windows of 3"
    found += rows_of(name, lambda _: steps.sample(BATCH, draws), quick=quick)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure replay memories.")
    parser.add_argument("--quick", action="store_true", help="few repetitions, decides nothing")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    arguments = parser.parse_args()
    quick = arguments.quick
    with ExitStack() as until:
        rivals = [peer for folder in RIVALS for peer in started(folder, until)]
        rows = tree_rows(rivals, quick=quick) + memory_rows(rivals, quick=quick)
    if not arguments.dry:
        rewrite("Replay", "benchmarks/replay.py", rows, threads=1, quick=quick)
    tell(rows)


if __name__ == "__main__":
    main()
