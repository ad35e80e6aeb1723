"""The process that runs reward functions: `python -m hone.rewards.worker REQUEST_FD REPLY_FD PARENT_PID`.

It reads one line for each job, calls the function piece by piece, and writes one line for each piece, at once, so that
the trainer knows which piece a hang or a crash belongs to. It never decides anything: scores are judged by the trainer.
"""

import asyncio
import ctypes
import inspect
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, cast

from hone.core.errors import UserCodeError
from hone.rewards.functions import (
    LoadedFunction,
    OptionalScore,
    RewardContractError,
    batch_scores,
    call_arguments,
    describe_error,
    load_function,
    sample_score,
    users_traceback,
)
from hone.rewards.wire import decode

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9


def main() -> int:
    request_fd, reply_fd, parent = (int(argument) for argument in sys.argv[1:4])
    _bind_to(parent)
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)  # programs that a function starts must not hold the channel open
    with os.fdopen(request_fd, "rb") as requests, asyncio.Runner() as runner:
        hello = cast("dict[str, object]", decode(requests.readline()))
        _limit_memory(cast("int | None", hello["memory_bytes"]))
        functions = _load_functions(cast("list[dict[str, object]]", hello["functions"]), reply_fd)
        if functions is not None:
            _serve(requests, reply_fd, functions, runner)
    return 0


def _bind_to(parent: int) -> None:
    """Die with the trainer, and keep every descendant in reach of it: orphans become our own children."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:  # it died before the lines above
        sys.exit(1)


def _limit_memory(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _load_functions(specs: Sequence[Mapping[str, object]], reply_fd: int) -> list[LoadedFunction] | None:
    """The functions, after saying what they take; None after saying what is wrong with all that cannot be used."""
    functions: list[LoadedFunction] = []
    refused: list[str] = []
    for spec in specs:
        try:
            functions.append(load_function(str(spec["use"]), cast("Mapping[str, object]", spec["options"])))
        except UserCodeError as error:
            refused.extend(error.messages)
    if refused:
        _reply(reply_fd, {"refused": refused})
        return None
    ready = [
        {
            "form": f.form,
            "takes": sorted(f.columns),
            "needs": sorted(f.required_columns),
            "takes_all": f.takes_any_column,
        }
        for f in functions
    ]
    _reply(reply_fd, {"ready": ready})
    return functions


def _serve(requests: BinaryIO, reply_fd: int, functions: Sequence[LoadedFunction], runner: asyncio.Runner) -> None:
    while line := requests.readline():
        job = cast("dict[str, object]", decode(line))
        loaded = functions[cast("int", job["function"])]
        prompts, completions = cast("list[object]", job["prompts"]), cast("list[object]", job["completions"])
        columns = cast("dict[str, list[object]]", job["columns"])
        start = 0
        for size in cast("list[int]", job["sizes"]):
            piece = slice(start, start + size)
            part = {name: values[piece] for name, values in columns.items()}
            _reply(reply_fd, _score_piece(loaded, prompts[piece], completions[piece], part, runner))
            start += size


def _score_piece(
    loaded: LoadedFunction,
    prompts: Sequence[object],
    completions: Sequence[object],
    columns: Mapping[str, Sequence[object]],
    runner: asyncio.Runner,
) -> dict[str, object]:
    """The reply for one piece: scores, or the function's exception, or how it broke its contract."""
    began = time.perf_counter()
    try:
        result = loaded.call(**call_arguments(loaded, prompts, completions, columns))
        if inspect.iscoroutine(result):
            result = runner.run(result)
        scores: list[tuple[OptionalScore, str]] = (
            batch_scores(result, len(completions)) if loaded.form == "batch" else [sample_score(result)]
        )
    except RewardContractError as error:
        return {"contract": str(error)}
    except BaseException as error:  # noqa: BLE001 - sys.exit and timeouts derived from BaseException are answers too
        return {
            "error": describe_error(error),
            "traceback": users_traceback(error),
            "seconds": time.perf_counter() - began,
        }
    seconds = time.perf_counter() - began
    return {"scores": [score for score, _ in scores], "reasons": [reason for _, reason in scores], "seconds": seconds}


def _reply(fd: int, message: Mapping[str, object]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    sys.exit(main())
