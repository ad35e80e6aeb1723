"""What a run spends on its folder: lines, alarms, events, histograms, rollouts and traces, as a share of its steps.

    python benchmarks/run_writes.py FOLDER [--every N] [--steps N] [--only NAME]    rewrites its tables in RESULTS.md
    python benchmarks/run_writes.py FOLDER --quick                                  prints only

Twice measured, in processor seconds of the process, so that other work on the machine does not count: the parts by
themselves, within the run; and blocks of steps that write in turns with blocks that write nothing, of the same run.
`--every N` sets `run.rollouts_every`; `--every 0` leaves rollouts out.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from digest_runs import REWARDS
from tables import Row, grow, tell

import hone.api
from hone.run.machine import MachineReader
from hone.run.reporter import RunReporter
from hone.run.store.events import EventLog
from hone.run.store.rollouts import AnswerRollouts, write_rollouts
from hone.text.update_trace import UpdateTrace

SPENT: dict[str, float] = defaultdict(float)
_DEPTH = [0]
_ON = [True]
BLOCKS = 40
"""Blocks of a run that writes in turns."""


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, its processor seconds added to `name`, where it is not called by another timed part."""

    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
        _DEPTH[0] += 1
        began_s = time.process_time()
        try:
            return work(*arguments, **options)
        finally:
            _DEPTH[0] -= 1
            if not _DEPTH[0]:
                SPENT[name] += time.process_time() - began_s

    return call


def runs(steps: int) -> dict[str, dict[str, Any]]:
    """Small runs: a language model whose step takes some 50 ms, and CartPole."""
    quiet = {"threads": 1, "certify": False, "checkpoint_every": 0}
    shape = {
        "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "max_positions": 64, "alphabet": "0123456789+=",
    }  # fmt: skip
    grpo = {
        "recipe": "grpo", "steps": steps, "model": {"compute": "float32", "new": shape},
        "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": "rewards.py:close"}]},
        "user_code": {"workers": 1}, "learner": {"lr": 1e-3, "minibatches": 2},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 8, "max_tokens": 16, "max_concurrent": 64},
        "run": quiet,
    }  # fmt: skip
    env = {"id": "CartPole-v1", "num_envs": 8}
    ppo = {"recipe": "ppo", "steps": steps, "env": env, "rollout_steps": 128, "run": quiet}
    arms = {"kind": "bernoulli", "rates": [0.2, 0.8]}
    bandit = {"recipe": "thompson", "steps": 100 * steps, "arms": arms, "run": quiet}
    return {"grpo": grpo, "ppo": ppo, "thompson": bandit | {"run": quiet | {"log_every": 20}}}


def patch() -> None:
    """Time the parts, and let them do nothing in blocks without writing."""

    def if_on(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any method
            return work(self, *arguments, **options) if _ON[0] else None

        return call

    def leave_out(reporter: RunReporter) -> None:
        reporter._lines.clear()

    write = RunReporter.append_lines
    RunReporter._write_rollouts = if_on(timed("rollouts", RunReporter._write_rollouts))  # type: ignore[method-assign]
    RunReporter.append_lines = timed("lines, histograms, alarms", lambda self: (write if _ON[0] else leave_out)(self))  # type: ignore[method-assign]
    MachineReader.read = timed("machine", MachineReader.read)  # type: ignore[method-assign]
    EventLog.append = timed("events", EventLog.append)  # type: ignore[method-assign]
    UpdateTrace.see = if_on(timed("trace", UpdateTrace.see))  # type: ignore[method-assign]
    UpdateTrace.see_clipped = if_on(timed("trace", UpdateTrace.see_clipped))  # type: ignore[method-assign]
    # At its first table pyarrow looks for pandas, which takes 0.2 s, once in a process.
    write_rollouts(Path("warm.parquet"), AnswerRollouts(rows=[]))


def measure(name: str, settings: dict[str, Any], every: int | None) -> Iterator[Row]:
    """Rows of a run: it writes all the time, and then in turns."""
    if name != "thompson" and every is not None:
        settings["run"] = settings["run"] | {"rollouts_every": every}
    whole: list[float] = []

    def look(_: object) -> None:
        whole.append(time.process_time())
        if len(whole) == 1:
            SPENT.clear()

    _ON[0] = True
    hone.api.train(settings | {"name": f"{name}_parts_{os.getpid()}"}, on_step=look)
    total = whole[-1] - whole[0]
    share = sum(SPENT.values()) / total
    what = f"{name}, a step of {1e3 * total / (len(whole) - 1):.3g} CPU ms"
    yield Row(row=f"{what}: writing", value=100 * share, unit="%", bar="<= 2", met=share <= 0.02)
    for part, spent in sorted(SPENT.items(), key=lambda one: -one[1]):
        yield Row(row=f"{what}: {part}", value=100 * spent / total, unit="%")
    block = settings["steps"] // BLOCKS
    marks: list[float] = []

    def turn(event: Any) -> None:  # noqa: ANN401 - the callback's event
        if event.step % block == 0:
            marks.append(time.process_time())
            _ON[0] = not _ON[0]

    _ON[0] = True
    hone.api.train(settings | {"name": f"{name}_turns_{os.getpid()}"}, on_step=turn)
    _ON[0] = True
    taken = [after - before for before, after in pairwise(marks)][:-1]  # the last one also ends the run
    pairs = [(on, off) for off, on in zip(taken[::2], taken[1::2], strict=False)]
    shares = [100 * (on - off) / on for on, off in pairs]
    middle = statistics.median(shares)
    error = 1.25 * 1.96 * statistics.stdev(shares) / len(shares) ** 0.5
    yield Row(
        row=f"{what}: blocks that write less blocks beside them that do not, median", value=middle, unit="%",
        low=middle - error, high=middle + error, seeds=len(shares),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--only", choices=["grpo", "ppo", "thompson"])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    rows = [f'{{"prompt": "{a}+{b}=", "answer": "{a + b}"}}\n' for a in range(10) for b in range(8)]
    Path("sums.jsonl").write_text("".join(rows), encoding="utf-8")
    patch()
    steps = 80 if options.quick else options.steps
    for name, settings in runs(steps).items():
        if options.only in (None, name):
            made = measure(name, settings, options.every)
            tell(grow(f"What {name} writes", "benchmarks/run_writes.py", made, threads=1, quick=options.quick))


if __name__ == "__main__":
    main()
