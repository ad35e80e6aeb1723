"""What the table of bad input is made of: a case, the configs that cases change, and what is prepared for them."""

import errno
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import hone.run.reporter
import hone.run.store.durable
import hone.run.store.folder
from hone.cli.terminal.progress import RunProgress
from hone.run.store.folder import RunLock

HERE = Path(__file__).parent
REWARDS = HERE / "bad_rewards.py"
WORLDS = HERE / "bad_worlds.py"
RUN = Path("runs/run")

NEW = """[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 16
max_positions = 64
tokenizer = "characters"
"""
FOLDER = '[model]\npath = "model"\n'
HEAD = 'recipe = "{recipe}"\nname = "run"\nsteps = 2\n[run]\nthreads = 1\ncheckpoint_every = 1\ndisk_wait_s = 0.0\n'


def grpo(model: str = NEW) -> str:
    return (
        HEAD.format(recipe="grpo")
        + model
        + f"""[task]
source = "prompts.jsonl"
[user_code]
workers = 1
deadline_s = 5.0
[[rewards.functions]]
use = "{REWARDS}:by_length"
[rollout]
prompts_per_step = 2
samples_per_prompt = 4
max_tokens = 4
[learner]
lr = 1e-3
"""
    )


def sft(model: str = NEW) -> str:
    return (
        HEAD.format(recipe="sft")
        + model
        + """[task]
source = "pairs.jsonl"
[learner]
lr = 1e-3
"""
    ).replace("[run]", "batch = 2\n[run]")


def ppo(world: str, recipe: str = "ppo") -> str:
    return (
        HEAD.format(recipe=recipe).replace("checkpoint_every = 1", "checkpoint_every = 50")
        + f"""[env]
id = "{WORLDS}:{world}"
[evaluation]
episodes = 1
"""
    ).replace("steps = 2", "steps = 12")


def lines(rows: Iterable[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


PROMPTS = lines({"id": f"q{n}", "prompt": f"say {n}", "answer": str(n)} for n in range(4))
PAIRS = lines({"id": f"q{n}", "prompt": f"say {n}", "completion": str(n)} for n in range(4))
LONG = PROMPTS + lines([{"id": "long", "prompt": "x" * 70, "answer": ""}])
CHAT = lines([{"prompt": [{"role": "user", "content": "hello"}], "answer": ""}])


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input and the answer to it."""

    row: int
    """Of the table of bad input."""
    name: str
    code: int
    says: Sequence[str] = ()
    """What stderr must say, for exit code 0 stdout."""
    hides: Sequence[str] = ()
    """What neither may say."""
    config: str | bytes | None = field(default_factory=grpo)
    words: Sequence[str] = ()
    """After `hone train run.toml`."""
    command: Sequence[str] = ("train", "run.toml")
    files: Mapping[str, bytes] = field(default_factory=dict)
    prepare: Callable[["Stage"], object] | None = None
    keeps: bool = True
    """The runs folder is as it was; False where a run had begun, or was meant to."""
    then: Callable[[], object] | None = None
    """Asserts what is true afterwards."""
    traceback: bool = False
    """The user's own traceback is shown."""
    ours: bool = False
    """It still begins with frames of hone."""

    def __str__(self) -> str:
        return f"{self.row} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a case may ask for."""

    patch: Callable[[object, str, object], None]
    """`monkeypatch.setattr`, undone after the case."""
    finished_run: Callable[[], None]
    """Puts a finished run of `grpo()` at `runs/run`."""
    model: Callable[[], None]
    """Puts its model at `model`."""
    later: Callable[[Callable[[], object]], object]
    """Calls this when the case is over."""


# ---------------------------------------------------------------------------------------------- preparations


def existing(stage: Stage) -> None:
    stage.finished_run()


def locked(stage: Stage) -> None:
    stage.finished_run()
    lock = RunLock.acquire(RUN / "lock", "run")
    lock.write_holder("2026-01-31T12:00:00Z")
    stage.later(lock.release)


def no_space(stage: Stage) -> None:
    stage.patch(hone.run.store.folder, "require_space", partial(_require_space, free=10))


def _require_space(folder: Path, need_bytes: int, *, free: int) -> None:
    before = hone.run.store.durable.shutil.disk_usage
    usage = before(".")
    hone.run.store.durable.shutil.disk_usage = lambda path: usage._replace(free=free)
    try:
        hone.run.store.durable.require_space(folder, need_bytes)
    finally:
        hone.run.store.durable.shutil.disk_usage = before


def full_disk(stage: Stage, *, times: int) -> None:
    """The second step's checkpoint finds the disk full, so many times."""
    write, left = hone.run.store.durable.write_all, [times]

    def refuse(descriptor: int, data: bytes) -> None:
        if "step_00000002" in str(Path(f"/proc/self/fd/{descriptor}").readlink()) and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data)

    stage.patch(hone.run.store.durable, "write_all", refuse)
    stage.patch(hone.run.reporter, "DISK_RETRY_S", 0.01)


def signalled(stage: Stage, *, number: signal.Signals) -> None:
    """The signal comes while the first step is shown."""
    update = RunProgress.update

    def raised(progress: RunProgress, step: int, metrics: Mapping[str, float]) -> None:
        update(progress, step, metrics)
        if step == 1:
            signal.raise_signal(number)

    stage.patch(RunProgress, "update", raised)


def spoiled(stage: Stage, *, spoil: Sequence[Callable[[Path], object]]) -> None:
    """A finished run, whose checkpoints (newest first) are treated like this."""
    stage.finished_run()
    for number, act in zip((2, 1), spoil, strict=False):
        act(RUN / f"checkpoints/step_{number:08d}/policy/model.safetensors")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def model(stage: Stage, *, change: Callable[[], object] = lambda: None) -> None:
    stage.model()
    change()


def edit(name: str, change: Callable[[dict], object]) -> None:
    file = Path("model") / name
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def nan_weights() -> None:
    file = Path("model/model.safetensors")
    tensors = load_file(file)
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], torch.nan)
    save_file(tensors, file, metadata={"format": "pt"})


