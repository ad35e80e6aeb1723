"""Runs over two ranks as processes: a killed rank, a stopped rank, Ctrl-C, a killed driver; resume on other ranks."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.support import tiny_runs

pytestmark = pytest.mark.slow  # each of them starts a dozen processes that import torch

RANKS = ("run.ranks=2", "run.certify=false", "run.checkpoint_every=2")
STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of configs, with an undisturbed run over two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_runs.lay_out(folder)
    finish(folder, "whole")
    return folder


@pytest.fixture(scope="module")
def three_steps(place: Path) -> np.ndarray:
    """Weights of two ranks after three steps."""
    finish(place, "three", "steps=3")
    return weights(place, "three", 3)


def command(name: str, *more: str) -> tuple[str, ...]:
    return ("train", "grpo.toml", f"name={name}", f"steps={STEPS}", *RANKS, *more)


def finish(folder: Path, name: str, *more: str) -> str:
    process = tiny_runs.start(folder, *command(name, *more))
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    return said


def rank_processes(driver: int) -> Iterator[int]:
    """Process numbers of the driver's ranks."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == driver and b"hone.recipes.rank_process" in words:
            yield int(entry.name)


def interrupted(folder: Path, name: str, *more: str):
    """A run in the middle of its steps, and its rank's process number."""
    process = tiny_runs.start(folder, *command(name, *more))
    tiny_runs.wait_for(lambda: tiny_runs.steps_logged(folder / "runs" / name) >= 3, process, seconds=120)
    (rank,) = rank_processes(process.pid)
    return process, rank


def assert_gone(number: int) -> None:
    limit = time.monotonic() + 300
    while Path(f"/proc/{number}").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not Path(f"/proc/{number}").exists()


def assert_same_end(folder: Path, name: str) -> None:
    runs = folder / "runs"
    assert tiny_runs.files_of(runs / name, STEPS) == tiny_runs.files_of(runs / "whole", STEPS)


def test_a_killed_rank_is_started_again_and_the_run_ends_as_if_nothing_had_been(place):
    process, rank = interrupted(place, "killed")
    os.kill(rank, signal.SIGKILL)
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    assert "rank 1: its process was killed by SIGKILL" in said
    assert "start again, from the last checkpoint (1 of 3)" in said
    assert_gone(rank)
    assert_same_end(place, "killed")


def test_a_rank_that_does_not_answer_is_replaced_after_the_patience(place):
    process, rank = interrupted(place, "stopped", "run.patience_s=20")
    os.kill(rank, signal.SIGSTOP)
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    assert "start again, from the last checkpoint (1 of 3)" in said
    assert "run.patience_s = 20" in said
    assert_gone(rank)
    assert_same_end(place, "stopped")


def test_ctrl_c_saves_and_leaves_no_process_and_the_resumed_run_has_the_same_bits(place):
    process, rank = interrupted(place, "stop")
    os.kill(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    assert_gone(rank)
    finish(place, "stop", "--resume")
    assert_same_end(place, "stop")


def test_a_killed_driver_takes_its_ranks_with_it(place):
    process, rank = interrupted(place, "dead")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    assert_gone(rank)
    finish(place, "dead", "--resume")
    assert_same_end(place, "dead")


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_resume_on_another_number_of_ranks_is_equal_to_rounding_and_says_so(place, three_steps, ranks):
    name = f"other{ranks}"
    finish(place, name, "steps=2")
    said = finish(place, name, "steps=3", f"run.ranks={ranks}", "--resume")
    assert "equal to that on the former number to rounding, not to the bit" in said
    assert np.abs(weights(place, name, 3) - three_steps).max() <= 1e-7 * np.abs(three_steps).max()


def test_layers_held_by_two_ranks_are_saved_as_one_folder_and_keep_their_number(place):
    model = "model.new.kv_heads=2"
    finish(place, "parts", "steps=1", "run.tensor=2", model)
    finish(place, "undivided", "steps=1", "run.ranks=1", model)
    found, expected = weights(place, "parts", 1), weights(place, "undivided", 1)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    finish(place, "parts", "steps=2", "run.tensor=2", model, "--resume")
    process = tiny_runs.start(place, *command("parts", "steps=3", model, "--resume"))
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 2 and "run.tensor: 2 -> 1" in said


def weights(folder: Path, name: str, step: int) -> np.ndarray:
    saved = load_file(folder / "runs" / name / "checkpoints" / f"step_{step:08d}" / "policy" / "model.safetensors")
    return np.concatenate([saved[key].astype(np.float64).ravel() for key in sorted(saved)])
