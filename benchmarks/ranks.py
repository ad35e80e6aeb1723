"""The learner over ranks against one process: every recipe with a gradient, bits, resumes, a killed rank.

`python benchmarks/ranks.py out.json` measures all parts and rewrites the table of RESULTS.md. Parts may be measured one
at a time into the same file, which keeps the newest of each measurement:

* `--part recipes --ranks 2` trains the runs of `rank_runs.py` on one process and on ranks, and compares what the
  optimizer holds: the gradient, as the first moment tells it. `--ranks 4`: on four; `--tensor 2`: two ranks hold each
  layer of a language model together; `--share 1/4`: every fourth run, from the first; `--only NAME`: these runs.
* `--part float64 --ranks 2`: the gradient of a policy, a critic, a reward model and adapters in float64.
* `--part shares`: the gradient of two ranks has the bits of the sum of the two shares' gradients in one process.
* `--part virtual`: weights and moments with `run.virtual_ranks = 4` on 1, 2 and 4 ranks.
* `--part resume`: on the same number of ranks, and on another; the folder in transformers.
* `--part killed`: a rank is killed, and the run goes on.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from numpy.typing import NDArray
from rank_rows import BAR, DOUBLE_BAR, TENSOR_BAR, Measured, is_beyond, result_rows
from rank_runs import NEEDS, RUNS, lay_out
from safetensors.numpy import load_file
from tables import rewrite

from hone import api
from hone.api import StepEvent
from hone.core.errors import ConfigError, HoneError

PARTS = ("recipes", "float64", "shares", "virtual", "resume", "killed")
KEY = ("part", "run", "ranks", "tensor", "first")
"""Entries that name a measurement."""
TRAINED = ("grpo", "ppo_text", "reward_pairs", "dpo")
"""Runs with virtual ranks."""
RESUMED = ("grpo", "ppo_text", "reward_pairs", "grpo_adapter", "ppo")
ROOT = Path(__file__).resolve().parents[1]
FIRST_STEPS = {
    "algorithm.critic": "algorithm.critic.warmup_steps=0",
    "algorithm.correction": "algorithm.correction.first_stage_steps=0",
}
"""By section: what makes the first iteration of a recipe with first iterations of another kind train everything."""
Arrays = dict[str, NDArray[np.generic]]


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that have ended."""
    spent = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def last_checkpoint(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def saved_arrays(folder: Path) -> Arrays:
    """State and weights of a run's last checkpoint, by file and name."""
    files = sorted(last_checkpoint(folder).rglob("*.safetensors"))
    return {f"{file.parent.name}:{key}": value for file in files for key, value in load_file(file).items()}


def trained(name: str, folder: str, *settings: str, resumed: Path | None = None) -> tuple[Arrays, float]:
    """What a run saved last, and its CPU seconds; `resumed`: the folder of the runs in which it goes on."""
    begun, resume = cpu_seconds(), resumed is not None
    path = api.train(f"{name}.toml", [f"name={folder}", *settings], runs=resumed or "runs", resume=resume).folder
    return saved_arrays(path), cpu_seconds() - begun


def largest_difference(one: Arrays, other: Arrays, names: Sequence[str]) -> float:
    """Largest difference of the arrays of these names, as a share of the largest number among them."""
    if not names or not all(name in other for name in names):
        return float("nan")
    size = max(float(np.abs(one[name].astype(np.float64)).max(initial=0.0)) for name in names)
    gaps = (np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)).max(initial=0.0) for name in names)
    return float(max(gaps)) / size if size else 0.0


def gradient_difference(one: Arrays, other: Arrays) -> float:
    """The worst of all optimizers, whose first moments tell the gradient. Raises ValueError without any gradient."""
    owners = {name.split("/exp_avg/")[0] for name in one if "/exp_avg/" in name}
    moved = [owner for owner in owners if any(one[name].any() for name in one if name.startswith(f"{owner}/exp_avg/"))]
    if not moved:
        raise ValueError("all gradients are 0: this run compares nothing")
    return max(
        largest_difference(one, other, [name for name in one if name.startswith(f"{owner}/exp_avg/")])
        for owner in moved
    )


def gradient_norm(run: Path) -> float:
    """Length of the first gradient of a run whose optimizer keeps no moments."""
    return json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])["policy/grad_norm"]