def surplus_rows() -> None:
    """The model has 29 rows more than the tokenizer has tokens."""
    file = Path("model/model.safetensors")
    tensors = load_file(file)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = torch.cat((tensors[name], torch.ones(29, tensors[name].shape[1])))
    save_file(tensors, file, metadata={"format": "pt"})
    edit("config.json", lambda content: content.update(vocab_size=content["vocab_size"] + 29))


def without(name: str) -> None:
    (Path("model") / name).unlink()


# ---------------------------------------------------------------------------------------------- afterwards


def checkpoints() -> list[str]:
    return sorted(entry.name for entry in (RUN / "checkpoints").iterdir())


def metrics() -> list[dict]:
    return [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]


def first_step_is_safe() -> None:
    """The checkpoint of step 1 and the metrics of both steps are there, and nothing half written."""
    assert checkpoints() == ["step_00000001"]
    assert [line["step"] for line in metrics()] == [1, 2]


def stopped_after_one() -> None:
    assert checkpoints() == ["step_00000001"]
    assert [line["step"] for line in metrics()] == [1]


def finished() -> None:
    assert checkpoints() == ["step_00000001", "step_00000002"]


def missing(share: float) -> None:
    """Of the first step's answers so many have no score."""
    assert metrics()[0]["reward/missing"] == share


def logged(text: str) -> None:
    assert text in (RUN / "log.txt").read_text()


def no_run() -> None:
    assert left_of_a_failure() in (set(), KEPT_OF_A_FAILURE)


KEPT_OF_A_FAILURE = {
    "capsule/capsule.json", "config.json", "events.jsonl", "log.txt", "manifest.json", "metrics.jsonl",
}  # fmt: skip
"""Files of a run that failed before a checkpoint: what `hone debug` reads. The name is free again."""


def left_of_a_failure() -> set[str]:
    """Files of the run, without its lock, its certificate if it has one, and the batch of its capsule."""
    files = {path.relative_to(RUN).as_posix() for path in RUN.rglob("*") if path.is_file()}
    return {
        name
        for name in files
        if name == "capsule/capsule.json" or not name.startswith(("capsule/", "lock", "certificate"))
    }
