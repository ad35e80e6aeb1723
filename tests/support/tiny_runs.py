"""Runs of a few seconds: a one-layer model that learns sums of two digits, by imitation and by reward."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from warm_commands import StartedCommand, start_warm

from hone.cli.main import main
from hone.run.store.metrics import without_clock_metrics

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
[model]
compute = "float32"
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 32
alphabet = "0123456789+="
"""
RUN = """
[run]
threads = 1
checkpoint_every = 2
rollouts_every = 3
"""
EVALUATION = """
[evaluation]
max_tokens = 3
every = 2
[evaluation.task]
source = "held.jsonl"
[[evaluation.rewards.functions]]
use = "rewards.py:right"
"""
SFT = f"""
recipe = "sft"
name = "tiny"
steps = 6
batch = 10
{MODEL}
[task]
source = "sums.jsonl"
[learner]
lr = 1e-2
minibatches = 2
[user_code]
workers = 1
{RUN}
{EVALUATION}
"""
GRPO = f"""
recipe = "grpo"
name = "tiny"
steps = 6
{MODEL}
[task]
source = "sums.jsonl"
[user_code]
workers = 1
[rewards]
[[rewards.functions]]
use = "rewards.py:close"
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 4
max_concurrent = 5
[learner]
lr = 1e-2
epochs = 2
minibatches = 2
[algorithm]
kl = 0.1
clip_high = 0.28
{RUN}
"""
REWARDS = '''
import pathlib, time

def right(completions, answer, **columns):
    return [float(text == wanted) for text, wanted in zip(completions, answer)]

def close(completions, answer, **columns):
    """Characters that are right, less a little for length; waits while a file `hold` lies here, and makes `held`."""
    while pathlib.Path("hold").exists():
        pathlib.Path("held").touch()
        time.sleep(0.02)
    return [sum(a == b for a, b in zip(text, wanted)) - 0.1 * len(text) for text, wanted in zip(completions, answer)]
'''
CONFIGS = {"sft": SFT, "grpo": GRPO}


def lay_out(folder: Path) -> None:
    """Configs, data and reward functions, in `folder`."""
    for name, text in CONFIGS.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a in range(6) for b in range(4)]
    held = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6, 9) for b in range(3)]
    for name, lines in (("sums", rows), ("held", held)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def hone(*arguments: str) -> int:
    """One command line, in this process."""
    return main(list(arguments))


STEP_BY_STEP = str(Path(__file__).with_name("step_by_step.py"))


def start(folder: Path, *arguments: str, program: str = STEP_BY_STEP) -> StartedCommand:
    """One command line in a process and a process group of its own, as a shell would start it.

    Its lines of metrics are there at their steps; those of the program "hone" may come 0.8 s later.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return start_warm(arguments, folder=folder, environment=environment, program=program)


def wait_for(ready: Callable[[], bool], process: StartedCommand, *, seconds: float = 300.0) -> None:
    """Until `ready`; fails when the process ends first."""
    end = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, f"it ended by itself: {process.communicate(300)[0]}"
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.005)


def lines_of(run: Path) -> list[str]:
    """The metrics without what depends on the clock."""
    return without_clock_metrics((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


def steps_logged(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def files_of(run: Path, step: int) -> dict[str, object]:
    """sha256 and size of every file of a checkpoint: weights, optimizer, cursors."""
    manifest = json.loads((run / "checkpoints" / f"step_{step:08d}" / "manifest.json").read_text(encoding="utf-8"))
    return manifest["files"]


def differences(one: Path, other: Path, *, step: int, but: Sequence[str] = ()) -> list[str]:
    """What two runs that should be the same run do not have in common; `[]` for the same run."""
    found: list[str] = []
    ours, theirs = lines_of(one), lines_of(other)
    found += [f"metrics: {a} {b}" for a, b in zip(ours, theirs, strict=False) if a != b]
    found += [] if len(ours) == len(theirs) else [f"{len(ours)} lines and {len(theirs)}"]
    files, others = files_of(one, step), files_of(other, step)
    found += [name for name in files.keys() | others.keys() if files.get(name) != others.get(name) and name not in but]
    for kind in ("rollouts", "evaluation"):
        left = {path.name: path.read_bytes() for path in (one / kind).glob("*")}
        right = {path.name: path.read_bytes() for path in (other / kind).glob("*")}
        found += [f"{kind}/{name}" for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
    return found
