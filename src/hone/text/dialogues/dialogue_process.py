"""The process of one dialogue: reads requests, calls the world, writes answers; forked by the zygote."""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import numpy as np

from hone.process.user_files import describe_error, user_traceback
from hone.process.wire import decode, pack
from hone.text.dialogues.hosted import HostedDialogue, LoadedWorld, checked
from hone.text.dialogues.protocol import Json, WorldContractError, said_from_json


def serve_dialogue(world: LoadedWorld, request_fd: int, answer_fd: int) -> None:
    """Serve one dialogue until it is closed; then the process ends."""
    dialogue = HostedDialogue(world.new)
    with asyncio.Runner() as runner, os.fdopen(request_fd, "rb") as requests:
        for line in requests:
            verb, _, body = line.partition(b" ")
            request = cast("Json", decode(body))
            if verb == b"rows":
                reply = _attempt(lambda request=request: {"rows": pack(world.rows(request["size"], request["seed"]))})
            elif verb == b"begin":
                _seed_global_random_numbers(request["seed"])
                reply = _attempt(
                    lambda request=request: _awaited(
                        dialogue.begin(request["columns"], request["seed"]), "begin", runner
                    )
                )
            elif verb in (b"answer", b"first"):
                said = said_from_json(request)
                reply = _attempt(lambda said=said: _awaited(dialogue.answer(said), "answer", runner))
            else:
                dialogue.close()
                break
            _write(answer_fd, json.dumps(reply).encode() + b"\n")
    os._exit(0)


def _seed_global_random_numbers(seed: int) -> None:
    """Seed Python's and numpy's global random numbers: forked processes would all draw the same."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - worlds of the user's use it


def _attempt(call: Callable[[], Json]) -> Json:
    """What a call returned, or what it raised, as an answer."""
    try:
        return call()
    except WorldContractError as error:
        return {"error": str(error), "traceback": ""}
    except BaseException as error:  # noqa: BLE001 - sys.exit in a world is an answer, too
        return {"error": describe_error(error), "traceback": user_traceback(error)}


def _awaited(turn: Json | Awaitable[object], method: str, runner: asyncio.Runner) -> Json:
    if isinstance(turn, dict):
        return {"turn": turn}

    async def wait() -> object:
        return await cast("Awaitable[Any]", turn)

    return {"turn": checked(runner.run(wait()), method)}


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
