"""The examples of examples/smollm2 by seeds: what SmolLM2-135M-Instruct learns, and what it costs.

`python benchmarks/chat_examples.py [--only grpo ...] [--seeds 3] [--first-seed 100]` runs each config as it is written,
with one thread and a seed of its own, in a process of its own, one after another, and prints one JSON line for each
row. CPU seconds are those of the processes, whatever else the machine does. Seeds from 100 on chose no setting; a score
has the mean over seeds, its interval, and the worst seed. `--quick` runs one seed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tables import Row

from hone.api import evaluate
from hone.cli.commands.evaluate import find_policy
from hone.cli.commands.fetch import fetch_model
from hone.estimators.means import bootstrap_mean
from hone.models.packing import pack_rows
from hone.run.store.metrics import read_metrics
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.trained_spans import TurnEncoder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "smollm2"
MODEL = "SmolLM2-135M-Instruct"
Figures = dict[str, float]


def run_example(name: str, seed: int, folder: Path) -> float:
    """Train `name`.toml in `folder`, with its data beside it; returns the CPU seconds of the run and its children."""
    (folder / "examples").mkdir(parents=True, exist_ok=True)
    if not (link := folder / "examples" / "smollm2").exists():
        link.symlink_to(EXAMPLES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, EXAMPLES / "chats.py"], cwd=folder, check=True, env=environment)
    shared = "shared." if "[[stage]]" in (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8") else ""
    words = [f"{shared}seed={seed}", f"{shared}run.threads=1", "name=run"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "hone", "train", f"examples/smollm2/{name}.toml", *words]
    subprocess.run(command, cwd=folder, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def column(run: Path, key: str) -> Sequence[float]:
    """Values of a metric of a run, in the order of its steps."""
    values = read_metrics(run / "metrics.jsonl").values[key]
    return [float(one) for one in values[~np.isnan(values)]]


def last(run: Path, key: str) -> float:
    """Newest value of a metric of a run."""
    return column(run, key)[-1]


def turn_nll(policy: Path, conversations: Sequence[Mapping[str, Any]]) -> list[float]:
    """Mean negative log-likelihood of the answers' tokens by turn, in nats."""
    opened = open_policy(ModelSource(path=str(policy), compute="float32"), seed=0, device="cpu", temperature=1.0)
    encoder, terms = TurnEncoder(opened.tokenizer), [[], []]
    for one in conversations:
        (row,) = encoder.rows(one["messages"][:1], one["messages"][1:])
        with torch.no_grad():
            chosen = torch.from_numpy(row.tokens[row.at].astype(np.int64))
            logp = opened.token_logprobs(pack_rows([row.tokens[:-1]]), torch.from_numpy(row.at - 1), chosen).logp
        ends = np.cumsum([end - begin for begin, end in row.spans])[:-1]
        for turn, part in enumerate(np.split(-logp.numpy(), ends)):
            terms[turn] += part.tolist()
    return [float(np.mean(some)) for some in terms]


# -------------------------------------------------------------------------------------------------- figures of one seed


def sums(folder: Path) -> Figures:
    return {f"score, {stage}": last(folder / "runs" / "run" / stage, "eval/score") for stage in ("base", "sft", "grpo")}


def tools(folder: Path) -> Figures:
    stages = [(stage, folder / "runs" / "run" / stage) for stage in ("base", "sft", "grpo")]
    called = {f"dialogues with a call, {stage}": last(run, "eval/tools/called") for stage, run in stages}
    return called | {f"score, {stage}": last(run, "eval/score") for stage, run in stages}


def conversations(folder: Path) -> Figures:
    rows = [json.loads(line) for line in (folder / "facts_held_out.jsonl").read_text().splitlines()]
    held_out = [{"messages": [*row["prompt"], {"role": "assistant", "content": row["answer"]}]} for row in rows]
    trained, _ = find_policy("run", folder / "runs")
    before, after = turn_nll(fetch_model("smollm2"), held_out), turn_nll(trained, held_out)
    nll = {
        f"nll of turn {n}, {when}": values[n - 1] for n in (1, 2) for when, values in (("base", before), ("sft", after))
    }
    scores = {"score, base": held_out_score("hone:smollm2", folder, "facts_held_out.jsonl", "exact_match")}
    return nll | scores | {"score, sft": last(folder / "runs" / "run", "eval/score")}


