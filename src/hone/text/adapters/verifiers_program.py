"""The program that holds verifiers' environments: run by an interpreter that has `verifiers`, which need not have hone.

It reads a line of JSON for each request and writes a line for each result:

    {"environment": {...}, "size": 100}      the config of `verifiers.v1` -> {"tasks": [...]}, or {"fault": "..."}
    {"session": ID, "task": 3, "address": "http://127.0.0.1:.../v1"} -> {"session": ID, "reward": 1.0, ...}
"""

# ruff: noqa: ANN401 - values of a package that hone does not import

import asyncio
import contextlib
import json
import os
import sys
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

Table = dict[str, Any]


def main() -> None:
    """Serve requests of standard input until it ends. Whatever the environment prints goes to standard error."""
    sys.path[0] = str(Path.cwd())  # environments beside the config; and not hone's own modules
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        asyncio.run(_Program(results).serve())


class _Program:
    """One environment and its tasks."""

    def __init__(self, results: Any) -> None:
        self._results = results
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Open the environment of the first line, and run the sessions of all others."""
        lines = await _standard_input()
        try:
            env, tasks = _open(json.loads(await lines.readline()))
            async with env.serving():
                rows = [
                    {"name": one.name or one.id or str(one.idx), "prompt": one.prompt_text, "system": one.system_prompt}
                    for one in (task.data for task in tasks)
                ]
                self._write({"tasks": rows})
                while line := await lines.readline():
                    asked = json.loads(line)
                    running = asyncio.create_task(self._session(env, tasks[asked["task"]], asked))
                    self._running.add(running)
                    running.add_done_callback(self._running.discard)
        except Exception as error:  # noqa: BLE001 - whatever the environment raises is told, with its traceback
            self._write({"fault": _named(error), "traceback": traceback.format_exc()})

    async def _session(self, env: Any, task: Any, asked: Table) -> None:
        try:
            result = await _run(env, task, asked["address"])
        except Exception as error:  # noqa: BLE001 - a session that fails has no score, and the others go on
            result = {"error": _named(error)}
        self._write({"session": asked["session"], **result})

    def _write(self, result: Table) -> None:
        self._results.write(json.dumps(result) + "\n")
        self._results.flush()


def _open(asked: Table) -> tuple[Any, list[Any]]:
    import verifiers.v1 as vf  # noqa: PLC0415 # pyright: ignore[reportMissingImports] - only this interpreter has it

    env = vf.load_environment(vf.resolve_env_config(asked["environment"]))
    tasks = list(islice(env.taskset, asked["size"]))
    if not tasks:
        raise ValueError("its taskset has no task")
    return env, tasks


async def _run(env: Any, task: Any, address: str) -> Table:
    """One episode with the policy at `address`, scored by the environment itself."""
    import verifiers.v1 as vf  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    client = vf.EvalClientConfig(base_url=address, api_key_var="HONE_SESSION_KEY")
    context = vf.ModelContext(model="policy", client=client, sampling=vf.SamplingConfig())
    (slot,) = env.slots(task)
    episode = await env.run_slot(slot, context)
    traces = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
    others = [trace.id for trace in episode.traces if trace not in traces]
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        return {"error": "; ".join(dict.fromkeys(f"{one.type}: {one.message}" for one in errors)) or "it failed"}
    if not traces or not any(trace.rewards for trace in traces):
        return {"reward": None, "without_roles": others}
    metrics: Table = {}
    for trace in traces:
        metrics |= {name: value for name, value in trace.metrics.items() if value is not None}
        metrics |= {name: one.value for name, one in trace.rewards.items() if one is not None}
    reward = sum(trace.reward for trace in traces) / len(traces)
    return {"reward": reward, "facts": metrics, "without_roles": others}


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def _standard_input() -> asyncio.StreamReader:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=2**26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
