"""Seconds of training to the same held-out accuracy, beside TRL: the same start, problems, samples, loss and machine.

    python benchmarks/grpo_accuracy.py            three seeds, about ten minutes on two quiet cores
    python benchmarks/grpo_accuracy.py --quick    one seed, few steps: decides nothing

Model S adds two numbers, as imitation left it: right more often than not. The target is a fifth of the way from there
to no mistake, so that both sides get there in some hundred steps. Every few steps the clock stands while the policy
answers the same held-out problems greedily; the first evaluation at the target ends a run. Both sides: float32, 64
prompts x 8 samples, one update by AdamW at one constant rate, gradients shortened to 1, advantages divided by the
group's deviation, clip 0.2, mean over answers of means over tokens, no KL. What differs: random numbers, and with them
the order of the prompts; TRL adds 1e-4 to a group's deviation, hone 1e-6. How many steps it takes is therefore chance,
and the same on both sides on average: the table has steps, and seconds a step, in rows of their own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chains import TASKS, WORK, cold_start, problem, problems
from grpo_step import PEER, THREADS
from peers import require_peer
from tables import Row, rewrite, tell

from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.native.build import keep_freed_memory
from hone.recipes.text import grpo
from hone.run.job import TrainingJob
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
TASK, IMITATED = "short", 700
"""What is learned, and after how many steps of imitation."""
PROMPTS, SAMPLES, LR = 64, 8, 1e-4
EVERY, MOST = 10, 200
"""Steps between evaluations, and at most."""
SHARE = 0.2
"""Of the start's mistakes, which are to be mended."""
HELD_OUT = 1000
BAR = 3.0


class Arrived(Exception):  # noqa: N818 - ends a run on purpose
    """The target is reached."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A run's evaluations: step, seconds of training, accuracy."""

    curve: list[list[float]]
    target: float

    @property
    def reached(self) -> bool:
        return self.curve[-1][2] >= self.target

    @property
    def steps(self) -> float:
        return self.curve[-1][0]

    @property
    def seconds(self) -> float:
        return self.curve[-1][1]


def held_out(count: int) -> Path:
    """Problems that are not among those trained on by reward."""
    path = WORK / f"{TASK}_held_out_{count}.jsonl"
    if not path.exists():
        known = {json.loads(line)["prompt"] for line in problems(TASK, count=2000, seed=2).read_text().splitlines()}
        drawn = (problem(TASK, 3, number) for number in range(10 * count))
        fresh = [one for one in drawn if one["prompt"] not in known]
        path.write_text("\n".join(json.dumps(one) for one in fresh[:count]) + "\n", encoding="utf-8")
    return path


def job_of(*, seed: int, steps: int, count: int) -> TrainingJob[Any]:
    rewards = {"functions": [{"use": f"{HERE / 'answers.py'}:right"}]}
    rollout = {
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "max_tokens": TASKS[TASK],
        "max_concurrent": 128,
    }
    config = grpo.GrpoConfig.model_validate(
        {
            "recipe": "grpo",
            "name": "bench",
            "seed": seed,
            "steps": steps,
            "run": {"threads": THREADS},
            "model": {"path": str(cold_start("S", TASK, steps=IMITATED))},
            "task": {"source": str(problems(TASK, count=2000, seed=2))},
            "rewards": rewards,
            "user_code": {"workers": 1},
            "rollout": {**rollout, "runner": "native"},
            "evaluation": {"task": {"source": str(held_out(count))}, "rewards": rewards, "max_tokens": TASKS[TASK]},
            "algorithm": {"aggregation": "sequence_mean"},
            "learner": {"lr": LR, "max_grad_norm": 1.0},
        }
    )
    return grpo.ENTRY.build(config)


def accuracy(job: TrainingJob[Any]) -> float:
    assert job.evaluate is not None
    return job.evaluate().metrics["eval/score"]


def hone_way(*, seed: int, steps: int, count: int, target: float) -> list[list[float]]:
    torch.set_num_threads(THREADS)
    keep_freed_memory()  # as the command `hone train` does
    job = job_of(seed=seed, steps=steps, count=count)
    curve, seconds, since = list[list[float]](), 0.0, time.perf_counter()

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        nonlocal seconds, since
        del episodes, credits, metrics
        seconds += time.perf_counter() - since
        if step % EVERY == 0:
            curve.append([step, seconds, accuracy(job)])
            if curve[-1][2] >= target:
                raise Arrived
        since = time.perf_counter()

    try:
        train(job.recipe, steps=steps, callback=report)
    except Arrived:
        pass
    finally:
        job.close()
    return curve


