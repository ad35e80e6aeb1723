"""What it costs a run to be followed: `hone watch` serves its folder to an open page, and two trackers get its metrics.

    python benchmarks/followed_run.py            five pairs of each run; rewrites its table in RESULTS.md
    python benchmarks/followed_run.py --quick    one short pair of each; prints only
    python benchmarks/followed_run.py --only ppo --trackers tensorboard wandb --pairs 3    a part of it

A pair is the same run alone and followed, each in a process of its own, side by side: what else the machine does meets
both. Compared are processor seconds of the run's process, all of its threads included, from the step by which every
tracker has begun (both runs: the same step) to the end, when every tracker has everything. What the trackers take
before that, `hone watch` and the trackers' own processes have rows of their own. The share of the trackers' threads
compares two threads of one process, which needs no second run; the ratio also holds what they cost the run's own one.

Needs TensorBoard, trackio and W&B (which stays offline); rows of trackers that are not installed are left out.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tables import Row, grow, tell

WARM: Final = 10
"""Steps that are left out: everything is loaded and every tracker has begun by then."""
RUNS: Final[Mapping[str, tuple[int, float]]] = {"ppo": (500, 1.02), "grpo": (30, 1.01)}
"""Recipe -> steps and the bar of its ratio."""
TRACKERS: Final = (("tensorboard", "trackio"), ("tensorboard", "wandb"))
SETTINGS: Final[dict[str, Any]] = {"threads": 1, "certify": False, "checkpoint_every": 0}


def settings_of(recipe: str, steps: int) -> dict[str, Any]:
    """PPO on CartPole, eight environments by 128 decisions; GRPO on model S, 512 short answers a step."""
    common = {"recipe": recipe, "name": recipe, "steps": steps, "run": SETTINGS}
    if recipe == "ppo":
        return common | {"env": {"id": "CartPole-v1", "num_envs": 8}, "rollout_steps": 128}
    from chains import cold_start, problems  # noqa: PLC0415 - PPO needs no model

    rewards = f"{Path(__file__).resolve().with_name('answers.py')}:right"
    return common | {
        "model": {"path": str(cold_start("S", "short")), "compute": "float32"},
        "task": {"source": str(problems("short", count=2000, seed=2))},
        "rewards": {"functions": [{"use": rewards}]},
        "user_code": {"workers": 1},
        "rollout": {
            "prompts_per_step": 64, "samples_per_prompt": 8, "max_tokens": 64, "max_concurrent": 512,
            "runner": "native",
        },
        "learner": {"lr": 1e-6},
    }  # fmt: skip


def train(recipe: str, steps: int, trackers: Sequence[str]) -> dict[str, float]:
    """Train in this process; returns its processor seconds."""
    import hone.api  # noqa: PLC0415 - the parent needs none of it

    marks: dict[str, float] = {"began": time.process_time()}

    def look(event: Any) -> None:  # noqa: ANN401 - the callback's event
        if event.step == steps:
            marks["children"] = children_s()
        if event.step != WARM:
            return
        marks["untracked"] = time.process_time()
        while len([*(event.run / "track").glob("*.json")]) < len(trackers):
            time.sleep(0.05)
        time.sleep(0.2 if trackers else 0.0)
        marks["warm"], marks["warm_own"] = time.process_time(), time.thread_time()

    track = [{"to": name, "project": "followed"} for name in trackers]
    hone.api.train(settings_of(recipe, steps) | ({"track": track} if track else {}), on_step=look)
    spent, own = time.process_time() - marks["warm"], time.thread_time() - marks["warm_own"]
    return {
        "spent": spent, "threads": spent - own, "step": spent / (steps - WARM),
        "before": marks["warm"] - marks["began"], "children": marks["children"],
    }  # fmt: skip


def children_s() -> float:
    """Processor seconds so far of the processes that this one started and that still run."""
    spent = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) * (int(fields[1]) == os.getpid())
    return spent / os.sysconf("SC_CLK_TCK")


def begin(recipe: str, steps: int, trackers: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, in `folder`."""
    words = [sys.executable, __file__, "--train", json.dumps([recipe, steps, list(trackers)])]
    own = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, **own}
    )


