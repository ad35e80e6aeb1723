"""Gradient of a config's loss over data-parallel ranks: real processes, all-reduced by gloo.

Belongs here: starting the ranks, and the work of one of them (this module as a command; its task is a line of JSON).
Every rank builds the same small model, takes its share of the same batch, and adds its gradient to the others'.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch import distributed as dist

from hone.certify.check import rank_gradient
from hone.certify.job import job_gradient_probes
from hone.core.clock import SystemClock
from hone.core.errors import HoneError, ResourceError
from hone.core.state import State, array
from hone.core.strict_json import Json
from hone.parallel.group import GroupReduction
from hone.process.child import TICK_S, ChildLostError, ChildProcess, LineParser, pump_children
from hone.process.parent import connect_to_parent
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig
from hone.run.run import prepare_device
from hone.run.store.codec import read_state, write_state

RANK_TIMEOUT_S = 120.0
ANSWER_FILE = "answer"
DONE = b"{}"
"""Reply of a rank that succeeded."""


def gradients_over_ranks(config: RunConfig, *, ranks: int = 2, seed: int = 0) -> Mapping[str, Tensor]:
    """Compute phase -> gradient `[P]` with `ranks` processes on their shards, summed.

    Raises ResourceError with the last output of a process that failed, or when they take too long.
    """
    # A rank has as many threads as this process, so that it adds numbers in the same order.
    variables = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with tempfile.TemporaryDirectory(prefix="hone-ranks-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / ANSWER_FILE).mkdir()
        task = {"recipe": config.recipe, "config": config.model_dump(mode="json"), "seed": seed, "ranks": ranks}
        children: list[ChildProcess[bytes]] = []
        for rank in range(ranks):
            child = ChildProcess(__name__, LineParser(), clock=SystemClock(), variables=variables)
            stack.callback(child.kill)
            child.start()
            child.send(json.dumps({**task, "rank": rank, "folder": name}).encode() + b"\n")
            children.append(child)
        _wait_for_ranks(children)
        answer = read_state(folder / ANSWER_FILE)
    return {phase: torch.from_numpy(array(answer, phase)) for phase in answer}


def _wait_for_ranks(children: Sequence[ChildProcess[bytes]]) -> None:
    limit_s = time.monotonic() + RANK_TIMEOUT_S
    replies: list[bytes | ChildLostError | None] = [None] * len(children)
    while None in replies:
        pump_children(children, TICK_S)
        replies = [reply or child.take_reply() for reply, child in zip(replies, children, strict=True)]
        for rank, reply in enumerate(replies):
            if isinstance(reply, ChildLostError):
                raise ResourceError(f"rank {rank} of the loss's check failed: {reply}")
            if reply is not None and reply != DONE:
                raise ResourceError(f"rank {rank} of the loss's check failed: {json.loads(reply)}")
            if reply is None and time.monotonic() > limit_s:
                raise ResourceError(f"rank {rank} of the loss's check was not done after {RANK_TIMEOUT_S:g} s")


def _run_rank(task: Mapping[str, Json]) -> None:
    """Run one rank: compute its shard's gradient of every phase and all-reduce it; rank 0 writes the sums."""
    config = _task_config(task)
    rank, ranks, folder = int(cast("int", task["rank"])), int(cast("int", task["ranks"])), Path(str(task["folder"]))
    prepare_device(config)
    job = load_recipe(config.recipe).build(config)
    try:
        probes = job_gradient_probes(job, config, own_credit=True, seed=int(cast("int", task["seed"])))
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
    for probe in probes:
        own = rank_gradient(probe, GroupReduction(rank), ranks=ranks)
        dist.all_reduce(own, op=dist.ReduceOp.SUM)
        sums[probe.name] = own.numpy()
    dist.destroy_process_group()
    if rank == 0:
        write_state(folder / ANSWER_FILE, sums)


def _task_config(task: Mapping[str, Json]) -> RunConfig:
    entry = load_recipe(str(task["recipe"]))
    return entry.config.model_validate_json(json.dumps(task["config"]))


def main() -> None:
    """Run one rank as a child process."""
    channel = connect_to_parent()
    reply = DONE
    try:
        _run_rank(json.loads(next(channel.lines())))
    except HoneError as error:
        reply = json.dumps("\n".join(error.messages)).encode()
    channel.reply(reply + b"\n")


if __name__ == "__main__":
    main()
