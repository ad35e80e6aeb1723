"""Records the two runs of `hone watch --demo`: GRPO on sums that succeeds, and one with too high a learning rate.

    python benchmarks/record_demo.py src/hone/web/demo.zip

It trains for some minutes and packs what the page reads: settings, metrics, events, histograms, rollouts, evaluations
and the tokenizer, without weights. Entries of the archive have one date.
"""

import os
import sys
import tempfile
import zipfile
from pathlib import Path

from hone.cli.main import main as hone

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 300_000
KEPT = (
    "*.json",
    "*.jsonl",
    "log.txt",
    "rollouts/*.parquet",
    "evaluation/*.json",
    "checkpoints/*/policy/tokenizer.json",
)


TASK = """
source = "reasoning_gym:chain_sum"
size = {size}
seed = {seed}
distinct = false
options = {{ min_terms = 2, max_terms = 3, min_digits = 1, max_digits = 1 }}
template = "{{metadata.expression}} =\\n"
"""
REWARD = """
use = "reasoning_gym"
options = { pattern = '-?\\d+', full_marks_only = true }
"""
EVALUATION = f"""
[evaluation]
max_tokens = 16
every = 20
[evaluation.task]
{TASK.format(size=64, seed=1000003)}
[[evaluation.rewards.functions]]
{REWARD}
"""
IMITATION = f"""
recipe = "sft"
name = "start"
seed = 7
steps = 500
batch = 32
[task]
{TASK.format(size=20000, seed=1)}
[solution]
use = "examples/chain_sum/worked.py:running_totals"
[model.new]
family = "qwen3"
hidden_size = 96
layers = 3
heads = 4
kv_heads = 2
head_dim = 24
intermediate_size = 256
max_positions = 48
[learner]
lr = 3e-3
warmup_steps = 30
lr_decay = "cosine"
[run]
log_every = 50
certify = false
"""


def reinforcement(name: str, policy: Path, lr: float, clip: str) -> str:
    """A GRPO run from the imitated policy."""
    return f"""
recipe = "grpo"
name = "{name}"
seed = 7
steps = 80
[model]
path = "{policy.as_posix()}"
[task]
{TASK.format(size=20000, seed=1)}
[[rewards.functions]]
{REWARD}
[rollout]
prompts_per_step = 8
samples_per_prompt = 8
max_tokens = 16
max_concurrent = 64
[algorithm]
{clip}

[learner]
lr = {lr}
epochs = 2
[run]
log_every = 1
rollouts_every = 8
checkpoint_every = 80
certify = false
{EVALUATION}
"""


def record(work: Path) -> list[Path]:
    """Train, and return the folders of both runs."""
    runs = work / "runs"

    def train(text: str, name: str) -> Path:
        config = work / f"{name}.toml"
        config.write_text(text, encoding="utf-8")
        if code := hone(["train", str(config), "--runs", str(runs)]):
            raise SystemExit(code)
        return runs / name

    start = train(IMITATION, "start")
    policy = max((start / "checkpoints").glob("step_*/policy"))
    good = train(reinforcement("sums", policy, 2e-4, "clip_high = 0.28"), "sums")
    bad = train(reinforcement("sums-too-fast", policy, 6e-3, "clip_high = 0.28"), "sums-too-fast")
    return [good, bad]


def pack(folders: list[Path], target: Path, work: Path) -> int:
    """Write the archive; returns its bytes. The folder of the work is removed from texts."""
    files = [(folder, path) for folder in folders for pattern in KEPT for path in sorted(folder.glob(pattern))]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for folder, path in files:
            data = path.read_bytes()
            if path.suffix in (".json", ".jsonl", ".txt"):
                data = data.replace(str(work).encode(), b"demo")
            entry = zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}", (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return target.stat().st_size


if __name__ == "__main__":
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folders = record(Path(name))
        size = pack(folders, Path(sys.argv[1]).absolute(), Path(name))
    print(f"{sys.argv[1]}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"the archive may have {MOST_BYTES:,} bytes")