def end(run: subprocess.Popen[str]) -> dict[str, float]:
    """Its processor seconds."""
    told, faults = run.communicate()
    if run.returncode:
        raise SystemExit(faults[-2000:])
    return json.loads(told.splitlines()[-1])


def pairs_of(recipe: str, steps: int, pairs: int, trackers: Sequence[str], work: Path) -> Iterator[Row]:
    """Rows of one recipe."""
    from watch import Server, browsing, show  # noqa: PLC0415 - a trained process needs none of it

    settings_of(recipe, steps)  # makes the model and its questions, which both runs would make at once
    alone: list[dict[str, float]] = []
    followed: list[dict[str, float]] = []
    served: list[float] = []
    for pair in range(pairs):
        places = {kind: work / f"{recipe}_{'_'.join(trackers)}_{pair}" / kind for kind in ("alone", "followed")}
        for place in places.values():
            (place / "runs").mkdir(parents=True)
        with Server(places["followed"] / "runs", work / "cache") as server, browsing(server) as page:
            if page is not None:
                show(page, f"#/run/{recipe}")
            before = server.cpu_s()
            kinds = ("alone", "followed") if pair % 2 == 0 else ("followed", "alone")
            begun = {kind: begin(recipe, steps, trackers if kind == "followed" else (), places[kind]) for kind in kinds}
            alone.append(end(begun["alone"]))
            followed.append(end(begun["followed"]))
            served.append(server.cpu_s() - before)
    ratios = [one["spent"] / other["spent"] for one, other in zip(followed, alone, strict=True)]
    bar = RUNS[recipe][1]
    names = " and ".join({"tensorboard": "TensorBoard", "wandb": "W&B"}.get(name, name) for name in trackers)
    what = f"{recipe.upper()}, {steps:,} steps, hone watch, {names}"

    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    yield Row(
        row=f"{what}: CPU of the run over the same alone", value=middle(ratios), unit="times",
        low=min(ratios), high=max(ratios), seeds=pairs, bar=f"<= {bar:g}", met=middle(ratios) <= bar,
    )  # fmt: skip
    shares = [one["threads"] / (one["spent"] - one["threads"]) for one in followed]
    yield Row(
        row=f"{what}: threads of the trackers, share of the run's own thread", value=100 * middle(shares), unit="%",
        low=100 * min(shares), high=100 * max(shares), seeds=pairs,
    )  # fmt: skip
    yield Row(row=f"{what}: a step alone", value=1e3 * middle([one["step"] for one in alone]), unit="CPU ms")
    begun = [one["before"] - other["before"] for one, other in zip(followed, alone, strict=True)]
    yield Row(row=f"{what}: trackers until they have begun, once", value=middle(begun), unit="CPU s")
    own = [one["children"] - other["children"] for one, other in zip(followed, alone, strict=True)]
    yield Row(row=f"{what}: processes of the trackers", value=middle(own), unit="CPU s")
    yield Row(row=f"{what}: hone watch with a page open on the run", value=middle(served), unit="CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=[*RUNS])
    parser.add_argument("--trackers", nargs=2, help="only with these two")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        print(json.dumps(train(*json.loads(asked.train))))
        return

    def rows(work: Path) -> Iterator[Row]:
        for trackers in TRACKERS if asked.trackers is None else [tuple(asked.trackers)]:
            missing = [name for name in trackers if importlib.util.find_spec(name) is None]
            if missing:
                print(f"{', '.join(missing)} is not installed: its rows are left out", file=sys.stderr)
                continue
            for recipe, (steps, _) in RUNS.items():
                pairs, length = (1, steps // 3) if asked.quick else (asked.pairs, steps)
                if asked.only in (None, recipe):
                    yield from pairs_of(recipe, length, pairs, trackers, work)

    with tempfile.TemporaryDirectory() as name:
        tell(
            grow(
                "A followed run" + (f", {asked.only}" if asked.only else ""), "benchmarks/followed_run.py",
                rows(Path(name)), threads=1, quick=asked.quick,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
