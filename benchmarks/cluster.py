"""A fleet on Ray beside the embedded engine: equal weights under harm, the overhead of one replica, publications.

    python benchmarks/cluster.py                     all parts, half an hour on two cores
    python benchmarks/cluster.py --only drills       one part: equal, overhead, throughput, survivors, drills
    python benchmarks/cluster.py --harms 3 --steps 8 a few minutes: decides nothing
    python benchmarks/cluster.py --quick             the overhead over four steps, a minute: decides nothing

GRPO on chain_sum with a decoder of 56,000 parameters, 16 prompts x 8 answers a step, on a Ray cluster of nodes on this
machine. `equal`: 1, 2 and 4 replicas, staleness 0 and 1: every file of the last checkpoint has the sha256 of the
embedded engine's run. `overhead`: times of a step and of a publication with one replica on the driver's node, for this
decoder and for one of 1.2 million parameters, and the CPU seconds of driver and replica. `throughput`: tokens a second
of as many replicas as there are cores, one thread each, with 4.4 M parameters and 512 answers of 96 tokens a step.
`survivors`: the time from the loss of one of two replicas to the end of their round. `drills`: a run whose replicas are
killed (-9), stopped (SIGSTOP) or lost with their node at random moments, `--harms` times each; the same sha256, and the
longest step, which holds the wait for replacements. Prints one JSON line per row, and rewrites its tables in
`benchmarks/RESULTS.md`.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from cluster_harm import CpuThread, HarmingThread, by_node, by_signal, connected_nodes
from cluster_survivors import survivors
from tables import Row, grow, tell

from hone.cli.main import main as hone

SOURCE = Path(__file__).resolve().parents[1] / "src"
PATIENCE_S = 5.0
DRILL_STEPS = 60
CONFIG = """
recipe = "grpo"
name = "run"

[model]
compute = "float32"
[model.new]
family = "qwen3"
hidden_size = 64
layers = 2
heads = 4
kv_heads = 2
head_dim = 16
intermediate_size = 128
max_positions = 64

[task]
source = "reasoning_gym:chain_sum"
size = 2000
seed = 1
distinct = false
options = { min_terms = 2, max_terms = 3, min_digits = 1, max_digits = 1 }
template = "{metadata.expression} ="

[user_code]
workers = 1

[rewards]
[[rewards.functions]]
use = "reasoning_gym"

[rollout]
prompts_per_step = 16
samples_per_prompt = 8
max_tokens = 24

[learner]
lr = 1e-3

[run]
threads = 1
certify = false
rollouts_every = 0
checkpoint_every = 0
"""

LARGER = [
    f"model.new.{key}={value}"
    for key, value in {"hidden_size": 160, "layers": 4, "heads": 5, "kv_heads": 5, "head_dim": 32}.items()
] + ["model.new.intermediate_size=426"]
"""Overrides for a decoder of 1.2 million parameters, 5 MB."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run that has finished."""

    files: dict[str, object]
    """Size and sha256 of each file of its last checkpoint."""
    step_s: list[float]
    publish_s: list[float]
    collect_s: list[float]
    tokens: list[float]
    """Drawn in each step."""
    lost: float
    cpu_s: float
    """CPU seconds of a step, driver and replicas together."""


def trained(folder: Path, name: str, *overrides: str, steps: int) -> FinishedRun:
    """Train in this process; `overrides` of the config."""
    given = ["train", "run.toml", f"name={name}", f"steps={steps}", *overrides]
    metrics = folder / "runs" / name / "metrics.jsonl"
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log, CpuThread(metrics) as spent:
        before, sys.stdout = sys.stdout, log
        try:
            code = hone(given)
        finally:
            sys.stdout = before
    if code:
        raise SystemExit(f"{name} ended with {code}; see {folder / name}.log")
    manifest = folder / "runs" / name / "checkpoints" / f"step_{steps:08d}" / "manifest.json"
    written = metrics.read_text(encoding="utf-8")
    lines: list[dict[str, float]] = [json.loads(line) for line in written.splitlines()]
    return FinishedRun(
        files=without_times(json.loads(manifest.read_text(encoding="utf-8"))["files"]),
        step_s=[line["time/step_s"] for line in lines],
        publish_s=[line.get("time/publish_s", 0.0) for line in lines],
        collect_s=[line["time/collect_s"] for line in lines],
        tokens=[line["rollout/tokens"] for line in lines],
        lost=sum(line.get("fleet/lost", 0.0) for line in lines),
        cpu_s=spent.of_a_step(),
    )


