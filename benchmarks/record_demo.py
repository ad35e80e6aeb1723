"""Records the runs of `hone watch --demo`: GRPO on sums that learns, the same with too high a learning rate,
and five that fail as `benchmarks/alarms.py` makes them.

    python benchmarks/record_demo.py src/hone/web/demo.zip
    python benchmarks/record_demo.py src/hone/web/failures.zip --failures [NAME ...]

With names only these failures are trained anew; the others stay as they are in the archive.

It trains for some minutes and packs what the page reads: settings, metrics, events, histograms, rollouts, times of
answers, evaluations and the tokenizer, without weights. Metrics of the failures have four digits. Entries of the
archive have one date.
"""

import argparse
import json
import os
import tempfile
import zipfile
from contextlib import nullcontext
from pathlib import Path

from alarms import all_runs, write_data

import hone.api
from hone.cli.main import main as hone_main

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = {"demo": 300_000, "failures": 120_000}
FAILURES = {
    "entropy-collapse": "bad_entropy",
    "exploited-reward": "bad_exploited",
    "no-end-token": "bad_template",
    "drifting-engine": "bad_engine",
    "stuck-tool": "bad_tool",
}
"""Name in the archive -> run of `benchmarks/alarms.py`."""
KEPT = (
    "*.json",
    "*.jsonl",
    "log.txt",
    "rollouts/*.parquet",
    "time/*.json",
    "evaluation/*.json",
    "checkpoints/*/policy/tokenizer.json",
)


TASK = """
source = "reasoning_gym:chain_sum"
size = {size}
seed = {seed}
distinct = false
options = {{ min_terms = 3, max_terms = 3, min_digits = 1, max_digits = 1 }}
template = "{{metadata.expression}} =\\n"
"""
REWARD = """
use = "reasoning_gym"
options = { pattern = '-?\\d+', full_marks_only = true }
"""
EVALUATION = f"""
[evaluation]
max_tokens = 16
every = 10
[evaluation.task]
{TASK.format(size=64, seed=1000003)}
[[evaluation.rewards.functions]]
{REWARD}
"""
IMITATION = f"""
recipe = "sft"
name = "start"
seed = 7
steps = 900
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
prompts_per_step = 16
samples_per_prompt = 8
max_tokens = 16
max_concurrent = 128
[algorithm]
{clip}

[learner]
lr = {lr}
epochs = 2
[run]
log_every = 1
rollouts_every = 20
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
        if code := hone_main(["train", str(config), "--runs", str(runs)]):
            raise SystemExit(code)
        return runs / name

    start = train(IMITATION, "start")
    policy = max((start / "checkpoints").glob("step_*/policy"))
    good = train(reinforcement("sums", policy, 1e-4, "clip_high = 0.28"), "sums")
    bad = train(reinforcement("sums-too-fast", policy, 6e-3, "clip_high = 0.28"), "sums-too-fast")
    return [good, bad]


def record_failures(work: Path, names: list[str]) -> list[Path]:
    """Train failures and what two of them start from; returns their folders."""
    os.chdir(work)
    write_data(work)
    known = all_runs()
    for name in ("base", "endless"):
        hone.api.train(known[name].settings | {"name": name}, yes=True)
    for name in names:
        one = known[FAILURES[name]]
        run = one.settings["run"] | {"rollouts_every": one.settings["steps"] // 2}
        with nullcontext() if one.fault is None else one.fault():
            hone.api.train(one.settings | {"name": name, "run": run}, yes=True)
        thin_run(work / "runs" / name)
    return [work / "runs" / name for name in names]


def with_the_others(archive: Path, folders: list[Path], runs: Path) -> list[Path]:
    """Folders of all failures: those that were trained, and the others unpacked from the archive."""
    kept = FAILURES.keys() - {folder.name for folder in folders}
    if kept:
        with zipfile.ZipFile(archive) as old:
            old.extractall(runs, [entry for entry in old.namelist() if entry.partition("/")[0] in kept])
    return [runs / name for name in FAILURES]


def thin_run(folder: Path) -> None:
    """Keep four digits of each metric, the first, middle and last evaluation, and no histograms."""
    (folder / "histograms.jsonl").unlink(missing_ok=True)
    answers = sorted((folder / "evaluation").glob("step_*.json"))
    for path in answers:
        if path not in (answers[0], answers[len(answers) // 2], answers[-1]):
            path.unlink()
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for name, value in line.items():
            if isinstance(value, float):
                line[name] = round(value, 2) if name == "time/at_s" else float(f"{value:.4g}")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--failures", nargs="*", choices=list(FAILURES), metavar="NAME")
    options = parser.parse_args()
    target = options.target.absolute()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if options.failures is None:
            folders = record(work)
        else:
            folders = record_failures(work, options.failures or list(FAILURES))
            folders = with_the_others(target, folders, work / "runs")
        size = pack(folders, target, work)
    print(f"{options.target}: {size:,} bytes")
    if size > (most := MOST_BYTES["demo" if options.failures is None else "failures"]):
        raise SystemExit(f"the archive may have {most:,} bytes")


if __name__ == "__main__":
    main()
