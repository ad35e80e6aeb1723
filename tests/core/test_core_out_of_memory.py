"""Memory that runs out: told as such with the keys that lower it, by each process, with exit code 5."""

import errno
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import ROOT, hone, lay_out

from hone.core.errors import ResourceError, UserCodeError
from hone.core.out_of_memory import memory_errors, memory_remedy, out_of_memory
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.workers import RewardBatch, RewardWorkerPool

FUNCTIONS = """
import os

def allocates(completion):
    return float(len(bytearray(1 << 45)))

def killed(completion):
    os.kill(os.getpid(), 9)

def wrong(completion):
    raise ValueError("no digits")
"""
WORLD = """
import gymnasium, numpy as np

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        np.zeros(1 << (45 if self.t == 7 else 1))
        return np.zeros(1, np.float32), 0.0, self.t == 9, False, {}
"""


def failure_of(allocate: Callable[[], object]) -> BaseException:
    try:
        allocate()
    except (RuntimeError, MemoryError) as error:
        return error
    raise AssertionError("it fits")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (failure_of(lambda: torch.empty(1 << 50)), "cannot allocate 4194304.0 GiB"),
        (failure_of(lambda: np.zeros(1 << 50)), "Unable to allocate 8.00 PiB for an array with shape"),
        (failure_of(lambda: bytearray(1 << 55)), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0"), "allocate 20.00 GiB"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (RuntimeError("std::bad_alloc"), "bad_alloc"),
        (ImportError("libx.so: failed to map segment from shared object"), "failed to map segment"),
    ],
)
def test_memory_that_ran_out_is_recognised(error: BaseException, says: str) -> None:
    assert says in out_of_memory(error)
    with (
        pytest.raises(ResourceError, match=r"out of memory.*; lower batch \(8\), env\.num_envs \(4\)"),
        memory_errors({"batch": 8, "env.num_envs": 4, "seed": 0, "rollout_steps": None}),
    ):
        raise error


def test_what_was_planned_is_quoted() -> None:
    told = r"^out of memory in .*: CUDA out of memory\. .*; planned were 3 GiB; lower batch \(8\)$"
    with pytest.raises(ResourceError, match=told), memory_errors({"batch": 8}, lambda: "planned were 3 GiB"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_compiled_code_that_has_no_memory_is_told_with_the_keys() -> None:
    for text, told in (
        ("out of memory: 3 GiB of pages", r"^out of memory: 3 GiB of pages; lower batch \(8\)$"),
        ("out of memory in f; lower env.num_envs", r"^out of memory in f; lower env\.num_envs$"),
        ("no space for runs", "^no space for runs$"),
    ):
        with pytest.raises(ResourceError, match=told), memory_errors({"batch": 8}):
            raise ResourceError(text)


def test_other_errors_are_left_alone() -> None:
    for error in (RuntimeError("shapes differ"), OSError(errno.ENOSPC, "No space"), ValueError("MemoryError")):
        assert out_of_memory(error) == ""
        with pytest.raises(type(error)), memory_errors({}):
            raise error
    assert memory_remedy({}) == "take a smaller model or smaller batches"


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("allocates", ResourceError, r"MemoryError[\s\S]*lower user_code\.workers"),
        ("killed", ResourceError, r"killed by SIGKILL[\s\S]*user_code\.memory_bytes"),
        ("wrong", UserCodeError, "no digits"),
    ],
)
def test_reward_workers_without_memory_are_a_fault_of_resources(
    tmp_path: Path, name: str, kind: type[Exception], says: str
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    config = {"functions": [{"use": f"{tmp_path / 'functions.py'}:{name}"}]}
    batch = RewardBatch(prompts=["?"], completions=["a"], columns={})
    with (
        RewardWorkerPool(RewardsConfig.model_validate(config), UserCodeConfig(workers=1)) as pool,
        pytest.raises(kind, match=says),
    ):
        pool.score(batch)


def test_a_worker_that_cannot_import_for_lack_of_memory(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("import numpy\nheld = bytearray(1 << 45)\ndef f(completion):\n    return 1.0\n")
    config = RewardsConfig.model_validate({"functions": [{"use": f"{tmp_path / 'large.py'}:f"}]})
    with (
        RewardWorkerPool(config, UserCodeConfig(workers=1)) as pool,
        pytest.raises(ResourceError, match=r"user_code\.memory_bytes"),
    ):
        pool.check([])


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_environments_without_memory_are_a_fault_of_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], isolation: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "c.toml").write_text(
        'recipe = "ppo"\nsteps = 2\nevaluation.episodes = 1\nrollout_steps = 16\n'
        f'env = {{ id = "world.py:World", num_envs = 2, isolation = "{isolation}", check = false }}\n'
    )
    assert hone("train", "c.toml") == 5
    said = capsys.readouterr().err
    assert "Unable to allocate 256. TiB" in said
    assert "env.num_envs" in said


LIMITED = """
import resource, sys
import torch, hone.run.run
from hone.cli.main import main
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), -1))
cache = ["model.new.layers=8", "model.new.head_dim=128", "model.new.max_positions=8192"]
long = ["rollout.max_tokens=8000", "rollout.max_concurrent=4096", "steps=1", "--yes"]
sys.exit(main(["train", "grpo.toml", *cache, *long]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an address space is limited on Linux only")
def test_a_trainer_without_memory_names_the_place_the_size_and_the_keys(tmp_path: Path) -> None:
    lay_out(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    said = " ".join(result.stderr.split())
    assert result.returncode == 5, said
    assert "error: out of memory" in said
    assert "GiB" in said
    assert "rollout.max_concurrent (4096), rollout.context (unset: a dialogue" in said
    assert "Traceback" not in said