def without_times(files: dict[str, object]) -> dict[str, object]:
    """Files whose content depends on nothing but the run: a batch collected ahead is saved with its times."""
    return {name: found for name, found in files.items() if name != "state/state.json"}


def fleet(count: int, *, patience_s: float = 60.0) -> list[str]:
    """Overrides for a fleet in the connected cluster."""
    table = {"address": '"auto"', "patience_s": patience_s, "losses_allowed": 1000}
    rollout = {"replicas": count, "cpus": 0.5}
    return [f"cluster.{key}={value}" for key, value in table.items()] + [
        f"cluster.rollout.{key}={value}" for key, value in rollout.items()
    ]


def equal(folder: Path, steps: int) -> Iterator[Row]:
    """Weights for every number of replicas and staleness."""
    for ahead in (0, 1):
        stale = f"rollout.max_staleness={ahead}"
        alone = trained(folder, f"embedded_{ahead}", stale, steps=steps)
        for count in (1, 2, 4):
            found = trained(folder, f"fleet_{ahead}_{count}", stale, *fleet(count), steps=steps)
            same = same_files(found, alone)
            whole = len(alone.files)
            row = f"{count} replicas, staleness {ahead}, {steps} steps"
            yield Row(row=row, value=same, unit=f"of {whole} files equal", bar="all", met=same == whole)


def drills(folder: Path, harms: int, cluster: Any) -> Iterator[Row]:  # noqa: ANN401 - Ray's
    """Runs under harm."""
    kinds = {"kill -9": by_signal(signal.SIGKILL), "SIGSTOP": by_signal(signal.SIGSTOP), "node lost": by_node(cluster)}
    for ahead in (0, 1):
        alone = trained(folder, f"whole_{ahead}", f"rollout.max_staleness={ahead}", steps=DRILL_STEPS)
        for name, harm in kinds.items():
            runs = harmed_runs(folder, f"drill_{ahead}_{name.replace(' ', '_')}", ahead, harm, harms)
            matched = sum(same_files(one, alone) == len(alone.files) for one in runs)
            longest, lost = max(max(one.step_s) for one in runs), sum(one.lost for one in runs)
            row = f"{name} {harms} times, staleness {ahead}: {lost:.0f} replicas replaced"
            yield Row(row=row, value=matched, unit=f"of {len(runs)} runs equal", bar="all", met=matched == len(runs))
            bar = PATIENCE_S + 60
            yield Row(row=f"{row}; longest step", value=longest, unit="s", bar=f"<= {bar:g}", met=longest <= bar)


def harmed_runs(
    folder: Path, name: str, ahead: int, harm: Callable[[random.Random], bool], harms: int
) -> list[FinishedRun]:
    """As many runs as it takes to harm three replicas `harms` times."""
    runs = list[FinishedRun]()
    given = [f"rollout.max_staleness={ahead}", *fleet(3, patience_s=PATIENCE_S)]
    while harms:
        with HarmingThread(harm, harms) as thread:
            runs.append(trained(folder, f"{name}_{len(runs)}", *given, steps=DRILL_STEPS))
        harms = thread.left
    return runs


def overhead(folder: Path, steps: int) -> Iterator[Row]:
    """Times of a step and a publication, embedded and with one replica, in turns."""
    for size, overrides in {"0.3 MB": [], "5 MB": LARGER}.items():
        found: dict[str, list[FinishedRun]] = {"embedded": [], "one replica": []}
        for turn in range(2):
            name = f"{size[0]}_{turn}"
            found["embedded"].append(trained(folder, f"alone_{name}", *overrides, steps=steps))
            found["one replica"].append(trained(folder, f"one_{name}", *overrides, *fleet(1), steps=steps))
        yield from overhead_rows(size, found)