def compare_recipe(name: str, ranks: int, tensor: int) -> Measured:
    """One recipe on one process and on `ranks`, of which `tensor` hold each layer together: after one step where the
    recipe can have a single one."""
    heads = [f"model.new.kv_heads={tensor}"] if tensor > 1 and "model.new" in RUNS[name][1] else []
    # Two minibatches of a round's answers have a sequence for each of four ranks.
    heads += ["algorithm.batch=8"] if "algorithm.batch" in RUNS[name][1] else []
    row: Measured = {"part": "recipes", "run": name, "recipe": RUNS[name][0], "ranks": ranks, "tensor": tensor}
    row["bar"] = BAR if tensor == 1 else TENSOR_BAR
    fault: Exception | None = None
    single = ["steps=1", *heads, *(value for key, value in FIRST_STEPS.items() if key in RUNS[name][1])]
    for place, settings in enumerate((single, heads)):
        try:
            one = f"{name}_{place}_{ranks}_{tensor}"
            alone, row["cpu_one_s"] = trained(name, f"{one}_one", *settings)
            shared, row["cpu_ranks_s"] = trained(
                name, f"{one}_ranks", *settings, f"run.ranks={ranks}", f"run.tensor={tensor}"
            )
            if not any("/exp_avg/" in key for key in alone):
                norms = [gradient_norm(Path("runs", f"{one}_{which}")) for which in ("one", "ranks")]
                return {**row, "settings": settings, "gradient": abs(norms[0] - norms[1]) / norms[0]}
            return {**row, "settings": settings, "gradient": gradient_difference(alone, shared)}
        except (ConfigError, ValueError) as error:  # a recipe may refuse one step, or learn nothing in it
            fault = error
        except HoneError as error:
            return {**row, "failed": str(error)}
    return {**row, "refused" if isinstance(fault, ConfigError) else "failed": str(fault)}


def double_gradients(ranks: int) -> Iterator[Measured]:
    """Gradients in float64 of a session of ranks: the networks of the tests."""
    sys.path.insert(0, str(ROOT))
    with contextlib.chdir(ROOT):
        from tests.support import rank_networks as networks  # noqa: PLC0415 - needs the path
        from tests.support import rank_session as session  # noqa: PLC0415 - as above

        found = session.run_cases(["networks64", "pairs_networks64"], ranks=ranks)
        for tensor, case in ((1, "networks64"), (2, "pairs_networks64")):
            for kind in dict.fromkeys(name.split()[0] for name in found[case]):
                one = {"gradient": networks.alone(kind, "float64")["gradient"]}
                row = {"part": "float64", "run": kind, "ranks": ranks, "tensor": tensor, "bar": DOUBLE_BAR}
                other = {"gradient": found[case][f"{kind} gradient"]}
                yield {**row, "gradient": largest_difference(one, other, ["gradient"])}


def share_bits() -> Iterator[Measured]:
    """The first moments after a step of two ranks, and of one process that adds the gradients of two shares."""
    for name in TRAINED:
        settings = ("steps=1", "learner.minibatches=1", "learner.max_grad_norm=0", "run.checkpoint_every=1")
        # The critic of ppo_text warms the policy up for a step.
        settings = (*settings, "algorithm.critic.warmup_steps=0") if name == "ppo_text" else settings
        two, _ = trained(name, f"{name}_two", *settings, "run.ranks=2")
        sums, _ = trained(name, f"{name}_shares", *settings, "run.virtual_ranks=2")
        moments = [key for key in two if "/exp_avg/" in key]
        equal = bool(moments) and all(np.array_equal(two[key], sums[key]) for key in moments)
        yield {"part": "shares", "run": name, "ranks": 2, "equal": equal}


def virtual_bits() -> Iterator[Measured]:
    """sha256 of weights and optimizer state with virtual ranks, on each number of ranks."""
    for name in TRAINED:
        digests: dict[str, str] = {}
        for count in (1, 2, 4):
            found, _ = trained(name, f"{name}_virtual_{count}", "run.virtual_ranks=4", f"run.ranks={count}")
            kept = [value.tobytes() for key, value in found.items() if "/kept" not in key]
            digests[str(count)] = hashlib.sha256(b"".join(kept)).hexdigest()
        yield {"part": "virtual", "run": name, "sha256": digests, "equal": len(set(digests.values())) == 1}


def resumed_runs() -> Iterator[Measured]:
    """Runs of three steps, and those that stopped after two and went on, on each pair of numbers of ranks."""
    for name in RESUMED:
        # A schedule that ends with the run would be another one.
        rate = "learner.lr_decay=constant"
        last = {count: f"{name}_whole_{count}" for count in (1, 2, 4)}
        whole = {count: trained(name, last[count], "steps=3", rate, f"run.ranks={count}")[0] for count in last}
        for first in whole:
            two = f"{name}_two_{first}"
            trained(name, two, "steps=2", rate, f"run.ranks={first}")
            for then in whole if name == "grpo" else [first, 2 if first != 2 else 1]:
                place = Path(f"{name}_{first}_{then}")
                shutil.copytree(Path("runs", two), place / two)
                found, _ = trained(name, two, "steps=3", rate, f"run.ranks={then}", resumed=place)
                weights = [key for key in found if key.startswith("policy:")]
                yield {
                    "part": "resume", "run": name, "first": first, "ranks": then,
                    "equal": all(np.array_equal(found[key], whole[first][key]) for key in found) or first != then,
                    "weights_apart": largest_difference(found, whole[first], weights),
                }  # fmt: skip
    yield read_by_transformers(Path("runs/grpo_whole_2"))