def start_accuracy(count: int) -> float:
    job = job_of(seed=0, steps=1, count=count)
    found = accuracy(job)
    job.close()
    return found


def ours(asked: dict[str, Any]) -> list[list[float]]:
    """A fresh process, as the peer's."""
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    return _curve([sys.executable, __file__, "--hone", json.dumps(asked)], environment)


def theirs(asked: dict[str, Any]) -> list[list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        more = {
            "model": str(cold_start("S", TASK, steps=IMITATED)),
            "problems": str(problems(TASK, count=2000, seed=2)),
            "held_out": str(held_out(asked["count"])),
            "rewards": str(HERE),
            "folder": folder,
            "prompts": PROMPTS,
            "samples": SAMPLES,
            "lr": LR,
            "max_tokens": TASKS[TASK],
            "every": EVERY,
            "threads": THREADS,
            "attention": "eager",  # the faster one on these answers, by grpo_step.py
        }
        program = (HERE / "grpo_accuracy_trl.py").read_text(encoding="utf-8")
        return _curve([str(require_peer(PEER)), "-c", program, json.dumps({**asked, **more})], dict(os.environ))


def _curve(words: list[str], environment: dict[str, str]) -> list[list[float]]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{words[:2]} failed:\n{done.stderr[-3000:]}")
    found: list[list[float]] = json.loads(done.stdout.strip().splitlines()[-1])["curve"]
    return found


def rows_of(pairs: list[tuple[Way, Way]], *, start: float, target: float, quick: bool) -> list[Row]:
    peer, seeds = "TRL 1.16", len(pairs)
    late = sum(not way.reached for pair in pairs for way in pair)
    said = f" ({late} of {2 * seeds} runs ended before it)" if late else ""
    ratio = float(np.median([other.seconds / one.seconds for one, other in pairs]))

    def middle(side: int, what: str) -> float:
        ways = [pair[side] for pair in pairs]
        figures = {
            "seconds": [way.seconds for way in ways],
            "steps": [way.steps for way in ways],
            "step": [way.seconds / way.steps for way in ways],
        }
        return float(np.median(figures[what]))

    met = None if quick else ratio >= BAR and all(one.reached for one, _ in pairs)
    named = f"S, {TASK}, {PROMPTS} x {SAMPLES}, float32"
    return [
        Row(
            row=f"{named}: held-out accuracy from {start:.3f} to {target:.3f}{said}", value=middle(0, "seconds"),
            unit="s of training", seeds=seeds, peer=peer, peer_value=middle(1, "seconds"), ratio=ratio,
            bar=f">= {BAR:g} x TRL", met=met,
        ),
        Row(row=f"{named}: steps to it", value=middle(0, "steps"), unit="steps", seeds=seeds, peer=peer,
            peer_value=middle(1, "steps")),
        Row(row=f"{named}: a step", value=middle(0, "step"), unit="s", seeds=seeds, peer=peer,
            peer_value=middle(1, "step"), ratio=middle(1, "step") / middle(0, "step")),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time to the same held-out accuracy beside TRL.")
    parser.add_argument("--quick", action="store_true", help="one seed, 10 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        print(json.dumps({"curve": hone_way(**json.loads(asked.hone))}))
        return
    require_peer(PEER)
    torch.set_num_threads(THREADS)
    count, steps = (100, EVERY) if asked.quick else (HELD_OUT, MOST)
    start = start_accuracy(count)
    target = start + SHARE * (1.0 - start)
    pairs: list[tuple[Way, Way]] = []
    for seed in range(1 if asked.quick else asked.seeds):
        said = {"seed": seed, "steps": steps, "count": count, "target": target}
        one, other = (Way(curve=curve(said), target=target) for curve in (ours, theirs))
        print(f"seed {seed}: hone {one.curve}, TRL {other.curve}", file=sys.stderr, flush=True)
        pairs.append((one, other))
        rows = rows_of(pairs, start=start, target=target, quick=asked.quick)
        rewrite("GRPO, time to accuracy", "benchmarks/grpo_accuracy.py", rows, threads=THREADS, quick=asked.quick)
    tell(rows_of(pairs, start=start, target=target, quick=asked.quick))


if __name__ == "__main__":
    main()
