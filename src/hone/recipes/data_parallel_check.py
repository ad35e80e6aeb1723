"""The gradient of a config's loss over data-parallel ranks: real processes, summed by gloo.

Belongs here: starting the ranks, and what one of them does (`python -m hone.recipes.data_parallel_check`, its task as
JSON on stdin).
Every rank builds the same stand-in, takes its share of the same batch, and adds its gradient to the others'.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch import distributed as dist

from hone.core.errors import HoneError, ResourceError
from hone.core.state import State, array
from hone.recipes.registry import load_recipe
from hone.store.codec import read_state, write_state
from hone.store.durable import Json
from hone.train.config import RunConfig
from hone.train.invariance.check import job_gradient_probes, rank_shares, summed_gradient
from hone.train.runner.run import prepare_device

RANK_TIMEOUT_S = 120.0
ANSWER_FILE = "answer"


def gradients_over_ranks(config: RunConfig, *, ranks: int = 2, seed: int = 0) -> Mapping[str, Tensor]:
    """Phase -> gradient `[P]`, computed by `ranks` processes on their shares and summed between them.

    Raises ResourceError with what a process said that failed, or when they take too long.
    """
    with tempfile.TemporaryDirectory(prefix="hone-ranks-") as name:
        folder = Path(name)
        (folder / ANSWER_FILE).mkdir()
        task = {"recipe": config.recipe, "config": config.model_dump(mode="json"), "seed": seed}
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(_start(task, folder, rank, ranks)) for rank in range(ranks)]
            stack.callback(_terminate, started)
            for rank, process in enumerate(started):
                _wait_for_rank(process, rank, folder)
        answer = read_state(folder / ANSWER_FILE)
    return {phase: torch.from_numpy(array(answer, phase)) for phase in answer}


def _start(task: Mapping[str, object], folder: Path, rank: int, ranks: int) -> "subprocess.Popen[bytes]":
    paths = [*(entry or str(Path.cwd()) for entry in sys.path), str(Path.cwd())]
    told = folder / f"task_{rank}.json"
    told.write_text(json.dumps({**task, "rank": rank, "ranks": ranks, "folder": str(folder)}), encoding="utf-8")
    with told.open("rb") as question, (folder / f"said_{rank}.txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "hone.recipes.data_parallel_check"],
            stdin=question,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )


def _wait_for_rank(process: "subprocess.Popen[bytes]", rank: int, folder: Path) -> None:
    try:
        code = process.wait(RANK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ResourceError(f"rank {rank} of the loss's check was not done after {RANK_TIMEOUT_S:g} s") from None
    if code:
        said = (folder / f"said_{rank}.txt").read_text(encoding="utf-8", errors="replace").strip()
        raise ResourceError(f"rank {rank} of the loss's check ended with code {code}: {said[-2000:]}")


def _terminate(started: "list[subprocess.Popen[bytes]]") -> None:
    for process in started:
        if process.poll() is None:
            process.kill()


def run_rank(task: Mapping[str, Json]) -> None:
    """One rank: its share of the gradient of every phase, added to the others'; rank 0 writes the sums."""
    config = _task_config(task)
    rank, ranks, folder = int(cast("int", task["rank"])), int(cast("int", task["ranks"])), Path(str(task["folder"]))
    prepare_device(config)
    job = load_recipe(config.recipe).build(config)
    try:
        found = job_gradient_probes(job, config, own_credit=True, seed=int(cast("int", task["seed"])))
    finally:
        job.close()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=RANK_TIMEOUT_S),
    )
    sums: State = {}
    for trial in found:
        own = summed_gradient(trial, [rank_shares(trial.rows, ranks)[rank]])
        dist.all_reduce(own, op=dist.ReduceOp.SUM)
        sums[trial.name] = own.numpy()
    dist.destroy_process_group()
    if rank == 0:
        write_state(folder / ANSWER_FILE, sums)


def _task_config(task: Mapping[str, Json]) -> RunConfig:
    entry = load_recipe(str(task["recipe"]))
    return entry.config.model_validate_json(json.dumps(task["config"]))


def main() -> int:
    try:
        run_rank(json.load(sys.stdin))
    except HoneError as error:
        sys.stderr.write("\n".join(error.messages))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