def read_by_transformers(run: Path) -> Measured:
    """Whether transformers reads and writes the bits of a checkpoint."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds

    folder = last_checkpoint(run) / "policy"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained("again")
    one, other = (load_file(place / "model.safetensors") for place in (folder, Path("again")))
    equal = one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    return {"part": "folder", "run": "grpo", "equal": equal}


def rank_of(driver: int) -> int:
    """Process number of a rank among the children of `driver`."""
    for entry in (one for one in Path("/proc").iterdir() if one.name.isdigit()):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == driver and b"hone.recipes.rank_process" in words:
                return int(entry.name)
    raise LookupError("no rank is running")


def killed_rank() -> Measured:
    """GRPO on 2 ranks, of which one is killed after step 3: seconds until the next step, and the weights at the end."""
    settings = ("run.ranks=2", "run.checkpoint_every=2", "steps=5")
    whole, _ = trained("grpo", "undisturbed", *settings)
    seen: list[tuple[int, float]] = []

    def on_step(event: StepEvent) -> None:
        seen.append((event.step, time.monotonic()))
        if [step for step, _ in seen] == [1, 2, 3]:
            os.kill(rank_of(os.getpid()), signal.SIGKILL)

    path = api.train("grpo.toml", ["name=killed", *settings], on_step=on_step).folder
    found = saved_arrays(path)
    return {
        "part": "killed",
        "run": "grpo",
        "steps": [step for step, _ in seen],
        "goes_on_s": seen[3][1] - seen[2][1],
        "equal": all(np.array_equal(value, whole[name]) for name, value in found.items()),
    }


def measured(parts: Sequence[str], names: Sequence[str], ranks: Sequence[int], tensor: int) -> Iterator[Measured]:
    """Everything that was asked for, in a folder of its own, which is left behind by nobody."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        lay_out(Path())
        needs = {NEEDS[name] for name in names if name in NEEDS} | ({"sft"} if "resume" in parts else set())
        for need in needs:
            heads = [f"model.new.kv_heads={tensor}"] if tensor > 1 and "model.new" in RUNS[need][1] else []
            api.train(f"{need}.toml", heads)
        if "recipes" in parts:
            yield from (compare_recipe(name, count, tensor) for count in ranks for name in names)
        if "float64" in parts:
            for count in ranks:
                yield from double_gradients(count)
        for part, rows in (("shares", share_bits), ("virtual", virtual_bits), ("resume", resumed_runs)):
            if part in parts:
                yield from rows()
        if "killed" in parts:
            yield killed_rank()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("ranks.json"), help="JSON file of all measurements")
    parser.add_argument("--quick", action="store_true", help="one recipe, and no file: decides nothing")
    parser.add_argument("--ranks", type=int, choices=(2, 4), help="this number of ranks alone")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that hold each layer together")
    parser.add_argument("--only", action="append", choices=RUNS, help="these runs")
    parser.add_argument("--share", default="1/1", help="1/4: every fourth run, from the first")
    parser.add_argument("--part", choices=PARTS, action="append", help="these parts alone")
    asked = parser.parse_args()
    first, count = (int(number) for number in asked.share.split("/"))
    names = ["sft"] if asked.quick else (asked.only or list(RUNS))[first - 1 :: count]
    parts = ["recipes"] if asked.quick else asked.part or PARTS
    out = asked.out.absolute()
    known: dict[str, Measured] = {}
    if out.exists() and not asked.quick:
        known = {str([one.get(key) for key in KEY]): one for one in json.loads(out.read_text(encoding="utf-8"))}
    begun, now = time.monotonic(), list[Measured]()
    ranks = (asked.ranks,) if asked.ranks else (2,) if asked.quick or asked.tensor > 1 else (2, 4)
    for one in measured(parts, names, ranks, asked.tensor):
        known[str([one.get(key) for key in KEY])] = one
        now.append(one)
        print(json.dumps(one), flush=True)
        if not asked.quick:
            out.write_text(json.dumps([*known.values()], indent=1) + "\n", encoding="utf-8")
    rewrite("Ranks", "benchmarks/ranks.py", [*result_rows([*known.values()])], threads=1, quick=asked.quick)
    beyond = [one["run"] for one in now if is_beyond(one)]
    spent = f"{cpu_seconds():.0f} s of CPU time, {time.monotonic() - begun:.0f} s"
    print(f"{len(now)} measurements, {spent}; beyond their bars: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
