"""The process that runs reward functions: `python -m hone.rewards.worker`, started by `process.child`.

It reads one line for each job, calls the function piece by piece, and writes one line for each piece, at once, so that
the trainer knows which piece a hang or a crash belongs to. A line names its job, its piece and the process, and the
trainer checks these and every score: this process decides nothing. Before it imports a function it gives up the right
to signal the trainer, and before the first job that to write into the run.
"""

import inspect
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

from hone.core.errors import UserCodeError
from hone.process.confine import Confinement, confine
from hone.process.parent import FORKED_EXIT, ParentChannel, connect_to_parent
from hone.process.user_files import describe_error, user_traceback
from hone.process.wire import decode
from hone.rewards.functions import LoadedFunction, RewardContractError

if TYPE_CHECKING:
    import asyncio

EventLoop: TypeAlias = "Callable[[], asyncio.Runner]"
"""The one event loop of all coroutines, made when the first of them asks for it."""


def main() -> None:
    """Entry point of the worker process: scores requests from standard input until it closes."""
    channel = connect_to_parent()
    requests = channel.lines()
    with ExitStack() as stack:

        @cache
        def event_loop() -> "asyncio.Runner":
            import asyncio  # noqa: PLC0415 - half of the process's start, and few functions are coroutines

            return stack.enter_context(asyncio.Runner())

        hello = cast("dict[str, object]", decode(next(requests)))
        confinement = confine(os.getppid()) if hello["confined"] else None
        if (memory_bytes := cast("int | None", hello["memory_bytes"])) is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        functions = _load_functions(cast("list[dict[str, object]]", hello["functions"]), channel, confinement)
        if functions is not None:
            _serve(requests, channel, functions, event_loop, confinement)


def _load_functions(
    specs: Sequence[Mapping[str, object]], channel: ParentChannel, confinement: Confinement | None
) -> list[LoadedFunction] | None:
    """The functions, after their signatures were sent; None after the faults of all unusable ones were sent."""
    functions: list[LoadedFunction] = []
    refused: list[str] = []
    for spec in specs:
        try:
            functions.append(LoadedFunction.load(str(spec["use"]), cast("Mapping[str, object]", spec["options"])))
        except UserCodeError as error:
            refused.extend(error.messages)
    if refused:
        _reply(channel, {"refused": refused})
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
    _reply(channel, {"ready": ready, "gaps": [] if confinement is None else confinement.gaps})
    return functions


def _serve(
    requests: Iterator[bytes],
    channel: ParentChannel,
    functions: Sequence[LoadedFunction],
    event_loop: EventLoop,
    confinement: Confinement | None,
) -> None:
    for line in requests:
        job = cast("dict[str, object]", decode(line))
        if "read_only" in job:
            folders = cast("list[str]", job["read_only"])
            _reply(channel, {"faults": [] if confinement is None else confinement.protect(folders)})
            continue
        loaded = functions[cast("int", job["function"])]
        prompts, completions = cast("list[object]", job["prompts"]), cast("list[object]", job["completions"])
        columns = cast("dict[str, list[object]]", job["columns"])
        start = 0
        for place, size in enumerate(cast("list[int]", job["sizes"])):
            piece = slice(start, start + size)
            part = {name: values[piece] for name, values in columns.items()}
            scored = _score_piece(loaded, prompts[piece], completions[piece], part, event_loop)
            origin = {"job": job["job"], "piece": place, "pid": os.getpid()}
            if os.getpid() != channel.pid:  # the function forked, and its copy came back too: the trainer is told
                os.write(channel.reply_fd, json.dumps(origin).encode() + b"\n")
                os._exit(FORKED_EXIT)
            _reply(channel, {**scored, **origin})
            start += size


def _score_piece(
    loaded: LoadedFunction,
    prompts: Sequence[object],
    completions: Sequence[object],
    columns: Mapping[str, Sequence[object]],
    event_loop: EventLoop,
) -> dict[str, object]:
    """The reply for one piece: scores, or the function's exception, or how it broke its contract."""
    began = time.perf_counter()
    loaded.log.take(1)  # what a call recorded that raised
    try:
        result = loaded.call(**loaded.arguments(prompts, completions, columns))
        if inspect.iscoroutine(result):
            result = event_loop().run(result)
        scores = loaded.scores(result, len(completions))
    except RewardContractError as error:
        return {"contract": str(error)}
    except BaseException as error:  # noqa: BLE001 - sys.exit and timeouts derived from BaseException are answers too
        return {
            "error": describe_error(error),
            "traceback": user_traceback(error),
            "seconds": time.perf_counter() - began,
        }
    seconds = time.perf_counter() - began
    return {
        "scores": [score for score, _ in scores],
        "reasons": [reason for _, reason in scores],
        "seconds": seconds,
        "logged": loaded.log.take(len(completions)),
    }


def _reply(channel: ParentChannel, message: Mapping[str, object]) -> None:
    """Write a line; what a function says may hold halves of surrogate pairs, which no file of the run could."""
    channel.reply(json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n")


if __name__ == "__main__":
    main()