def overhead_rows(size: str, found: dict[str, list[FinishedRun]]) -> Iterator[Row]:
    """Rows of the runs with one size of the weights."""
    # The first steps wait for the replica to start.
    steps_s = {name: np.concatenate([one.step_s[2:] for one in runs]) for name, runs in found.items()}
    publish_s = {name: np.concatenate([one.publish_s[2:] for one in runs]) for name, runs in found.items()}
    cpu_s = {name: np.array([one.cpu_s for one in runs]) for name, runs in found.items()}
    step, longer = "a step with one replica, weights of", 1.15
    yield versus(f"median time of {step} {size}", steps_s, np.median, "s", longer)
    yield versus(f"fastest time of {step} {size}", steps_s, np.min, "s", longer)
    yield versus(f"CPU time of {step} {size}", cpu_s, np.min, "s", None)
    copy_s = copy_time_s(steps=2, size=int(1e6 * float(size.split()[0])))
    row = versus(f"median publication, {size}", publish_s, np.median, "s", None)
    met = row.value <= (row.peer_value or 0.0) + 0.01 + copy_s
    yield replace(row, bar=f"<= embedded + 10 ms + {1e3 * copy_s:.1f} ms (two copies)", met=met)


def versus(
    row: str, found: dict[str, np.ndarray], taken: Callable[[np.ndarray], Any], unit: str, longer: float | None
) -> Row:
    """One replica against the embedded engine; `longer`: highest ratio."""
    alone, one = (float(taken(found[name])) for name in ("embedded", "one replica"))
    bar = None if longer is None else f"<= {longer:g}"
    met = None if longer is None else one <= longer * alone
    return Row(
        row=row,
        value=one,
        unit=unit,
        seeds=2,
        peer="embedded",
        peer_value=alone,
        ratio=one / alone,
        bar=bar,
        met=met,
    )


def copy_time_s(*, steps: int, size: int) -> float:
    """Shortest time of `steps` copies of `size` bytes."""
    source, target, found = np.ones(size, np.uint8), np.zeros(size, np.uint8), list[float]()
    for _ in range(20):
        began = time.perf_counter()
        np.copyto(target, source)
        found.append(time.perf_counter() - began)
    return steps * min(found)


def throughput(folder: Path) -> Iterator[Row]:
    """Tokens a second of rounds over 1, 2, 4 and 8 replicas, as far as there are cores, beside N times that of one."""
    model = {"hidden_size": 256, "layers": 4, "heads": 4, "kv_heads": 4, "head_dim": 64, "intermediate_size": 1024}
    given = [f"model.new.{key}={value}" for key, value in model.items()]
    given += ["model.new.max_positions=128", "rollout.prompts_per_step=64", "rollout.max_tokens=96"]
    alone = 0.0
    for count in (1, 2, 4, 8):
        if count > (os.cpu_count() or 1):
            return
        run = trained(folder, f"throughput_{count}", *given, *fleet(count), steps=6)
        reached = float(np.median([tokens / wait for tokens, wait in zip(run.tokens, run.collect_s, strict=True)][2:]))
        if count == 1:
            alone = reached
            continue
        ratio = reached / (count * alone)
        yield Row(
            row=f"{count} replicas, one thread each",
            value=reached,
            unit="tokens/s",
            peer=f"{count} times one replica",
            peer_value=count * alone,
            ratio=ratio,
            bar=">= 0.85 of it",
            met=ratio >= 0.85,
        )


def same_files(one: FinishedRun, other: FinishedRun) -> int:
    """Number of files of `other` that `one` has with the same content."""
    return sum(one.files.get(name) == content for name, content in other.files.items())


def measure(name: str, part: Callable[[Any], Iterator[Row]], *, quick: bool) -> None:
    """Print and write the rows of a part. The one replica of `overhead` stands on the driver's node."""
    with connected_nodes(1 if name == "overhead" else 2) as cluster:
        tell(grow(f"Fleet, {name}", "benchmarks/cluster.py", part(cluster), threads=1, quick=quick))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("equal", "overhead", "throughput", "survivors", "drills"))
    parser.add_argument("--harms", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.only, given.harms, given.steps = "overhead", 1, 4
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])  # of the replicas
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
        os.chdir(folder)
        parts: dict[str, Callable[[Any], Iterator[Row]]] = {
            "equal": lambda _: equal(folder, given.steps),
            "overhead": lambda _: overhead(folder, given.steps),
            "throughput": lambda _: throughput(folder),
            "survivors": lambda _: survivors(given.harms),
            "drills": lambda cluster: drills(folder, given.harms, cluster),
        }
        for name in [given.only] if given.only else parts:
            measure(name, parts[name], quick=given.harms < 20)
        os.chdir(SOURCE)


if __name__ == "__main__":
    main()
