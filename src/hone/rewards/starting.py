"""The start of a worker: checks before it, its process, the import of the functions, and its confinement."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from hone.core.clock import Clock
from hone.process.child import ChildLostError, ChildProcess, LineParser
from hone.process.wire import encode
from hone.rewards.code.rows import check_code_reward
from hone.rewards.config import RewardFunction, RewardsConfig
from hone.rewards.faults import reward_fault
from hone.rewards.functions import check_reference
from hone.rewards.jobs import FunctionSignature, parse_message, parse_signature

Worker: TypeAlias = ChildProcess[bytes]


def check_functions(functions: Sequence[RewardFunction]) -> None:
    """Check the references of reward functions, and that those which run programs can confine them here.

    Raises ConfigError, ResourceError.
    """
    for function in functions:
        check_reference(function.use)
    for function in functions:
        check_code_reward(function.use, function.options)


def start_worker(
    config: RewardsConfig, names: Sequence[str], *, clock: Clock, abandoned: Callable[[], bool]
) -> tuple[Worker, list[FunctionSignature], list[str]]:
    """A worker that has imported all functions, their signatures, and the limits that are not held for it.

    Raises UserCodeError, ResourceError.
    """
    process = ChildProcess("hone.rewards.worker", LineParser(), clock=clock, abandoned=abandoned)
    process.start()
    functions = [{"use": function.use, "options": function.options} for function in config.worker_functions]
    hello = {"functions": functions, "memory_bytes": config.memory_bytes, "confined": config.confined}
    process.send(encode(hello))
    try:
        reply = parse_message(process.receive(config.start_deadline_s))
    except ChildLostError as lost:
        process.kill()
        slow = f"took longer than rewards.start_deadline_s = {config.start_deadline_s:g} s"
        raise reward_fault(
            f"importing the reward functions ({', '.join(names)}): {slow if lost.timeout else lost}"
        ) from None
    if "ready" not in reply:
        process.kill()
        raise reward_fault(*cast("list[str]", reply.get("refused", ["the worker did not start"])))
    signatures = [parse_signature(signature) for signature in cast("list[dict[str, object]]", reply["ready"])]
    gaps = [
        f"reward functions are not fully confined: {gap}; rewards.confined = false silences this"
        for gap in cast("list[str]", reply["gaps"])
    ]
    return process, signatures, gaps


def protect_folders(process: Worker, folders: Sequence[str], deadline_s: float) -> list[str]:
    """Make folders read-only for a worker, for good, before its first job; what failed.

    A worker that is lost meanwhile is found so by its first job.
    """
    process.send(encode({"read_only": list(folders)}))
    with contextlib.suppress(ChildLostError):
        return cast("list[str]", parse_message(process.receive(deadline_s)).get("faults", []))
    return []