def preferences(folder: Path) -> Figures:
    run = folder / "runs" / "run"
    chosen, rejected = (column(run, f"preference/{side}_nats") for side in ("chosen", "rejected"))
    brief = held_out_score("hone:smollm2", folder, "capitals_held_out.jsonl", f"{EXAMPLES}/chats.py:brief")
    margin = {
        "margin in nats, first step": chosen[0] - rejected[0],
        "margin in nats, last 5 steps": float(np.mean(chosen[-5:]) - np.mean(rejected[-5:])),
    }
    return margin | {"score, base": brief, "score, trained": last(run, "eval/score")}


def reward_model(folder: Path) -> Figures:
    run = folder / "runs" / "run"
    rewards = column(run / "rl", "reward/mean")
    scores = {f"score, {stage}": last(run / stage, "eval/score") for stage in ("base", "rl")}
    reward = {
        "reward, first 3 steps": float(np.mean(rewards[:3])),
        "reward, last 3 steps": float(np.mean(rewards[-3:])),
    }
    return {"auc": last(run / "rm", "eval/auc"), **reward, **scores}


def held_out_score(policy: str, folder: Path, task: str, rewards: str) -> float:
    return evaluate(policy, task=str(folder / task), rewards=[rewards])["eval/score"]


# ----------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Figures of one config."""

    title: str
    figures: Callable[[Path], Figures]
    """Those of a finished run, by name."""
    rises: Sequence[tuple[str, str]]
    """Pairs of figures, of which the second is above the first in every seed."""
    bars: Mapping[str, float] = field(default_factory=dict[str, float])
    """Least values of figures in every seed."""


KINDS = {
    "grpo": Example(
        title="sums of two-digit numbers",
        figures=sums,
        rises=[("score, base", "score, sft"), ("score, sft", "score, grpo")],
    ),
    "tools": Example(
        title="products by a calculator",
        figures=tools,
        rises=[
            ("dialogues with a call, base", "dialogues with a call, grpo"),
            ("score, base", "score, grpo"),
        ],
    ),
    "sft": Example(
        title="conversations of two turns",
        figures=conversations,
        rises=[
            ("nll of turn 1, sft", "nll of turn 1, base"),
            ("nll of turn 2, sft", "nll of turn 2, base"),
            ("score, base", "score, sft"),
        ],
    ),
    "dpo": Example(
        title="brief answers by DPO",
        figures=preferences,
        rises=[("margin in nats, first step", "margin in nats, last 5 steps"), ("score, base", "score, trained")],
    ),
    "kto": Example(
        title="brief answers by KTO",
        figures=preferences,
        rises=[("margin in nats, first step", "margin in nats, last 5 steps"), ("score, base", "score, trained")],
    ),
    "reward_model": Example(
        title="brief answers by a reward model",
        figures=reward_model,
        rises=[("reward, first 3 steps", "reward, last 3 steps"), ("score, base", "score, rl")],
        bars={"auc": 0.97},
    ),
}
CPU_BAR = 1200
"""Seconds: ten minutes of two cores."""


def measure(kind: str, seeds: Sequence[int]) -> Iterator[Row]:
    """Rows of a config: each figure over the seeds, whether it moved as it should in each, and CPU seconds."""
    example, found, costs = KINDS[kind], [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as place:
            costs.append(run_example(kind, seed, Path(place)))
            found.append(example.figures(Path(place)))
            print(json.dumps({"config": kind, "seed": seed, "cpu_s": round(costs[-1], 1), **found[-1]}), flush=True)
    title, seconds = f"{MODEL}, {example.title}", max(costs)
    for name in found[0]:
        values = np.array([one[name] for one in found])
        mean, bar = bootstrap_mean(values), example.bars.get(name)
        yield Row(
            row=f"{title}: {name} (lowest {values.min():.3f}, highest {values.max():.3f})", value=mean.mean, unit="",
            low=mean.low, high=mean.high, seeds=len(seeds), bar=None if bar is None else f">= {bar}",
            met=None if bar is None else bool(values.min() >= bar),
        )  # fmt: skip
    for before, after in example.rises:
        count = sum(one[after] > one[before] for one in found)
        yield Row(
            row=f"{title}: {after!r} above {before!r}", value=count, unit=f"of {len(seeds)} seeds", seeds=len(seeds),
            bar="all", met=count == len(seeds),
        )  # fmt: skip
    yield Row(
        row=f"{title}: the whole run, dearest seed", value=seconds, unit="CPU s", seeds=len(seeds),
        bar=f"<= {CPU_BAR}", met=seconds <= CPU_BAR,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="these configs")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each config")
    parser.add_argument("--first-seed", type=int, default=100, help="the first of them")
    parser.add_argument("--quick", action="store_true", help="one seed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first_seed, asked.first_seed + (1 if asked.quick else asked.seeds))
    for kind in asked.only:
        for row in measure(kind, seeds):
            print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
